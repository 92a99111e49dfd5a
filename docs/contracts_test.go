// Package docs has no code: its tests hold the documents to the code that they name.
package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/golden"
)

var update = golden.Update

// tree is every file of the repository that people write, by its path.
func tree(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != ".." && (strings.HasPrefix(name, ".") || name == "bin" || name == "histories") {
				return filepath.SkipDir
			}
			return nil
		}
		switch path.Ext(name) {
		case ".go", ".sql", ".md", ".yaml", ".yml", ".json", ".sh":
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[filepath.ToSlash(strings.TrimPrefix(p, "../"))] = string(b)
		}
		return nil
	}))
	return out
}

// contracts are the documents in docs/contracts, without the page that lists them.
func contracts(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("contracts/*.md")
	require.NoError(t, err)
	out := map[string]string{}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".md"); name != "README" {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			out[name] = string(b)
		}
	}
	require.Len(t, out, 6)
	return out
}

var (
	codeLink = regexp.MustCompile("\\[`([^`]+)`\\]\\(\\.\\./\\.\\./([^)#]+)\\)")
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testName = regexp.MustCompile(`^Test\w+$`)
)

// TestContractsNameExistingFilesAndTests checks that each rule links its file and its test. Moved files and
// tests are reported together; -update follows them.
func TestContractsNameExistingFilesAndTests(t *testing.T) {
	t.Parallel()
	files := tree(t)
	homes, named := map[string][]string{}, map[string][]string{} // of test functions, and of files by their last element
	for f, text := range files {
		named[path.Base(f)] = append(named[path.Base(f)], f)
		if strings.HasSuffix(f, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				homes[m[1]] = append(homes[m[1]], f)
			}
		}
	}
	var moved []string
	for name, text := range contracts(t) {
		fixed := codeLink.ReplaceAllStringFunc(text, func(link string) string {
			m := codeLink.FindStringSubmatch(link)
			label, target := m[1], m[2]
			found := named[path.Base(target)]
			ok := files[target] != "" && (testName.MatchString(label) || label == target)
			if testName.MatchString(label) {
				found = homes[label]
				ok = slices.Contains(found, target)
			}
			if ok {
				return link
			}
			moved = append(moved, name+".md: "+label+" is not in "+target+"; it may be in "+strings.Join(found, ", "))
			if len(found) != 1 {
				return link
			}
			if !testName.MatchString(label) {
				label = found[0]
			}
			return "[`" + label + "`](../../" + found[0] + ")"
		})
		if *update && fixed != text {
			require.NoError(t, os.WriteFile("contracts/"+name+".md", []byte(fixed), 0o644))
		}
	}
	slices.Sort(moved)
	require.Empty(t, moved, "go test ./docs -update follows links with a single candidate:\n%s", strings.Join(moved, "\n"))
}

var (
	rule     = regexp.MustCompile(`(?m)^\*\*([0-9]+(?:\.[0-9]+)*)\*\* `)
	untested = regexp.MustCompile(`(?s)\n## Rules without a test\n\n([0-9]+) of ([0-9]+) rules.*`)
	item     = regexp.MustCompile(`(?m)^- \*\*([0-9.]+)\*\*:? `)
)

// mutated are the packages whose mutants are all noticed by their own tests, as make mutants shows.
func mutated(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	list := regexp.MustCompile(`(?m)^MUTATED := (.+)$`).FindStringSubmatch(string(text))
	require.NotNil(t, list)
	return strings.Fields(strings.ReplaceAll(list[1], "./", ""))
}

// TestBrokenRulesAreCounted: the page of contracts counts the rules that a run breaks. make frozen plants mutants: one
// changes a file that the rule names, and is caught by a test that it names. make mutants changes all that a file does:
// the rule names a file of such a package, and a test beside it. -update counts them again.
func TestBrokenRulesAreCounted(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("../tools/frozen/mutants.txt")
	require.NoError(t, err)
	type mutant struct {
		file, dir string
		test      *regexp.Regexp
	}
	var mutants []mutant
	for block := range strings.SplitSeq(string(list), "\n\n") {
		var m mutant
		for line := range strings.Lines(block) {
			switch key, rest, _ := strings.Cut(strings.TrimSpace(line), " "); key {
			case "file:":
				m.file = rest
			case "test:":
				dir, pattern, _ := strings.Cut(rest, " ")
				m.dir, m.test = strings.TrimPrefix(dir, "./"), regexp.MustCompile(pattern)
			}
		}
		if m.file != "" {
			mutants = append(mutants, m)
		}
	}
	page, err := os.ReadFile("contracts/README.md")
	require.NoError(t, err)
	counted, complete := string(page), mutated(t)
	for name, text := range contracts(t) {
		rules, broken, changed := 0, 0, 0
		starts := rule.FindAllStringIndex(text, -1)
		for i, at := range starts {
			end := len(text)
			if i+1 < len(starts) {
				end = starts[i+1][0]
			}
			links := codeLink.FindAllStringSubmatch(text[at[0]:end], -1)
			rules++
			if slices.ContainsFunc(mutants, func(m mutant) bool {
				changes := slices.ContainsFunc(links, func(l []string) bool { return l[2] == m.file })
				return changes && slices.ContainsFunc(links, func(l []string) bool {
					return path.Dir(l[2]) == m.dir && m.test.MatchString(l[1])
				})
			}) {
				broken++
			}
			beside := func(dir string, test bool) bool {
				return slices.ContainsFunc(links, func(l []string) bool {
					return path.Dir(l[2]) == dir && testName.MatchString(l[1]) == test
				})
			}
			if slices.ContainsFunc(complete, func(dir string) bool { return beside(dir, true) && beside(dir, false) }) {
				changed++
			}
		}
		row := regexp.MustCompile(`(?m)^(\| \[` + name + `\].* \|) \d+ \| \d+ \| \d+ \|$`)
		require.Regexp(t, row, counted)
		counted = row.ReplaceAllString(counted, fmt.Sprintf("${1} %d | %d | %d |", rules, broken, changed))
	}
	if *update {
		require.NoError(t, os.WriteFile("contracts/README.md", []byte(counted), 0o644))
		return
	}
	require.Equal(t, string(page), counted, "go test ./docs -update counts them again")
}

// TestEveryRuleHasItsPlaceAndItsTest, or is listed as a rule without a test; the list is counted, and holds no rule
// that has a test.
func TestEveryRuleHasItsPlaceAndItsTest(t *testing.T) {
	t.Parallel()
	for name, text := range contracts(t) {
		list := untested.FindStringSubmatch(text)
		require.NotNil(t, list, "%s has no section that counts its rules without a test", name)
		var without []string
		for _, m := range item.FindAllStringSubmatch(list[0], -1) {
			without = append(without, m[1])
		}
		starts := rule.FindAllStringSubmatchIndex(text, -1)
		require.NotEmpty(t, starts, name)
		var problems, seen []string
		for _, s := range starts {
			id, body, _ := text[s[2]:s[3]], text[s[0]:], 0
			if end := strings.Index(body, "\n\n"); end >= 0 {
				body = body[:end]
			}
			if slices.Contains(seen, id) {
				problems = append(problems, id+" is there twice")
			}
			seen = append(seen, id)
			file, test := false, false
			for _, l := range codeLink.FindAllStringSubmatch(body, -1) {
				test = test || testName.MatchString(l[1])
				file = file || !testName.MatchString(l[1])
			}
			if !file {
				problems = append(problems, id+" names no file")
			}
			if test == slices.Contains(without, id) {
				problems = append(problems, id+" names no test and is not listed, or names one and is")
			}
		}
		for _, id := range without {
			if !slices.Contains(seen, id) {
				problems = append(problems, id+" is listed and is no rule")
			}
		}
		require.Empty(t, problems, name)
		require.Equal(t, strconv.Itoa(len(without)), list[1], "%s counts its rules without a test", name)
		require.Equal(t, strconv.Itoa(len(seen)), list[2], "%s counts its rules", name)
	}
}

var (
	heading   = regexp.MustCompile(`(?m)^##+ (.+)$`)
	comment   = regexp.MustCompile(`\n[ \t]*(?://|--|#|\*)?[ \t]*`)
	citation  = regexp.MustCompile(`\b(placement-policy|direct-provisioning|region-placement|placement-pools|quotas-and-fairness)(?:'s)?((?:,? (?:and |to )?(?:§[0-9]+(?:\.[0-9]+)*|"[^"]{3,60}"|S[0-9]\b))+)`)
	oneOfThem = regexp.MustCompile(`§[0-9]+(?:\.[0-9]+)*|"[^"]+"|S[0-9]\b`)
)

// TestCitationsLeadSomewhere: a section that code or documents name exists in the contract, by its number or by its
// title.
func TestCitationsLeadSomewhere(t *testing.T) {
	t.Parallel()
	sections := map[string][]string{}
	for name, text := range contracts(t) {
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			sections[name] = append(sections[name], strings.ReplaceAll(m[1], "`", ""))
		}
	}
	cited := 0
	var lost []string
	for file, text := range tree(t) {
		if file == "docs/contracts_test.go" || !slices.ContainsFunc(slices.Collect(maps.Keys(sections)), func(name string) bool { return strings.Contains(text, name) }) {
			continue
		}
		for _, m := range citation.FindAllStringSubmatch(comment.ReplaceAllString(text, " "), -1) {
			for _, c := range oneOfThem.FindAllString(m[2], -1) {
				cited++
				want := strings.Trim(strings.TrimPrefix(c, "§"), `"`)
				if !slices.ContainsFunc(sections[m[1]], func(s string) bool {
					return s == want || strings.HasPrefix(s, want+" ") || strings.HasPrefix(s, want+":") || strings.HasPrefix(s, want+".")
				}) {
					lost = append(lost, file+": "+m[1]+" "+c)
				}
			}
		}
	}
	slices.Sort(lost)
	require.Empty(t, lost, strings.Join(lost, "\n"))
	require.Greater(t, cited, 100)
}
