package world

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// sometimes is what a run must have met, with the percentage of seeds that meet it, as counted
// over 400 seeds. What there was no object storage for before, and what came with it, was counted over 30, and
// is entered lower than that. A seed turns on some kinds of faults only, so that seeds are counted and not
// occurrences: whether one seed meets something says nothing of the next.
var sometimes = []struct {
	what    string
	percent int
}{
	// The faults.
	{"fault agent_cut", 38},
	{"fault agent_lost", 33},
	{"fault api_lost", 20},
	{"fault clock_jump", 34},
	{"fault exec_lost", 17},
	{"fault exec_refused", 25},
	{"fault host_full", 10},
	{"fault partition", 14},
	{"fault postgres_away", 37},
	{"fault provider_429", 22},
	{"fault provider_500", 39},
	{"fault provider_late", 17},
	{"fault provider_lost", 39},
	{"fault provider_refused", 40},
	{"fault provider_slow", 34},
	{"fault s3_500", 16},
	{"fault s3_lost", 18},
	{"fault s3_refused", 18},
	{"fault signal_late", 23},
	{"fault signal_twice", 21},
	{"fault sql_cut", 35},
	{"fault sql_lost", 44},
	{"fault start_away", 29},
	{"fault temporal_away", 38},
	{"fault temporal_lost", 28},
	{"gateway died", 10},
	{"worker died", 36},
	// What comes of them.
	{"a connection was refused during a failover", 37},
	{"a run was signalled", 99},
	{"an activity was tried again", 88},
	{"server attempt_destroyed", 60},
	{"server create_refused", 30},
	{"server server_adopted", 12},
	{"server workflow_restarted", 3},
	{"tenant workflow_restarted", 2},
	// What was asked for, and how it ended.
	{"backup final ends stored", 8},
	{"backup manual ends deleted", 8},
	{"backup manual ends stored", 35},
	{"backup scheduled ends stored", 3},
	{"restore ends succeeded", 6},
	{"server active", 99},
	{"server ends failed", 7},
	{"server ends terminated", 50},
	{"server location_spread", 23},
	{"tenant apps_installed", 47},
	{"tenant awaiting_capacity", 68},
	{"tenant ends active", 88},
	{"tenant ends data_purged", 9},
	{"tenant ends failed", 6},
	{"tenant ends suspended", 8},
	{"tenant move_failed", 3},
	{"tenant move_requested", 12},
	{"tenant moved", 6},
	{"tenant refused by the quota", 28},
	{"tenant reservation_released", 18},
	{"tenant server_requested", 69},
	{"tenant site_created", 95},
	{"tenant site_dropped", 5},
	{"tenant that lost its server ends active", 4},
}

// Met lists what a play met, once each: its counters and its kinds of faults.
func (o Outcome) Met() []string {
	met := map[string]bool{}
	for what := range o.Counters {
		met[what] = true
	}
	for _, f := range o.Faults {
		met["fault "+f.Kind] = true
	}
	return slices.Sorted(maps.Keys(met))
}

// tooRare is how likely a run may be that fails although nothing has changed, for one line of
// the list.
const tooRare = 1e-7

// leastOf is in how many of n seeds, at least, something must be met that a seed meets with
// probability p: fewer is less likely than [tooRare]. It is 0 for what is rare in a short run.
func leastOf(n int, p float64) int {
	// The binomial distribution, summed up from none. Its logarithm is taken, because
	// (1-p)^n is 0 for long runs.
	below, k := 0.0, 0
	for term := float64(n) * math.Log1p(-p); k < n; k++ {
		if below += math.Exp(term); below > tooRare {
			break
		}
		term += math.Log(float64(n-k)/float64(k+1)) + math.Log(p) - math.Log1p(-p)
	}
	return k
}

// NotMet says what a run of so many seeds should have met and did not. met is in how many
// seeds each thing was met. A run that met less tests less than it says.
func NotMet(met map[string]int, seeds int) []string {
	var out []string
	for _, s := range sometimes {
		if want := leastOf(seeds, float64(s.percent)/100); met[s.what] < want {
			out = append(out, fmt.Sprintf("%s: in %d of %d seeds, at least %d are expected", s.what, met[s.what], seeds, want))
		}
	}
	return out
}
