package world

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// sometimes are the required events of a run, with the percentage of seeds that meet each, counted over 159 seeds. A
// seed activates only some kinds of faults, so that seeds are counted and not occurrences: a seed's result does not
// predict the next.
var sometimes = []often{
	// The faults.
	{"fault agent_cut", 35},
	{"fault agent_lost", 39},
	{"fault api_lost", 22},
	{"fault clock_jump", 46},
	{"fault exec_lost", 18},
	{"fault exec_refused", 30},
	{"fault host_full", 19},
	{"fault partition", 19},
	{"fault postgres_away", 42},
	{"fault provider_429", 32},
	{"fault provider_500", 41},
	{"fault provider_late", 19},
	{"fault provider_lost", 38},
	{"fault provider_refused", 46},
	{"fault provider_slow", 29},
	{"fault s3_500", 24},
	{"fault s3_lost", 22},
	{"fault s3_refused", 22},
	{"fault signal_late", 26},
	{"fault signal_twice", 23},
	{"fault sql_cut", 47},
	{"fault sql_lost", 49},
	{"fault start_away", 42},
	{"fault temporal_away", 42},
	{"fault temporal_lost", 36},
	{"gateway died", 11},
	{"worker died", 39},
	// Effects of faults.
	{"a connection was refused during a failover", 42},
	{"a restored database was completed", 15},
	{"a run was signalled", 99},
	{"an activity was tried again", 91},
	{"server attempt_destroyed", 62},
	{"server create_refused", 35},
	{"server server_adopted", 15},
	{"server workflow_restarted", 7},
	{"tenant workflow_restarted", 1},
	// Requests, and their results.
	{"backup final ends stored", 5},
	{"backup manual ends deleted", 13},
	{"backup manual ends stored", 46},
	{"backup scheduled ends stored", 10},
	{"restore ends succeeded", 12},
	{"server active", 99},
	{"server ends failed", 5},
	{"server ends terminated", 55},
	{"server location_spread", 34},
	{"tenant apps_installed", 43},
	{"tenant awaiting_capacity", 51},
	{"tenant ends active", 90},
	{"tenant ends data_purged", 6},
	{"tenant ends failed", 16},
	{"tenant ends suspended", 6},
	{"tenant move_failed", 26},
	{"tenant move_requested", 38},
	{"tenant moved", 10},
	{"tenant refused by the quota", 32},
	{"tenant reservation_released", 28},
	{"tenant server_requested", 79},
	{"tenant site_created", 95},
	{"tenant site_dropped", 4},
	{"tenant that lost its server ends active", 9},
}

// sometimesNamed is what a run with names must have met besides, as counted over 30 seeds, and set lower.
var sometimesNamed = []often{
	{"fault acme_500", 11},
	{"fault acme_nonce", 7},
	{"fault acme_refused", 11},
	{"fault dns_500", 7},
	{"fault dns_lost", 9},
	{"fault dns_refused", 7},
	{"fault resolver_fails", 7},
	{"fault resolver_refused", 11},
	{"fault resolver_stale", 9},
	{"a certificate was renewed", 12},
	{"an edge reported a site's health", 35},
	{"an edge served a site", 42},
	{"certificate ends active", 45},
	{"certificate ends retired", 7},
	{"domain ends verified", 25},
	{"domain ends verified, given up", 12},
	{"record of site ends created", 12},
	{"the authority issued a certificate", 45},
	{"the authority validated http-01", 28},
}

type often struct {
	what    string
	percent int
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

// leastOf is the least number of n seeds that must meet an event with probability p: fewer is less likely than
// [tooRare]. It is 0 for rare events in a short run.
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

// NotMet lists the missing events of a run of so many seeds. met counts the seeds of each event; named means that the
// seeds had names. Such a run tests less than it claims.
func NotMet(met map[string]int, seeds int, named bool) []string {
	var out []string
	all := sometimes
	if named {
		all = slices.Concat(sometimes, sometimesNamed)
	}
	for _, s := range all {
		if want := leastOf(seeds, float64(s.percent)/100); met[s.what] < want {
			out = append(out, fmt.Sprintf("%s: in %d of %d seeds, at least %d are expected", s.what, met[s.what], seeds,
				want))
		}
	}
	return out
}
