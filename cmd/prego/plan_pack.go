package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/cli"
	"github.com/prego/prego/placement/pack"
)

// packMaxInput is the largest document that is read, in bytes: some million items.
const packMaxInput = 256 << 20

// packAnswer is the line that is printed. gap_pct is how many percent above the
// lower bound the bins are.
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
				return &cli.Exit{Code: cli.ExitRefused, Err: errors.New("--budget must not be negative")}
			}
			body, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), packMaxInput+1))
			if err != nil {
				return fmt.Errorf("stdin: %w", err)
			}
			if len(body) > packMaxInput {
				return &cli.Exit{Code: cli.ExitRefused, Err: prego.Errorf(prego.CodeBodyTooLarge, "the document may hold at most %d bytes", packMaxInput)}
			}
			problem, err := parsePackProblem(body)
			if err != nil {
				return &cli.Exit{Code: cli.ExitRefused, Err: err}
			}
			var more func() bool
			if budget > 0 {
				end := time.Now().Add(budget)
				ctx := cmd.Context()
				more = func() bool { return time.Now().Before(end) && ctx.Err() == nil }
			}
			r, err := pack.Solve(problem, more)
			if err != nil {
				return &cli.Exit{Code: cli.ExitRefused, Err: err}
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

// parsePackProblem reads the document and refuses what a lenient decoder lets
// pass: fields that are unknown or given twice, null, missing ids, and anything
// after the object.
func parsePackProblem(body []byte) (pack.Problem, error) {
	var p pack.Problem
	if !utf8.Valid(body) || !json.Valid(body) {
		return p, prego.Errorf(prego.CodeInvalidJSON, "stdin must hold one valid JSON document in UTF-8 and nothing after it")
	}
	d := packDecoder{json.NewDecoder(bytes.NewReader(body))}
	d.UseNumber()
	err := d.object("", func(name, at string) (err error) {
		switch name {
		case "capacity":
			p.Capacity, err = d.amounts(at)
		case "reserve_pct":
			p.ReservePct, err = d.number(at)
		case "items":
			err = d.list(at, func(at string) error {
				item, err := d.item(at)
				p.Items = append(p.Items, item)
				return err
			})
		default:
			err = packUnknown(at)
		}
		return err
	})
	switch {
	case err != nil:
		return p, err
	case p.Capacity == nil:
		return p, prego.Invalid("capacity", "is required")
	}
	return p, nil
}

func packUnknown(at string) error {
	return &prego.Error{Code: prego.CodeUnknownField, Field: at, Message: "is not a field of this document"}
}

// packDecoder walks through valid JSON, so that a token is never missing and a key
// always a string.
type packDecoder struct{ *json.Decoder }

func (d packDecoder) item(at string) (pack.Item, error) {
	var item pack.Item
	given := map[string]bool{}
	err := d.object(at, func(name, at string) (err error) {
		given[name] = true
		switch name {
		case "id":
			item.ID, err = d.text(at)
		case "org":
			item.Org, err = d.text(at)
		case "demand":
			item.Demand, err = d.amounts(at)
		default:
			err = packUnknown(at)
		}
		return err
	})
	for _, name := range []string{"id", "demand"} {
		if err == nil && !given[name] {
			return item, prego.Invalid(at+"."+name, "is required")
		}
	}
	if err == nil && item.ID == "" {
		return item, prego.Invalid(at+".id", "must not be empty")
	}
	return item, err
}

func (d packDecoder) object(at string, field func(name, at string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		if at == "" {
			return prego.Errorf(prego.CodeInvalidJSON, "stdin must hold a JSON object")
		}
		return prego.Invalid(at, "must be an object")
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := t.(string)
		path := name
		if at != "" {
			path = at + "." + name
		}
		if seen[name] {
			return &prego.Error{Code: prego.CodeDuplicateField, Field: path, Message: "is given twice"}
		}
		seen[name] = true
		if err := field(name, path); err != nil {
			return err
		}
	}
	_, err := d.Token() // the closing brace
	return err
}

func (d packDecoder) list(at string, element func(at string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return prego.Invalid(at, "must be a list")
	}
	for i := 0; d.More(); i++ {
		if err := element(fmt.Sprintf("%s[%d]", at, i)); err != nil {
			return err
		}
	}
	_, err := d.Token() // the closing bracket
	return err
}

func (d packDecoder) amounts(at string) (map[string]float64, error) {
	out := map[string]float64{}
	err := d.object(at, func(name, at string) (err error) {
		out[name], err = d.number(at)
		return err
	})
	return out, err
}

func (d packDecoder) number(at string) (float64, error) {
	t, err := d.Token()
	n, ok := t.(json.Number)
	if err != nil || !ok {
		return 0, prego.Invalid(at, "must be a number")
	}
	v, err := n.Float64()
	if err != nil {
		return 0, prego.Invalid(at, "must be a number that a float64 holds")
	}
	return v, nil
}

func (d packDecoder) text(at string) (string, error) {
	t, err := d.Token()
	s, ok := t.(string)
	if err != nil || !ok {
		return "", prego.Invalid(at, "must be a string")
	}
	return s, nil
}
