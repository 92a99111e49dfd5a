package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	fence    = regexp.MustCompile("(?ms)^```.*?^```[ \t]*$")
	codeSpan = regexp.MustCompile("`[^`\n]*`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	title    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	inTitle  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors are the anchors that GitHub gives the headings of a document.
func anchors(text string) []string {
	var out []string
	seen := map[string]int{}
	for _, m := range title.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(inTitle.ReplaceAllString(m[1], "$1")) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				b.WriteRune(r)
			}
		}
		a := b.String()
		if n := seen[a]; n > 0 {
			out = append(out, a+"-"+string(rune('0'+n)))
		} else {
			out = append(out, a)
		}
		seen[a]++
	}
	return out
}

// broken are the links of a document that lead nowhere. Links to other sites are not
// followed.
func broken(file, text string, read func(path string) (text string, ok bool)) []string {
	var out []string
	text = codeSpan.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		target, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		to := file
		if target != "" {
			to = path.Join(path.Dir(file), target)
		}
		there, ok := read(to)
		if !ok || anchor != "" && !slices.Contains(anchors(there), anchor) {
			out = append(out, file+": "+m[1])
		}
	}
	return out
}

func TestLinksResolve(t *testing.T) {
	t.Parallel()
	read := func(p string) (string, bool) {
		b, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(p)))
		if err != nil {
			_, err = os.Stat(filepath.Join("..", filepath.FromSlash(p))) // a folder
		}
		return string(b), err == nil
	}
	var out []string
	documents := 0
	for file, text := range tree(t) {
		if path.Ext(file) == ".md" {
			documents++
			out = append(out, broken(file, text, read)...)
		}
	}
	slices.Sort(out)
	require.Empty(t, out, strings.Join(out, "\n"))
	require.Greater(t, documents, 40)
}

// TestBrokenLinksAreFound: the check above can fail.
func TestBrokenLinksAreFound(t *testing.T) {
	t.Parallel()
	files := map[string]string{"docs/b.md": "# One `two`: three\n\n## Again\n\n## Again\n", "docs": ""}
	read := func(p string) (string, bool) { text, ok := files[p]; return text, ok }
	require.Empty(t, broken("README.md", "[a](docs/b.md) [a](docs/b.md#one-two-three) [a](docs/b.md#again-1) [a](docs/) [a](https://example.com/x) `[a](x.md)`\n```\n[a](x.md)\n```\n", read))
	require.Equal(t, []string{"docs/a.md: c.md", "docs/a.md: b.md#two", "docs/a.md: #here"}, broken("docs/a.md", "[a](c.md), [a](b.md#two) [a](b.md#again) [a](#here)", func(p string) (string, bool) {
		if p == "docs/a.md" {
			return "# There", true
		}
		return read(p)
	}))
}
