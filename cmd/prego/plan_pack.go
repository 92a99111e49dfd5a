package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement/pack"
)

// packMaxInput is the maximum document size, in bytes: some million items.
const packMaxInput = 256 << 20

// packAnswer is the printed line. gap_pct is how many percent the bins are above the
// lower bound.
type packAnswer struct {
	Bins        []packAnswerBin `json:"bins"`
	BinsUsed    int             `json:"bins_used"`
	LowerBound  int             `json:"lower_bound"`
	Optimal     bool            `json:"optimal"`
	GapPct      float64         `json:"gap_pct"`
	Unplaceable []string        `json:"unplaceable"`
}

type packAnswerBin struct {
	Items []string           `json:"items"`
	Load  map[string]float64 `json:"load"`
}

func newPlanPackCommand() *cobra.Command {
	var budget time.Duration
	cmd := &cobra.Command{
		Use: "pack", Short: "Pack items into as few servers as can be found (JSON from stdin)", Args: cobra.NoArgs,
		Long: `Read one JSON document from stdin, pack its items into bins of its capacity, and
print one JSON line:

  {"capacity":{"memory":64,"cpu":16},"reserve_pct":30,
   "items":[{"id":"a","org":"x","demand":{"memory":8,"cpu":2}}]}

The packing improves until the budget is spent or its number of bins is proven
least; lower_bound is what no packing can be below. What is wrong with the
document is named and ends with status 2.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if budget < 0 {
				return badUsage(errors.New("--budget must not be negative"))
			}
			body, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), packMaxInput+1))
			if err != nil {
				return fmt.Errorf("stdin: %w", err)
			}
			if len(body) > packMaxInput {
				return badUsage(prego.Errorf(prego.CodeBodyTooLarge, "the document may hold at most %d bytes", packMaxInput))
			}
			problem, err := parsePackProblem(body)
			if err != nil {
				return badUsage(err)
			}
			var more func() bool
			if budget > 0 {
				end := time.Now().Add(budget)
				ctx := cmd.Context()
				more = func() bool { return time.Now().Before(end) && ctx.Err() == nil }
			}
			r, err := pack.Solve(problem, more)
			if err != nil {
				return badUsage(err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(newPackAnswer(r))
		},
	}
	cmd.Flags().DurationVar(&budget, "budget", time.Second, "how long to improve the packing; 0 takes the first")
	return cmd
}

func newPackAnswer(r pack.Result) packAnswer {
	a := packAnswer{
		Bins: make([]packAnswerBin, len(r.Bins)), BinsUsed: len(r.Bins), LowerBound: r.LowerBound,
		Optimal: r.Optimal, Unplaceable: r.Unplaceable,
	}
	for i, b := range r.Bins {
		a.Bins[i] = packAnswerBin(b)
	}
	if r.LowerBound > 0 {
		a.GapPct = 100 * float64(a.BinsUsed-r.LowerBound) / float64(r.LowerBound)
	}
	return a
}

// packDocument is the input document.
type packDocument struct {
	Capacity   map[string]float64 `json:"capacity"`
	ReservePct float64            `json:"reserve_pct"`
	Items      []struct {
		ID     string             `json:"id"`
		Org    string             `json:"org"`
		Demand map[string]float64 `json:"demand"`
	} `json:"items"`
}

// parsePackProblem reads the document, and rejects what a lenient decoder lets pass.
func parsePackProblem(body []byte) (p pack.Problem, err error) {
	var doc packDocument
	if err := api.DecodeStrict(body, &doc); err != nil {
		return p, err
	}
	if doc.Capacity == nil {
		return p, prego.Invalid("capacity", "is required")
	}
	p.Capacity, p.ReservePct = doc.Capacity, doc.ReservePct
	for i, item := range doc.Items {
		switch at := fmt.Sprintf("items[%d]", i); {
		case item.ID == "":
			return p, prego.Invalid(at+".id", "is required")
		case item.Demand == nil:
			return p, prego.Invalid(at+".demand", "is required")
		}
		p.Items = append(p.Items, pack.Item(item))
	}
	return p, nil
}
