package docsrun

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// md writes a sample; ' stands for a back quote.
func md(lines ...string) string { return strings.ReplaceAll(strings.Join(lines, "\n"), "'", "`") }

func TestParse(t *testing.T) {
	t.Parallel()
	d := parse("a.md", md("# A", "", "'''sh", "# said", "one \\", "  two   # three", "", "{ three", "}", "'''",
		"<!-- run: hidden -->", "'''console", "$ four", "out", "", "$ five <<E", "x", "E", "'''",
		"<!-- not run: costs money -->", "", "'''sh", "six", "seven", "'''", "'''json", `{"a":1}`, `{"b":2}`, "'''"))
	require.Empty(t, d.problems)
	require.Equal(t, []command{
		{at: "a.md:5", text: "one \\\n  two   # three"},
		{at: "a.md:8", text: "{ three\n}"},
		{at: "a.md:11", text: "hidden"},
		{at: "a.md:13", text: "four", want: []string{"out", ""}},
		{at: "a.md:16", text: "five <<E\nx\nE", want: []string{}},
	}, d.commands)
	require.Equal(t, []mark{{at: "a.md:20", why: "costs money", commands: 2, lines: []string{"six", "seven"}}}, d.marks)
}

// TestBadDocumentsAreFound: the documents' check can fail.
func TestBadDocumentsAreFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		md("'''", "prego x", "'''"):                                           "a.md:1: the fence has no language",
		md("", "'''bash", "x", "'''"):                                         `a.md:2: language "bash" is neither`,
		md("'''text", "prego server list", "'''"):                             "a.md:1: a text fence shows commands",
		md("'''text", "$ ls", "'''"):                                          "a.md:1: a text fence shows commands",
		md("<!-- not run: it is data -->", "'''text", "x", "'''"):             "a.md:2: a text fence is not run anyway",
		md("<!-- not run: -->", "'''sh", "x", "'''"):                          `a.md:1: "not run" has no text`,
		md("<!-- not run: a -->", "", "words", "'''sh", "x", "'''"):           "a.md:3: an instruction stands right before a fence",
		md("<!-- not run: a -->", "<!-- not run: b -->", "'''sh", "x", "'''"): "a.md:2: two reasons",
		md("<!-- run: a -->", "<!-- not run: b -->", "'''sh", "x", "'''"):     "a.md:3: a fence that is not run needs no setup",
		md("'''console", "x", "'''"):                                          "a.md:1: a console begins with",
		md("'''json", "{", "'''"):                                             "a.md:1: this is not JSON",
		md("'''sh", "x"):                                                      "a.md:1: the fence has no end",
	} {
		d := parse("a.md", text)
		require.Len(t, d.problems, 1, text)
		require.Contains(t, d.problems[0], want, text)
	}
}

// TestBadCommandsAreFound: so can each of its commands.
func TestBadCommandsAreFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"'''sh\nx=one; cd /\n'''\n'''console\n$ echo $x $PWD\none /\n'''":                "", // variables and directories carry on
		"'''console\n$ echo 1.25s t-abcdefgh2345 \"a  b\"\n9.1s t-zzzzzzzzzzzz a b\n'''": "",
		"'''console\n$ seq 5\n1\n…\n5\n'''":                                              "",
		"'''console\n$ echo \\{\\\"a\\\":1,\\\"b\\\":2\\}\n{\"a\":1,\n  \"b\":…}\n'''":   "",
		"'''console\n$ echo prego: no; false\nprego: no\n'''":                            "",
		"<!-- run: y=two -->\n'''console\n$ echo $y\ntwo\n'''":                           "",
		"'''sh\nfalse\n'''":                                       "exits with 1",
		"'''sh\nno-such-program\n'''":                             "exits with 127",
		"'''sh\nfalse | true\nset -o pipefail\nfalse | true\n'''": "exits with 1",
		"'''console\n$ echo one\ntwo\n'''":                        "answers something else",
		"'''console\n$ seq 2\n1\n'''":                             "answers something else",
		"'''console\n$ echo one\n'''":                             "answers something else",
		"'''console\n$ echo 1.25s\nsoon\n'''":                     "answers something else",
		"'''console\n$ echo prego: no\nprego: no\n'''":            "is not refused",
		"'''console\n$ false\n{\"status\":422}\n'''":              "answers something else",
		"'''sh\nexit 0\n'''":                                      "ended the shell",
		"'''sh\nsleep 600\n'''":                                   "does not end",
	} {
		t.Run("sample", func(t *testing.T) {
			t.Parallel()
			patience := time.Minute
			if want == "does not end" {
				patience = time.Second
			}
			d := parse("a.md", md(text))
			require.Empty(t, d.problems)
			got := play(newSession(t, environment(t, "/", "/")), d, patience, t.Logf)
			if want == "" {
				require.Empty(t, got, text)
				return
			}
			require.Len(t, got, 1, text)
			require.Contains(t, got[0], want, text)
		})
	}
}
