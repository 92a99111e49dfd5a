package cli

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestTheContractsCommandsExist: also the commands with code, with the flags that the contract gives them; every
// addition of the program belongs to such a command.
func TestTheContractsCommandsExist(t *testing.T) {
	t.Parallel()
	root := program(New(func(string) string { return "" }), io.Discard)
	known := map[string]bool{}
	for v := range api.EachVerb {
		words := verbWords(v)
		known[strings.Join(words, " ")] = true
		cmd, rest, err := root.Find(words)
		require.NoError(t, err, v.Use)
		require.Empty(t, rest, v.Use)
		for word := range strings.FieldsSeq(v.Use) {
			if flag, ok := strings.CutPrefix(word, "--"); ok && flag != "" {
				require.NotNil(t, cmd.Flag(flag), v.Use)
			}
		}
		for _, fl := range v.Flags {
			if cmd.Flag(fl.Name) == nil && fl.Type == "secret" {
				fl.Name += "-file"
			}
			if !v.Own || cmd.Flag(fl.Name) != nil { // some belong to another operation's command
				require.NotNil(t, cmd.Flag(fl.Name), "%s --%s", v.Use, fl.Name)
			}
			if fl.Default != "" && fl.Type != "secret" {
				require.NoError(t, cmd.Flags().Lookup(fl.Name).Value.Set(fl.Default), "%s --%s", v.Use, fl.Name)
			}
		}
	}
	for words := range hooks {
		require.True(t, known[words], "a hook for %q, which is no command", words)
	}
}

// TestComputedColumnsAreTheContracts: the contract's x-columns name them, and the program computes them.
func TestComputedColumnsAreTheContracts(t *testing.T) {
	t.Parallel()
	for name, c := range computers {
		table := api.TableOf(name)
		require.NotNil(t, table, name)
		text := c([]byte(`{}`))
		for _, column := range everyColumn(table) {
			if column.Code {
				require.NotPanics(t, func() { text(column.Path) }, "%s.%s", name, column.Path)
			}
		}
	}
	for v := range api.EachVerb {
		if v.Table == nil {
			continue
		}
		code := slices.ContainsFunc(everyColumn(v.Table), func(c api.Column) bool { return c.Code })
		require.Equal(t, code, slices.Contains(slices.Collect(maps.Keys(computers)), v.Table.Type), v.Table.Type)
	}
}
