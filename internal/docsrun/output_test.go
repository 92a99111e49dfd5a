package docsrun

import (
	"regexp"
	"strings"
)

// What differs from run to run, in what is shown and in what came.
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

// matches compares output with what the document shows. Ids, times and durations only
// have to be there; `…` stands for anything within a line, and on a line of its own for
// any lines. JSON may be broken over lines.
func matches(want []string, got string) bool {
	text := strings.TrimSpace(strings.Join(want, "\n"))
	got = strings.TrimSpace(got)
	if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
		text, got = lineEnd.ReplaceAllString(text, ""), lineEnd.ReplaceAllString(got, "")
	}
	var re strings.Builder
	re.WriteString(`^`)
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(spaces.ReplaceAllString(normal(line), " "))
		if line == anything {
			re.WriteString(`(?:.*\n)*`)
			continue
		}
		re.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), anything, `.*`) + `\n`)
	}
	re.WriteString(`$`)
	var clean strings.Builder
	for line := range strings.SplitSeq(got, "\n") {
		clean.WriteString(strings.TrimSpace(spaces.ReplaceAllString(normal(line), " ")) + "\n")
	}
	return regexp.MustCompile(re.String()).MatchString(clean.String())
}
