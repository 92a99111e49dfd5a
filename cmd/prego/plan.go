package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/placement"
)

// newPlanCommand holds the verbs that decide without a server: one JSON document in,
// JSON lines out.
func newPlanCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "plan", Short: "Decide on a fleet given as JSON, without a database or a network"}
	cmd.AddCommand(newPlanPlaceCommand(), newPlanPackCommand(), newPlanRegionCommand(), newPlanResizeCommand(), newPlanConstraintCommand())
	return cmd
}

func newPlanPlaceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "place < FLEET.json", Short: "Place requests on a fleet, in order, one JSON line each", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return planPlace(cmd.InOrStdin(), cmd.OutOrStdout()) },
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
	if err := api.DecodeStrict(b, into); err != nil {
		return &cli.Exit{Code: cli.ExitRefused, Err: err}
	}
	return nil
}

func planPlace(in io.Reader, out io.Writer) error {
	var doc placement.Document
	if err := readDocument(in, &doc); err != nil {
		return err
	}
	policy, data, requests, err := doc.Build()
	if err != nil {
		return &cli.Exit{Code: cli.ExitRefused, Err: err}
	}
	fleet := placement.NewSnapshot(policy, data)
	w := bufio.NewWriter(out)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, r := range requests {
		d := fleet.Decide(r)
		fleet.Apply(r, d)
		if err := enc.Encode(placement.LineOf(r, d)); err != nil {
			return err
		}
	}
	return w.Flush()
}
