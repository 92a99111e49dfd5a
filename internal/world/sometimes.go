package world

import "fmt"

// sometimes is what a run must have met: how often at least in 100 seeds, in runs of at least
// so many. A run that met less tests less than it says.
var sometimes = []struct {
	what    string
	per100  int
	fromRun int
}{
	// The faults.
	{"fault agent_cut", 20, 20},
	{"fault agent_lost", 30, 20},
	{"fault api_lost", 3, 100},
	{"fault clock_jump", 15, 50},
	{"fault exec_lost", 4, 100},
	{"fault exec_refused", 8, 100},
	{"fault host_full", 1, 200},
	{"fault partition", 1, 200},
	{"fault postgres_away", 5, 100},
	{"fault provider_429", 15, 50},
	{"fault provider_500", 30, 20},
	{"fault provider_late", 2, 100},
	{"fault provider_lost", 10, 50},
	{"fault provider_refused", 30, 20},
	{"fault provider_slow", 20, 20},
	{"fault signal_late", 3, 100},
	{"fault signal_twice", 2, 100},
	{"fault sql_cut", 80, 20},
	{"fault sql_lost", 60, 20},
	{"fault start_away", 30, 20},
	{"fault temporal_away", 20, 20},
	{"fault temporal_lost", 8, 50},
	{"gateway died", 1, 200},
	{"worker died", 30, 20},
	// What comes of them.
	{"a connection was refused during a failover", 20, 100},
	{"a run was signalled", 50, 20},
	{"an activity was tried again", 10, 50},
	{"server attempt_destroyed", 10, 50},
	{"server create_refused", 8, 50},
	{"server server_adopted", 1, 200},
	{"server workflow_restarted", 1, 100},
	{"tenant workflow_restarted", 1, 200},
	// What was asked for, and how it ended.
	{"server active", 100, 20},
	{"server ends failed", 5, 50},
	{"server ends terminated", 15, 50},
	{"server location_spread", 1, 100},
	{"tenant apps_installed", 8, 50},
	{"tenant awaiting_capacity", 15, 50},
	{"tenant ends active", 30, 20},
	{"tenant ends data_purged", 3, 100},
	{"tenant ends failed", 3, 100},
	{"tenant ends suspended", 3, 100},
	{"tenant final_backup", 2, 100},
	{"tenant refused by the quota", 8, 50},
	{"tenant reservation_released", 3, 100},
	{"tenant server_requested", 20, 20},
	{"tenant site_created", 30, 20},
	{"tenant site_dropped", 1, 100},
}

// NotMet says what a run of so many seeds should have met and did not.
func NotMet(met map[string]int, seeds int) []string {
	var out []string
	for _, s := range sometimes {
		if seeds < s.fromRun {
			continue
		}
		if want := max(1, s.per100*seeds/100); met[s.what] < want {
			out = append(out, fmt.Sprintf("%s: %d times in %d seeds, at least %d are expected", s.what, met[s.what], seeds, want))
		}
	}
	return out
}
