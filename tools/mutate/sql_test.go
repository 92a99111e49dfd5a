package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConditions(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]string{
		`SELECT 1`:                         nil,
		`SELECT a FROM x WHERE a = 1`:      {"true for a = 1"},
		`SELECT a = 1 AND b AS c FROM x`:   {"true for a = 1", "true for b"},
		`SELECT a OR b`:                    {"false for a", "false for b"},
		`DELETE FROM x WHERE a AND b OR c`: {"true for a", "true for b", "false for a AND b", "false for c"},
		`SELECT 1 WHERE a BETWEEN 1 AND 2`: {"true for a BETWEEN 1 AND 2"},
		`x WHERE a IS DISTINCT FROM b`:     {"true for a IS DISTINCT FROM b"},
		`x WHERE NOT (a OR b) AND f('a and b')`: {
			"false for a", "false for b", "true for NOT (a OR b)", "true for f('a and b')",
		},
		`SELECT CASE WHEN a AND b THEN c ELSE d END OR e`: {
			"true for a", "true for b", "false for CASE WHEN a AND b THEN c ELSE d END", "false for e",
		},
		`CREATE OR REPLACE FUNCTION f() AS $$ BEGIN IF a THEN PERFORM g(b OR c); END IF; END $$`: {
			"true for a", "false for b", "false for c",
		},
		"x WHERE a -- AND\n AND b ORDER BY c":     {"true for a", "true for b"},
		`CASE k WHEN 'a' THEN b END`:              nil,
		`SELECT a AND b, a AND c`:                 {"true for a", "true for b", "true for a (2)", "true for c"},
		`x JOIN y ON x.a = y.a AND b LEFT JOIN z`: {"true for x.a = y.a", "true for b"},
	} {
		var have []string
		for _, c := range conditions(statement{text: sql}) {
			have = append(have, strings.TrimPrefix(c.String(), ": "))
		}
		require.Equal(t, want, have, sql)
	}
	c := conditions(statement{text: `SELECT a = $1 AND b`})[0]
	require.Equal(t, `SELECT (a = $1 OR true) AND b`, c.mutated())
}

// TestStatementsAndTestsExist: what sql.txt names is there, and each explained mutant of a function can be planted.
func TestStatementsAndTestsExist(t *testing.T) {
	t.Parallel()
	read := func(glob string) string {
		files, err := filepath.Glob(glob)
		require.NoError(t, err)
		var out strings.Builder
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			out.Write(b)
		}
		return out.String()
	}
	store := read("../../store/*.go")
	tests := regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read("../../store/*_test.go"), -1)
	named, fine, err := named(sqlTests)
	require.NoError(t, err)
	planted := map[string]bool{}
	for name, patterns := range named {
		if strings.HasPrefix(name, "sql") {
			require.Regexp(t, `(?m)^(const |\t)`+name+` += `, store)
		} else {
			text, err := os.ReadFile("../../migrations/functions/" + name + ".sql")
			require.NoError(t, err)
			for _, c := range conditions(statement{name, string(text), true}) {
				planted[c.String()] = true
			}
		}
		for p := range strings.SplitSeq(strings.Join(patterns, "|"), "|") {
			found := false
			for _, m := range tests {
				found = found || regexp.MustCompile(p).MatchString(m[1])
			}
			require.True(t, found, "%s: store has no test %s", name, p)
		}
	}
	for mutant, reason := range fine {
		require.NotEmpty(t, reason, mutant)
		require.True(t, planted[mutant] || strings.HasPrefix(mutant, "sql"), "there is no mutant %s", mutant)
	}
}
