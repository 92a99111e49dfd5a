package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/cli"
)

func planPack(stdin string, args ...string) (string, error) {
	cmd := newPlanPackCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

func TestPlanPack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stdin, stdout string
		args          []string
	}{
		"two bins and one item too large": {
			stdin: `{"capacity":{"memory":10,"cpu":4},"reserve_pct":30,"items":[` +
				`{"id":"a","org":"x","demand":{"memory":4,"cpu":1}},{"id":"b","demand":{"memory":3}},{"id":"c","demand":{"memory":7}},{"id":"d","demand":{"cpu":3}}]}`,
			stdout: `{"bins":[{"items":["a","b"],"load":{"cpu":1,"memory":7}},{"items":["c"],"load":{"cpu":0,"memory":7}}],` +
				`"bins_used":2,"lower_bound":2,"optimal":true,"gap_pct":0,"unplaceable":["d"]}`,
		},
		"nothing to pack": {
			stdin: `{"capacity":{"memory":10}}` + "\n", stdout: `{"bins":[],"bins_used":0,"lower_bound":0,"optimal":true,"gap_pct":0,"unplaceable":[]}`,
			args: []string{"--budget", "0"},
		},
		"not improved": {
			stdin: `{"capacity":{"m":1},"items":[{"id":"a","demand":{"m":1}}]}`, args: []string{"--budget=0s"},
			stdout: `{"bins":[{"items":["a"],"load":{"m":1}}],"bins_used":1,"lower_bound":1,"optimal":true,"gap_pct":0,"unplaceable":[]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := planPack(c.stdin, c.args...)
			require.NoError(t, err)
			require.Equal(t, c.stdout+"\n", out)
			require.True(t, json.Valid([]byte(out)))
		})
	}
}

func TestPlanPackRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stdin string
		code  prego.Code
		field string
	}{
		"nothing":                 {``, prego.CodeInvalidJSON, ""},
		"half a document":         {`{"capacity":{"m":1}`, prego.CodeInvalidJSON, ""},
		"trailing data":           {`{"capacity":{"m":1}} {}`, prego.CodeInvalidJSON, ""},
		"a list":                  {`[]`, prego.CodeInvalidJSON, ""},
		"null":                    {`null`, prego.CodeInvalidJSON, ""},
		"not UTF-8":               {"{\"capacity\":{\"\xff\":1}}", prego.CodeInvalidJSON, ""},
		"unknown field":           {`{"capacity":{"m":1},"reserve":1}`, prego.CodeUnknownField, "reserve"},
		"another case":            {`{"Capacity":{"m":1}}`, prego.CodeUnknownField, "Capacity"},
		"unknown field of item":   {`{"capacity":{"m":1},"items":[{"id":"a","demand":{},"size":1}]}`, prego.CodeUnknownField, "items[0].size"},
		"field given twice":       {`{"capacity":{"m":1},"capacity":{"m":1}}`, prego.CodeDuplicateField, "capacity"},
		"dimension given twice":   {`{"capacity":{"m":1,"\u006d":1}}`, prego.CodeDuplicateField, "capacity.m"},
		"demand given twice":      {`{"capacity":{"m":1},"items":[{"id":"a","demand":{"m":1,"m":1}}]}`, prego.CodeDuplicateField, "items[0].demand.m"},
		"no capacity":             {`{"items":[]}`, prego.CodeInvalidField, "capacity"},
		"capacity null":           {`{"capacity":null}`, prego.CodeInvalidField, "capacity"},
		"capacity of a string":    {`{"capacity":{"m":"1"}}`, prego.CodeInvalidField, "capacity.m"},
		"capacity beyond float64": {`{"capacity":{"m":1e999}}`, prego.CodeInvalidField, "capacity.m"},
		"capacity 0":              {`{"capacity":{"m":0}}`, prego.CodeInvalidField, "capacity.m"},
		"reserve 100":             {`{"capacity":{"m":1},"reserve_pct":100}`, prego.CodeInvalidField, "reserve_pct"},
		"items an object":         {`{"capacity":{"m":1},"items":{}}`, prego.CodeInvalidField, "items"},
		"an item null":            {`{"capacity":{"m":1},"items":[null]}`, prego.CodeInvalidField, "items[0]"},
		"no id":                   {`{"capacity":{"m":1},"items":[{"demand":{}}]}`, prego.CodeInvalidField, "items[0].id"},
		"id empty":                {`{"capacity":{"m":1},"items":[{"id":"","demand":{}}]}`, prego.CodeInvalidField, "items[0].id"},
		"id a number":             {`{"capacity":{"m":1},"items":[{"id":1,"demand":{}}]}`, prego.CodeInvalidField, "items[0].id"},
		"org null":                {`{"capacity":{"m":1},"items":[{"id":"a","org":null,"demand":{}}]}`, prego.CodeInvalidField, "items[0].org"},
		"no demand":               {`{"capacity":{"m":1},"items":[{"id":"a"}]}`, prego.CodeInvalidField, "items[0].demand"},
		"demand negative":         {`{"capacity":{"m":1},"items":[{"id":"a","demand":{"m":-1}}]}`, prego.CodeInvalidField, "items[0].demand.m"},
		"unknown dimension":       {`{"capacity":{"m":1},"items":[{"id":"a","demand":{"n":1}}]}`, prego.CodeInvalidField, "items[0].demand.n"},
		"ids given twice":         {`{"capacity":{"m":1},"items":[{"id":"a","demand":{}},{"id":"a","demand":{}}]}`, prego.CodeInvalidField, "items[1].id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := planPack(c.stdin)
			require.Empty(t, out)
			var exit *cli.Exit
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 2, exit.Code)
			var e *prego.Error
			require.ErrorAs(t, exit.Err, &e)
			require.Equal(t, c.code, e.Code)
			require.Equal(t, c.field, e.Field)
		})
	}
	_, err := planPack(`{"capacity":{"m":1}}`, "--budget=-1s")
	var exit *cli.Exit
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.Code)
}
