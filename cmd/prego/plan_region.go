package main

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/region"
)

func newPlanRegionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "region < ACTION.json", Short: "Plan in which regions a fleet grows or shrinks", Args: cobra.NoArgs,
		Long: `Read one JSON document from stdin and print the action's data after the region
placement policy has seen it, as one JSON line:

  {"action":"CLUSTER_SCALE_OUT","policy":{"regions":[{"name":"RegionOne","weight":100,"cap":-1}]},
   "current":{"RegionOne":3},"inputs":{"count":2}}

A plan that cannot be made is an answer, too: its status is ERROR. What is wrong with
the document is named and ends with status 2.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return planRegion(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
}

func planRegion(in io.Reader, out io.Writer) error {
	var doc region.Document
	if err := readDocument(in, &doc); err != nil {
		return err
	}
	r, err := doc.Build()
	if err != nil {
		return &cli.Exit{Code: cli.ExitRefused, Err: err}
	}
	return printLine(out, region.Evaluate(r))
}

func newPlanResizeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resize < RESIZE.json", Short: "Calculate the size that a resize results in", Args: cobra.NoArgs,
		Long: `Read one JSON document from stdin and print what the resize comes to, as one JSON
line:

  {"adjustment_type":"CHANGE_IN_PERCENTAGE","number":25,"min_step":2,"current":10,
   "cluster":{"min_size":1,"max_size":20},"global_max":1000}

strict is true unless the document says otherwise. A refused resize is an answer, too:
its status is ERROR, with a code. What is wrong with the document is named and ends
with status 2; a min_size above its max_size does both.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return planResize(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
}

func planResize(in io.Reader, out io.Writer) error {
	var doc region.ResizeDocument
	if err := readDocument(in, &doc); err != nil {
		return err
	}
	r, b, err := doc.Build()
	if err != nil {
		return &cli.Exit{Code: cli.ExitRefused, Err: err}
	}
	result, refused := region.ParseResize(r, b)
	if err := printLine(out, region.NewResizeAnswer(result, refused)); err != nil {
		return err
	}
	// The document is wrong in itself, whatever the fleet.
	if refused != nil && prego.CodeOf(refused) == region.CodeMinAboveMax {
		return &cli.Exit{Code: cli.ExitRefused, Err: refused}
	}
	return nil
}

func newPlanConstraintCommand() *cobra.Command {
	return &cobra.Command{
		Use: "constraint < SERVERS.json", Short: "List the servers that satisfy a constraint and have room", Args: cobra.NoArgs,
		Long: `Read one JSON document from stdin and print which servers are eligible, those that
satisfy the constraint and have room, as one JSON line:

  {"servers":[{"id":"a","tags":["staging"],"fits":true}],
   "constraint":{"require":["staging"],"disallow":[]}}

With none, error is cell_mismatch when no server satisfies the constraint, and
insufficient_resources when some do but lack room. What is wrong with the document is
named and ends with status 2.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return planConstraint(cmd.InOrStdin(), cmd.OutOrStdout()) },
	}
}

func planConstraint(in io.Reader, out io.Writer) error {
	var doc placement.ConstraintDocument
	if err := readDocument(in, &doc); err != nil {
		return err
	}
	servers, constraint, err := doc.Build()
	if err != nil {
		return &cli.Exit{Code: cli.ExitRefused, Err: err}
	}
	return printLine(out, placement.NewConstraintAnswer(placement.Eligible(servers, constraint)))
}

func printLine(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
