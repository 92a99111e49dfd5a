package docsrun

import (
	"regexp"
	"slices"
	"strings"
)

// Details that differ from run to run, in the shown and the actual output.
var (
	varying = []struct {
		pattern *regexp.Regexp
		as      string
	}{
		{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?`), "<time>"},
		{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?s\b`), "<duration>"},
		{regexp.MustCompile(`\b(\d+h\d+m|\d+m|\d+h)\b`), "<duration>"},
		{regexp.MustCompile(`"duration_ms":\d+`), `"duration_ms":0`},
		{regexp.MustCompile(`\b(t|app|env|grp|vol|snp|rst|rte|ins|ps)-[a-z2-7]{12}\b`), "$1-<id>"},
		{regexp.MustCompile(`\b([a-z][a-z-]*)-[0-9a-f]{8,16}\b`), "$1-<hash>"},
		{regexp.MustCompile(`\b127\.\d+\.\d+\.\d+\b`), "<address>"},
		{regexp.MustCompile(`\bprovider server \d+\b`), "provider server <id>"},
		{regexp.MustCompile(`\b\d+ ms\b`), "<duration>"},
		{regexp.MustCompile(`\bscored \d\.\d+\b`), "scored <score>"},
		{regexp.MustCompile(`-\d{6}\b`), "-<time>"}, // of the demo's names
	}
	spaces   = regexp.MustCompile(`[ \t]+`)
	lineEnd  = regexp.MustCompile(`\n\s*`)
	refusal  = regexp.MustCompile(`(?m)^prego: |"status":\s*[45]\d\d\b`)
	anything = "…"
)

func normal(text string) string {
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.as)
	}
	return text
}

// refused reports whether the output that a document shows is a refusal, so that the
// command ends with a status other than 0.
func refused(want []string) bool { return refusal.MatchString(strings.Join(want, "\n")) }

// matches compares output with the document's. Ids, times and durations may differ, and `…` stands for anything within
// a line. A line `…` means that the output is shortened: the shown lines occur in this order, with others between them.
// JSON may be broken over lines.
func matches(want []string, got string) (missing string, ok bool) {
	text := strings.TrimSpace(strings.Join(want, "\n"))
	got = strings.TrimSpace(got)
	if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
		text, got = lineEnd.ReplaceAllString(text, ""), lineEnd.ReplaceAllString(got, "")
	}
	shown, came := normalLines(text), normalLines(got)
	shortened := slices.Contains(shown, anything)
	for _, line := range shown {
		if line == anything {
			continue
		}
		re := regexp.MustCompile(`^` + strings.ReplaceAll(regexp.QuoteMeta(line), anything, `.*`) + `$`)
		i := slices.IndexFunc(came, re.MatchString)
		if i < 0 || i > 0 && !shortened {
			return line, false
		}
		came = came[i+1:]
	}
	if len(came) > 0 && !shortened {
		return "the end", false
	}
	return "", true
}

func normalLines(text string) []string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(spaces.ReplaceAllString(normal(line), " "))
	}
	return lines
}
