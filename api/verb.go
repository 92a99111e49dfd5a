package api

import (
	"slices"
	"strings"

	"github.com/prego/prego/ops/impact"
)

// Verb is a command of the program, as the contract describes it (x-cli). verbs.gen.go has all of them: reading the
// contract takes longer than most commands do.
type Verb struct {
	Operation, Method, Path string
	Use                     string // words and arguments: "server cordon SERVER…"
	Aliases                 []string
	Short, Long, Example    string
	Args, Flags             []Flag
	Rest                    string // the property that the arguments behind -- are
	Set                     []Flag // properties with one value (Default), which make a command of a part of an operation
	Body                    string // "", optional or required
	Items                   string // of a list: the field with the items
	Paged                   bool
	Limit                   int          // of a list: the default of --limit
	Sorts                   []string     // of a list: what the API sorts by
	Table                   *Table       // of the answer, or of its items
	Say                     string       // a text in place of the table
	Impact                  impact.Class // the worst that it may do
	Own                     bool         // the program has code for it
	Page                    bool         // the console has a page of what it lists or shows
}

// Purpose is a group of commands in the help.
type Purpose struct {
	Title    string
	Commands []string // their first words
}

// Flag is a flag or an argument, and where its value goes.
type Flag struct {
	Name, Short, Help string
	In                string // path, query or body
	Field             string // a parameter, or the path of a property: "spec.tags"
	Type              string // bool, int, number, list, ints, map, duration, memory, disk, secret, share, json or ""
	Values            []string
	Many              bool // several values, with commas
	Default           string
	Always            bool // the default is also sent
	Empty             bool // an empty text is also sent
	Required          bool
}

// Put sets the property at a path of a body, like a flag's Field.
func Put(body map[string]any, path string, v any) {
	parts := strings.Split(path, ".")
	for _, name := range parts[:len(parts)-1] {
		next, ok := body[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			body[name] = next
		}
		body = next
	}
	body[parts[len(parts)-1]] = v
}

// Table is how things are shown, as their schema describes it (x-columns).
type Table struct {
	Type  string // the schema
	ID    string
	List  []Column
	More  []Column // of a single thing
	Spare []string // titles of columns that narrow terminals leave out, the least important first
}

// Column is a column of a table. Text is a template in place of a field; Code has no field either: the program
// computes it.
type Column struct {
	Path, Title, Format, Text string
	Code                      bool
}

// Columns reads "a, b.c: title, d|format: title". A title is by default made from the field's name.
func Columns(spec string) []Column {
	var out []Column
	for part := range strings.SplitSeq(spec, ",") {
		path, title, titled := strings.Cut(strings.TrimSpace(part), ":")
		path, format, _ := strings.Cut(path, "|")
		if path == "" {
			continue
		}
		if !titled {
			title = path[strings.LastIndexByte(path, '.')+1:]
			for _, end := range []string{"_id", "_at", "_bytes", "_gb"} {
				title = strings.TrimSuffix(title, end)
			}
			title = strings.ReplaceAll(title, "_", " ")
		}
		out = append(out, Column{Path: path, Title: strings.TrimSpace(title), Format: format})
	}
	return out
}

// VerbsOf are the commands of an operation.
func VerbsOf(operation string) []*Verb {
	i, _ := slices.BinarySearchFunc(verbs, operation, func(v Verb, id string) int { return strings.Compare(v.Operation, id) })
	var out []*Verb
	for ; i < len(verbs) && verbs[i].Operation == operation; i++ {
		out = append(out, &verbs[i])
	}
	return out
}

// TableOf is how things of a schema are shown, nil if the contract sets nothing.
func TableOf(schema string) *Table {
	for i := range tables {
		if tables[i].Type == schema {
			return &tables[i]
		}
	}
	return nil
}

// EachVerb yields the commands of all operations.
func EachVerb(yield func(*Verb) bool) {
	for i := range verbs {
		if !yield(&verbs[i]) {
			return
		}
	}
}
