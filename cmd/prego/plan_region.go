package main

import (
	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/region"
)

func newPlanRegionCommand() *cobra.Command {
	return planVerb("region < ACTION.json", "Plan in which regions a fleet grows or shrinks",
		`Read one JSON document from stdin and print the action's data after the region
placement policy has seen it, as one JSON line:

  {"action":"CLUSTER_SCALE_OUT","policy":{"regions":[{"name":"RegionOne","weight":100,"cap":-1}]},
   "current":{"RegionOne":3},"inputs":{"count":2}}

A plan that cannot be made is an answer, too: its status is ERROR. What is wrong with
the document is named and ends with status 2.`, func(doc region.Document, emit func(any) error) error {
			r, err := doc.Build()
			if err != nil {
				return err
			}
			return emit(region.Evaluate(r))
		})
}

func newPlanResizeCommand() *cobra.Command {
	return planVerb("resize < RESIZE.json", "Calculate the size that a resize results in",
		`Read one JSON document from stdin and print what the resize comes to, as one JSON
line:

  {"adjustment_type":"CHANGE_IN_PERCENTAGE","number":25,"min_step":2,"current":10,
   "cluster":{"min_size":1,"max_size":20},"global_max":1000}

strict is true unless the document says otherwise. A refused resize is an answer, too:
its status is ERROR, with a code. What is wrong with the document is named and ends
with status 2; a min_size above its max_size does both.`, func(doc region.ResizeDocument, emit func(any) error) error {
			r, b, err := doc.Build()
			if err != nil {
				return err
			}
			result, refused := region.ParseResize(r, b)
			if err := emit(region.NewResizeAnswer(result, refused)); err != nil {
				return err
			}
			// The document is wrong in itself, whatever the fleet.
			if refused != nil && prego.CodeOf(refused) == region.CodeMinAboveMax {
				return refused
			}
			return nil
		})
}

func newPlanConstraintCommand() *cobra.Command {
	short := "List the servers that satisfy a constraint and have room"
	return planVerb("constraint < SERVERS.json", short,
		`Read one JSON document from stdin and print which servers are eligible, those that
satisfy the constraint and have room, as one JSON line:

  {"servers":[{"id":"a","tags":["staging"],"fits":true}],
   "constraint":{"require":["staging"],"disallow":[]}}

With none, error is cell_mismatch when no server satisfies the constraint, and
insufficient_resources when some do but lack room. What is wrong with the document is
named and ends with status 2.`, func(doc placement.ConstraintDocument, emit func(any) error) error {
			servers, constraint, err := doc.Build()
			if err != nil {
				return err
			}
			return emit(placement.NewConstraintAnswer(placement.Eligible(servers, constraint)))
		})
}
