package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/placement"
)

// newPlanCommand holds the verbs that decide without a server: one JSON document in,
// JSON lines out.
func newPlanCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "plan", Short: "Decide on a fleet given as JSON, without a database or a network"}
	cmd.AddCommand(newPlanPlaceCommand(), newPlanPackCommand(), newPlanRegionCommand(), newPlanResizeCommand(), newPlanConstraintCommand())
	return cmd
}

// planVerb is a command that reads one strict JSON document and prints what answer makes of it, as JSON lines. An
// error of answer is the document's.
func planVerb[D any](use, short, long string, answer func(doc D, emit func(any) error) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var doc D
			if err := readDocument(cmd.InOrStdin(), &doc); err != nil {
				return err
			}
			w := bufio.NewWriter(cmd.OutOrStdout())
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			refused := answer(doc, enc.Encode)
			return cmp.Or(w.Flush(), badUsage(refused))
		},
	}
}

// maxDocument is the maximum document size, in bytes.
const maxDocument = 1 << 30

// readDocument reads one strict JSON document.
func readDocument(in io.Reader, into any) error {
	b, err := io.ReadAll(io.LimitReader(in, maxDocument))
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	return badUsage(api.DecodeStrict(b, into))
}

func newPlanPlaceCommand() *cobra.Command {
	const short = "Place requests on a fleet, in order, one JSON line each"
	const long = short + `.

What "policy" leaves out is as the environment sets it (PREGO_SHARED_PLACEMENT_LEGACY,
PLACEMENT_…): run it with the settings of the API and worker.`
	return planVerb("place < FLEET.json", short, long, func(doc placement.Document, emit func(any) error) error {
		active, err := config.PlacementPolicy()
		if err != nil {
			return err
		}
		policy, data, requests, err := doc.Build(active)
		if err != nil {
			return err
		}
		fleet := placement.NewSnapshot(policy, data)
		for _, r := range requests {
			d := fleet.Decide(r)
			fleet.Apply(r, d)
			if err := emit(placement.LineOf(r, d)); err != nil {
				return err
			}
		}
		return nil
	})
}
