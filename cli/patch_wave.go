package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

var patchWaveTable = Table[api.PatchWave]{
	ID: "wave_id", Columns: "wave_id, state, done, failed, installed, fleets, requested_by: by, created_at: age, took", Spare: "took, by, fleets, installed",
	More: "why, servers, cancelled, created_at, finished_at",
	Computed: map[string]func(api.PatchWave) any{
		"state": func(w api.PatchWave) any {
			if w.FinishedAt == nil {
				return "running"
			}
			return "ended"
		},
		"done": func(w api.PatchWave) any { return fmt.Sprintf("%d of %d", w.Done, w.Servers) },
		"took": func(w api.PatchWave) any {
			if w.FinishedAt == nil {
				return nil
			}
			return w.FinishedAt.Sub(w.CreatedAt).Round(1e9).String()
		},
	},
}

func patchWaveCommand(c *CLI) *cobra.Command {
	return c.group("patch-wave", "Show waves of security updates: servers that were patched together",
		List[api.PatchWave]{Short: "List waves of security updates, newest first", Path: "/v1/patch-waves", Items: "patch_waves", Filters: "requested_by", Sorts: "created_at", Table: patchWaveTable},
		Show[api.PatchWave]{Use: "show PATCH-WAVE…", Short: "Show waves with their servers, what came of each, and the timeline", Path: "/v1/patch-waves/{patch-wave}", Table: patchWaveTable, After: showWave},
	)
}

func showWave(in *call, w api.PatchWave) {
	if members := deref(w.Members); len(members) > 0 {
		fmt.Fprintln(in.w)
		_ = rows(in.printer, Table[api.PatchWaveServer]{ID: "server_id", Columns: "server_id, status, installed, started_at, finished_at, reason, message", Spare: "message", Computed: map[string]func(api.PatchWaveServer) any{
			"installed": func(s api.PatchWaveServer) any {
				if s.Patched == nil {
					return nil
				}
				return s.Patched.Installed
			},
		}}, members) // its columns are all there
	}
	if steps := deref(w.Timeline); len(steps) > 0 {
		fmt.Fprintln(in.w)
		_ = rows(in.printer, Table[api.PatchWaveStep]{ID: "server_id", Columns: "at, server_id, step, reason, message", Spare: "reason"}, steps)
	}
}
