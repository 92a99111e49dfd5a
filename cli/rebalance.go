package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var freedTable = Table[api.FreedServer]{ID: "server_id", Columns: "server_id: frees, monthly, moves, moves_size: to copy", Computed: map[string]func(api.FreedServer) any{
	"moves_size": func(f api.FreedServer) any { return copied(f.Bytes) },
}}

var rebalanceTable = Table[api.Rebalance]{
	ID: "rebalance_id", Columns: "rebalance_id, state, moved, freed_servers: freed, saves, created_at: age, reason, message", Spare: "message, age",
	More: "requested_by: by, at_once, max_failures, remove_servers, waiting, moving, failed, skipped, why, created_at, finished_at",
	Computed: map[string]func(api.Rebalance) any{
		"moved":         func(r api.Rebalance) any { return fmt.Sprintf("%d of %d", r.Moved, r.Total) },
		"freed_servers": func(r api.Rebalance) any { return fmt.Sprintf("%d of %d", len(r.Freed), len(r.Frees)) },
		"saves":         func(r api.Rebalance) any { return monthly(r.Monthly, deref(r.Currency)) },
	},
}

// copied is a size as people read it.
func copied(bytes *int64) string { return fmt.Sprintf("%.1f GB", float64(deref(bytes))/1e9) }

// monthly is a price per month; one that is not known is a dash.
func monthly(amount float64, currency string) string {
	if amount == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %s/month", amount, currency)
}

func rebalanceCommand(c *CLI) *cobra.Command {
	return c.group("rebalance", "Move tenants so that servers become free",
		planRebalance(), startRebalance(c),
		Show[api.Rebalance]{Use: "show REBALANCE…", Short: "Show rebalances, with the moves that are under way or failed", Path: "/v1/rebalances/{rebalance}", Table: rebalanceTable, After: showMoves, Watch: watchRebalance},
		List[api.Rebalance]{Short: "List rebalances, newest first", Path: "/v1/rebalances", Items: "rebalances", Filters: "state", Sorts: "created_at", Table: rebalanceTable},
		Action[api.Rebalance]{
			Use: "cancel REBALANCE", Short: "Cancel a rebalance; moves that are under way end", Method: http.MethodDelete, Path: "/v1/rebalances/{rebalance}", Table: rebalanceTable,
			Say: func(_ *call, r api.Rebalance) string {
				return fmt.Sprintf("cancelled: %s, %d of %d moved", r.RebalanceId, r.Moved, r.Total)
			},
		},
		watchRebalance,
	)
}

func planRebalance() Action[api.PackingPlan] {
	var in api.PackingRequest
	var region, fleet string
	var moves int
	var gigabytesMost float64
	return Action[api.PackingPlan]{
		Use: "plan", Short: "Make a plan of moves that empty app servers; nothing is changed", Path: "/v1/packing-plans",
		Example: "  prego rebalance plan --region eu -o json >plan.json\n  prego rebalance start --plan plan.json --watch",
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&region, "region", "", "only servers of this region")
			f.StringVar(&fleet, "fleet", "", "empty servers of this fleet only")
			f.IntVar(&moves, "max-moves", 0, "maximum number of moves (default: none)")
			f.Float64Var(&gigabytesMost, "max-gb", 0, "maximum number of gigabytes that are copied (default: none)")
		},
		Body: func(*call) (any, error) {
			if region != "" {
				in.Region = new(api.Region(region))
			}
			if fleet != "" {
				in.FleetId = new(api.FleetID(fleet))
			}
			if moves != 0 {
				in.MaxMoves = &moves
			}
			if gigabytesMost != 0 {
				in.MaxBytes = new(int64(gigabytesMost * 1e9))
			}
			return in, nil
		},
		Table: Table[api.PackingPlan]{Columns: "servers, needed, bytes, monthly"},
		Say: func(_ *call, p api.PackingPlan) string {
			if len(p.Moves) == 0 {
				return fmt.Sprintf("nothing to free: %d servers have tenants, who need at least %d", deref(p.Servers), deref(p.Needed))
			}
			return fmt.Sprintf("%d moves of %s free %d of %d servers, %s; the tenants need at least %d",
				len(p.Moves), copied(p.Bytes), len(p.Frees), deref(p.Servers), monthly(deref(p.Monthly), deref(p.Currency)), deref(p.Needed))
		},
		After: func(in *call, p api.PackingPlan) {
			_ = rows(in.printer, freedTable, p.Frees) // its columns are all there
			if u := deref(p.Unknown); len(u) > 0 {
				fmt.Fprintf(in.w, "left out, since what they use is not known: %v\n", u)
			}
		},
	}
}

func startRebalance(c *CLI) Action[api.Rebalance] {
	var in api.CreateRebalance
	var file, reason string
	var atOnce, failures int
	var remove bool
	return Action[api.Rebalance]{
		Use: "start", Short: "Run a plan that prego rebalance plan -o json has written", Path: "/v1/rebalances",
		Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&file, "plan", "", "file that holds the plan; - is standard input")
			f.IntVar(&atOnce, "at-once", 4, "how many tenants are moving at a time")
			f.IntVar(&failures, "max-failures", 0, "how many moves may fail before it stops")
			f.BoolVar(&remove, "remove-servers", false, "delete the servers that are freed; a fleet keeps its minimum size")
			f.StringVar(&reason, "reason", "", "reason for the record")
			required(cmd, "plan")
		},
		Body: func(v *call) (any, error) {
			body, err := c.planFile(v.InOrStdin(), file)
			if err != nil {
				return nil, err
			}
			if err := api.DecodeStrict(body, &in.Plan); err != nil {
				return nil, &Exit{Code: ExitRefused, Err: fmt.Errorf("%s: %w", file, err)}
			}
			in.AtOnce, in.MaxFailures, in.RemoveServers = &atOnce, &failures, &remove
			if reason != "" {
				in.Reason = &reason
			}
			return in, nil
		},
		Table: rebalanceTable, Watch: watchRebalance,
		After: func(in *call, r api.Rebalance) { in.args["rebalance"] = r.RebalanceId },
		Say: func(_ *call, r api.Rebalance) string {
			return fmt.Sprintf("accepted: %s, %d moves, %d at once", r.RebalanceId, r.Total, r.AtOnce)
		},
	}
}

// maxPlan is the maximum size of a plan's file, in bytes.
const maxPlan = 8 << 20

func (c *CLI) planFile(in io.Reader, name string) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, &Exit{Code: ExitRefused, Err: err}
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	body, err := io.ReadAll(io.LimitReader(in, maxPlan+1))
	if err == nil && len(body) > maxPlan {
		err = errors.New("the plan is larger than 8 MiB")
	}
	return body, err
}

func showMoves(in *call, r api.Rebalance) {
	if len(r.Moves) > 0 {
		fmt.Fprintln(in.w)
		_ = rows(in.printer, Table[api.RebalanceMove]{ID: "seq", Columns: "seq, tenant_id, from, to, state, move_state: step, reason, message", Spare: "message"}, r.Moves)
	}
}

var watchRebalance = Watch[api.Rebalance]{
	Use: "watch REBALANCE", Short: "Follow a rebalance", Path: "/v1/rebalances/{rebalance}", Again: "prego rebalance watch {rebalance}",
	Lines: func(r api.Rebalance) []line {
		text := fmt.Sprintf("%d of %d moved, %d moving, %d failed; %d of %d servers free", r.Moved, r.Total, r.Moving, r.Failed, len(r.Freed), len(r.Frees))
		return []line{{key: text, at: time.Now(), text: text}}
	},
	Doing: func(r api.Rebalance) string { return fmt.Sprintf("%s is %s", r.RebalanceId, r.State) },
	Rests: func(r api.Rebalance) bool { return server.RebalanceState(r.State).Ended() },
	Outcome: func(_ *call, r api.Rebalance) error {
		if server.RebalanceState(r.State) != server.RebalanceDone || r.Failed > 0 {
			return fmt.Errorf("rebalance %s is %s%s", r.RebalanceId, r.State, reasons(r.Reason, r.Message))
		}
		return nil
	},
	Done: func(_ *call, r api.Rebalance) string {
		return fmt.Sprintf("%d tenants moved, %d servers free, %s saved", r.Moved, len(r.Freed), monthly(r.Monthly, deref(r.Currency)))
	},
}
