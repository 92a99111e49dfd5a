package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// copied is a size as people read it.
func copied(bytes *int64) string { return fmt.Sprintf("%.1f GB", float64(deref(bytes))/1e9) }

// monthly is a price per month; an unknown price is a dash.
func monthly(amount float64, currency string) string {
	if amount == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %s/month", amount, currency)
}

var planRebalance = hook{
	flags: func(_ *cobra.Command, f *pflag.FlagSet) {
		f.Float64("max-gb", 0, "maximum number of gigabytes that are copied (default: none)")
	},
	body: func(in *call, body object) (any, error) {
		most, err := in.Flags().GetFloat64("max-gb")
		if most != 0 {
			body["max_bytes"] = int64(most * 1e9)
		}
		return body, err
	},
	say: said(func(_ *call, p api.PackingPlan) string {
		if len(p.Moves) == 0 {
			return fmt.Sprintf("nothing to free: %d servers have tenants, who need at least %d", deref(p.Servers), deref(p.Needed))
		}
		return fmt.Sprintf("%d moves of %s free %d of %d servers, %s; the tenants need at least %d",
			len(p.Moves), copied(p.Bytes), len(p.Frees), deref(p.Servers), monthly(deref(p.Monthly), deref(p.Currency)), deref(p.Needed))
	}),
	after: more(func(in *call, p api.PackingPlan) error {
		err := parts(in.printer, "FreedServer", p.Frees)
		if u := deref(p.Unknown); len(u) > 0 {
			fmt.Fprintf(in.w, "left out, since what they use is not known: %v\n", u)
		}
		return err
	}),
}

// startRebalance reads a plan as the API does, since a plan with a misspelt field is another plan.
var startRebalance = hook{
	body: func(in *call, body object) (any, error) {
		file := in.text("plan")
		raw, err := planFile(in.InOrStdin(), file)
		if err != nil {
			return nil, err
		}
		var plan api.PackingPlan
		if err := api.DecodeStrict(raw, &plan); err != nil {
			return nil, &Exit{Code: ExitRefused, Err: fmt.Errorf("%s: %w", file, err)}
		}
		body["plan"] = plan
		return body, nil
	},
	after: func(in *call) error {
		in.args["rebalance"] = idOf(in.answer, "rebalance_id")
		return nil
	},
	watch: watchRebalance,
}

// maxPlan is the maximum size of a plan's file, in bytes.
const maxPlan = 8 << 20

func planFile(in io.Reader, name string) ([]byte, error) {
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

var showMoves = hook{watch: watchRebalance, after: below("RebalanceMove", func(r api.Rebalance) []api.RebalanceMove { return r.Moves })}

var watchRebalance = Watch[api.Rebalance]{
	Use: "watch REBALANCE", Short: "Follow a rebalance", Path: "/v1/rebalances/{rebalance}", Again: "prego rebalance watch {rebalance}",
	Line: func(r api.Rebalance) string {
		return fmt.Sprintf("%d of %d moved, %d moving, %d failed; %d of %d servers free", r.Moved, r.Total, r.Moving, r.Failed, len(r.Freed), len(r.Frees))
	},
	Doing: func(r api.Rebalance) string { return fmt.Sprintf("%s is %s", r.RebalanceId, r.State) },
	Rests: func(r api.Rebalance) bool { return server.RebalanceState(r.State).Ended() },
	Wanted: func(_ *call, r api.Rebalance) bool {
		return server.RebalanceState(r.State) == server.RebalanceDone && r.Failed == 0
	},
	Is: func(r api.Rebalance) standing {
		return standing{fmt.Sprint("rebalance ", r.RebalanceId), r.State, r.Reason, r.Message}
	},
	Done: func(_ *call, r api.Rebalance) string {
		return fmt.Sprintf("%d tenants moved, %d servers free, %s saved", r.Moved, len(r.Freed), monthly(r.Monthly, deref(r.Currency)))
	},
}
