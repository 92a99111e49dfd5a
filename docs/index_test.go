package docs

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/golden"
)

var (
	entry     = regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(([^)#]+)\): (.+)$`)
	firstLine = regexp.MustCompile(`\A# (.+)\n`)
)

// index is the page that lists all others.
func index(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("README.md")
	require.NoError(t, err)
	return string(b)
}

// pages are the texts of the documentation's pages by their path below docs, without decisions, contracts and the index.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	more, err := filepath.Glob("reference/*.md")
	require.NoError(t, err)
	out := map[string]string{}
	for _, f := range append(files, more...) {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		out[filepath.ToSlash(f)] = string(b)
	}
	delete(out, "README.md")
	return out
}

// TestIndexListsEveryPageOnce by the title of the page. -update takes the titles over.
func TestIndexListsEveryPageOnce(t *testing.T) {
	t.Parallel()
	text, all := index(t), pages(t)
	listed := map[string]int{}
	for _, m := range entry.FindAllStringSubmatch(text, -1) {
		listed[m[2]]++
		require.Equal(t, 1, listed[m[2]], "%s is listed twice", m[2])
	}
	var missing []string
	for page := range all {
		if listed[page] == 0 {
			missing = append(missing, page)
		}
	}
	slices.Sort(missing)
	require.Empty(t, missing, "docs/README.md does not list these")
	titled := entry.ReplaceAllStringFunc(text, func(line string) string {
		m := entry.FindStringSubmatch(line)
		if first := firstLine.FindStringSubmatch(all[m[2]]); first != nil {
			return "- [" + first[1] + "](" + m[2] + "): " + m[3]
		}
		return line
	})
	if *update && titled != text {
		require.NoError(t, os.WriteFile("README.md", []byte(titled), 0o644))
		text = titled
	}
	require.Equal(t, titled, text, "go test ./docs -update takes the titles of the pages over")
	// Programs find the same pages as people.
	golden.Equal(t, "../llms.txt", llms(text))
}

// llms is the index for programs (llmstxt.org): with its paths from the root, and the pages on the software itself as
// optional.
func llms(index string) string {
	_, sections, _ := strings.Cut(index, "\n## ")
	sections = strings.ReplaceAll("## "+sections, "](", "](docs/")
	sections = strings.ReplaceAll(sections, "](docs/../", "](")
	sections = regexp.MustCompile(`(?m)^## How it works.*$`).ReplaceAllString(sections, "## Optional")
	return "# prego\n\n> Hosting for Frappe and ERPNext on Hetzner Cloud that survives failures: a control plane with a console, a " +
		"command line and an HTTP API.\n\nThe API's contract is [api/openapi.yaml](api/openapi.yaml).\n\n" + sections
}

// questions are what people type into a search box, each with the page that answers it.
var questions = []struct{ typed, page string }{
	{"add a custom domain", "custom-domain.md"},
	{"hetzner out of stock", "out-of-stock.md"},
	{"restore a backup", "backups.md"},
	{"restore the control plane", "restore-control-plane.md"},
	{"upgrade", "upgrade.md"},
	{"what does it cost", "costs.md"},
	{"limit a customer's usage", "quotas.md"},
	{"move a site", "moves.md"},
	{"why is the site on this server", "read-a-decision.md"},
	{"server lost", "backups.md"},
	{"import an existing server", "import-server.md"},
	{"create a customer", "tenants.md"},
	{"reset administrator password", "tenants.md"},
	{"run a docker container", "workloads.md"},
	{"certificate missing", "certificates.md"},
	{"site does not answer", "edges.md"},
	{"alert, what to do", "runbook.md"},
	{"new frappe version", "releases.md"},
	{"who changed what", "audit.md"},
	{"three servers production", "production-three-hosts.md"},
}

// find ranks pages as a search box over titles would: a word counts by its rarity, most in a page's title, less in its
// line of the index, least in a heading. Among equals the page wins whose title has fewer other words.
func find(typed, index string, pages map[string]string) []string {
	type page struct {
		at     string
		weight map[string]float64
		length int
		score  float64
	}
	var all []*page
	for _, m := range entry.FindAllStringSubmatch(index, -1) {
		p := &page{at: m[2], weight: map[string]float64{}, length: len(words(m[1]))}
		for _, h := range title.FindAllStringSubmatch(fence.ReplaceAllString(pages[m[2]], ""), -1) {
			for _, w := range words(h[1]) {
				p.weight[w] = 1
			}
		}
		for _, w := range words(m[3]) {
			p.weight[w] = 2
		}
		for _, w := range words(m[1]) {
			p.weight[w] = 3
		}
		all = append(all, p)
	}
	for _, w := range words(typed) {
		with := 0
		for _, p := range all {
			if p.weight[w] > 0 {
				with++
			}
		}
		for _, p := range all {
			p.score += p.weight[w] * math.Log(float64(1+len(all))/float64(1+with))
		}
	}
	slices.SortStableFunc(all, func(a, b *page) int {
		if a.score != b.score {
			if a.score > b.score {
				return -1
			}
			return 1
		}
		return a.length - b.length
	})
	var out []string
	for _, p := range all {
		if p.score > 0 {
			out = append(out, p.at)
		}
	}
	return out
}

var common = strings.Fields("a an and the is are it its to of on in at for from by with or i my do does how what which there this that not")

// words are those of a text that a search looks for, in one form for singular and plural.
func words(text string) []string {
	text = strings.NewReplacer("'s", "", "’s", "", "`", "").Replace(strings.ToLower(text))
	var out []string
	for _, w := range regexp.MustCompile(`[a-z0-9]+`).FindAllString(text, -1) {
		if len(w) > 3 && !strings.HasSuffix(w, "ss") {
			w = strings.TrimSuffix(w, "s")
		}
		if !slices.Contains(common, w) {
			out = append(out, w)
		}
	}
	return out
}

// TestQuestionsLeadToTheirPage by the words of titles, index and headings alone.
func TestQuestionsLeadToTheirPage(t *testing.T) {
	t.Parallel()
	text, all := index(t), pages(t)
	var wrong []string
	for _, q := range questions {
		found := find(q.typed, text, all)
		if len(found) == 0 || found[0] != q.page {
			wrong = append(wrong, q.typed+": "+strings.Join(found[:min(3, len(found))], ", ")+" instead of "+q.page)
		}
	}
	require.Empty(t, wrong, strings.Join(wrong, "\n"))
	require.Len(t, questions, 20)
}

// TestPagesStayShort: a page that grows takes words from another, so that a stranger can find the rest.
func TestPagesStayShort(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	count := len(strings.Fields(index(t))) + len(strings.Fields(string(readme)))
	for page, text := range pages(t) {
		if !strings.HasPrefix(page, "reference/") {
			count += len(strings.Fields(text))
		}
	}
	require.LessOrEqual(t, count, 40_500, "words of README.md and docs/*.md")
}
