package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/cli"
	"github.com/prego/prego/placement/sim"
)

func runSimulate(args ...string) (out string, err error) {
	cmd := newSimulateCommand()
	var o, notes bytes.Buffer
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&o)
	cmd.SetErr(&notes)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return o.String(), err
}

func TestSimulate(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "report.html")
	text, err := runSimulate("--tenants", "300", "--seed", "7", "--html", page)
	require.NoError(t, err)
	require.Contains(t, text, "300 tenants over 91 days, policy shared, algorithm best_fit, seed 7")
	require.Contains(t, text, "invariants: ok")
	again, err := runSimulate("--tenants", "300", "--seed", "7")
	require.NoError(t, err)
	require.Equal(t, text, again)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "<!DOCTYPE html>")

	doc, err := runSimulate("--tenants", "300", "--seed", "7", "--policy", "one_tenant_one_server", "--algorithm", "round_robin", "--json")
	require.NoError(t, err)
	var r sim.Report
	require.NoError(t, json.Unmarshal([]byte(doc), &r))
	require.Equal(t, 300, r.Tenants.Arrived)
	require.Equal(t, uint64(7), r.Seed)
	require.Empty(t, r.Violations)
}

func TestSimulateRefusesBadFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"fewer than none":     {[]string{"--tenants", "-1"}, "--tenants"},
		"too many":            {[]string{"--tenants", "100001"}, "--tenants"},
		"no number":           {[]string{"--tenants", "many"}, "tenants"},
		"a negative seed":     {[]string{"--seed", "-1"}, "seed"},
		"an unknown policy":   {[]string{"--policy", "x"}, "--policy"},
		"an unknown choice":   {[]string{"--algorithm", "x"}, "--algorithm"},
		"a choice of no use":  {[]string{"--algorithm", "new_server"}, "--algorithm"},
		"an unknown flag":     {[]string{"--what"}, "what"},
		"a word":              {[]string{"word"}, "word"},
		"a page in no folder": {[]string{"--tenants", "1", "--html", filepath.Join(t.TempDir(), "no", "x.html")}, "--html"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := runSimulate(tc.args...)
			var exit *cli.Exit
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 2, exit.Code)
			require.ErrorContains(t, err, tc.says)
			require.Empty(t, out)
		})
	}
}

func TestSimulateFailsOnAViolation(t *testing.T) {
	t.Parallel()
	require.NoError(t, verdict(sim.Report{Violations: []string{}}))
	var exit *cli.Exit
	require.ErrorAs(t, verdict(sim.Report{Violations: []string{"x"}}), &exit)
	require.Equal(t, 1, exit.Code)
}
