package attention

import (
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite what docs/runbook.md takes from the kinds")

const (
	runbook = "../../docs/runbook.md"
	// byHand begins the part of a section that people write.
	byHand = "**Affected:** "
)

// facts is the part of a kind's section that repeats the program.
func facts(k Kind) string {
	s := specs[k]
	words := strings.NewReplacer("{id}", "ID", "{name}", "NAME", "{org}", "ORG", "{by}", "REGION", "{owner}", "BACKUP", "{reason}", "REASON",
		"{losses}", "LOSSES")
	fill := func(text string) string { return words.Replace(text) }
	code := func(reasons []string) string { return "`" + strings.Join(reasons, "`, `") + "`" }
	severity := string(s.severity)
	if len(s.critical) > 0 {
		severity += "; critical for " + code(s.critical)
	}
	if slices.Contains(s.harmful, "") {
		severity += "; critical if customers are affected"
	} else if len(s.harmful) > 0 {
		severity += "; critical for " + code(s.harmful) + " if customers are affected"
	}
	says := fill(s.says)
	out := []string{strings.ToUpper(severity[:1]) + severity[1:] + ". **" + strings.ToUpper(says[:1]) + says[1:] + ".**"}
	todo := fill(s.todo)
	if s.kept != nil {
		todo = fill(s.kept[""])
	}
	out = append(out, wrap("", todo))
	list := []string{}
	for _, reason := range slices.Sorted(maps.Keys(s.todos)) {
		list = append(list, wrap("  ", "- `"+reason+"`: "+fill(s.todos[reason])))
	}
	for _, reason := range slices.Sorted(maps.Keys(s.kept)) {
		if reason != "" {
			list = append(list, wrap("  ", "- `"+reason+"`: "+fill(s.kept[reason])))
		}
	}
	if len(list) > 0 {
		out = append(out, strings.Join(list, "\n"))
	}
	var commands []string
	for _, subject := range slices.Sorted(maps.Keys(s.actions)) {
		for _, a := range append(slices.Clone(s.actions[subject]), s.give...) {
			c := operation.ReplaceAllString(fill(a.CLI), "prego operation show KIND/ID")
			if subject == "volume" && s.actions["tenant"] != nil || k == OperationStuck && c != "prego operation show KIND/ID" {
				continue // like those of a tenant, or of the thing itself
			}
			if !slices.Contains(commands, "`"+c+"`") {
				commands = append(commands, "`"+c+"`")
			}
		}
	}
	out = append(out, wrap("", strings.Join(commands, ", ")))
	out[0] = wrap("", out[0])
	return strings.Join(out, "\n\n") + "\n\n"
}

var operation = regexp.MustCompile(`^prego operation show .*$`)

// wrap breaks a paragraph before 120 columns, but not in code.
func wrap(indent, text string) string {
	var out, line strings.Builder
	for _, word := range regexp.MustCompile("(?:`[^`]*`|[^ `])+").FindAllString(text, -1) {
		if line.Len() > 0 && line.Len()+1+len(word) > 118 {
			out.WriteString(line.String() + "\n")
			line.Reset()
			line.WriteString(indent + word)
			continue
		}
		if line.Len() > 0 {
			line.WriteByte(' ')
		}
		line.WriteString(word)
	}
	return out.String() + line.String()
}

// TestTheRunbookHasEveryKind: each kind has one section, no section is about anything else, and what a section repeats
// of the program is what the program prints. -update writes that part; people write the rest.
func TestTheRunbookHasEveryKind(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(runbook)
	require.NoError(t, err)
	head, _, found := strings.Cut(string(text), "\n## ")
	require.True(t, found)
	hand := map[string]string{}
	var order []string
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		require.NotContains(t, hand, name, "there twice")
		_, own, _ := strings.Cut(body, byHand)
		hand[name] = strings.TrimSpace(own)
		order = append(order, name)
	}
	var kinds []string
	for _, k := range Kinds() {
		kinds = append(kinds, string(k))
	}
	if !*update {
		require.ElementsMatch(t, kinds, order, "the kinds, and the sections of docs/runbook.md")
		require.IsIncreasing(t, order)
	}
	var want strings.Builder
	want.WriteString(strings.TrimSpace(head) + "\n")
	for _, k := range slices.Sorted(slices.Values(kinds)) {
		want.WriteString("\n## " + k + "\n\n" + facts(Kind(k)) + byHand + hand[k] + "\n")
	}
	if *update {
		require.NoError(t, os.WriteFile(runbook, []byte(want.String()), 0o644))
		return
	}
	sections := strings.Split(want.String(), "\n## ")
	for i, section := range strings.Split(string(text), "\n## ") {
		require.Equal(t, sections[i], section, "go test ./ops/attention -run TheRunbook -update writes it")
	}
	for _, k := range kinds {
		require.Regexp(t, `(?s)^.{5,}\*\*Don't\*\*\s.{20,}$`, hand[k], "%s: who is affected, and what not to do", k)
	}
}
