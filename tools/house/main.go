// Command house prints what the project is made of: lines by kind, rooms, settings, words and habits. Each figure is
// counted in the tracked files, so that a change shows what it adds.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"go/types"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

//go:embed habits.txt
var habitsText string

const module = "github.com/prego/prego/"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run() error {
	out, err := exec.CommandContext(context.Background(), "git", "ls-files").Output()
	if err != nil {
		return fmt.Errorf("list the tracked files: %w", err)
	}
	c := census{lines: map[string]int{}, rooms: map[string]bool{}, hits: map[string]int{}}
	if c.habits, err = parseHabits(habitsText); err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(out)) {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		c.count(name, string(b))
		c.largest = max(c.largest, len(b)>>10)
	}
	lonely, err := lonelyInterfaces()
	if err != nil {
		return err
	}
	total := 0
	for _, h := range c.habits {
		total += c.hits[h.name]
	}
	figures := []figure{{name: "rooms (directories with Go code of the product)", n: len(c.rooms)}}
	for _, kind := range []string{"product", "lab", "tests", "generated", "SQL"} {
		figures = append(figures, figure{name: "lines: " + kind, n: c.lines[kind]})
	}
	figures = append(figures,
		figure{name: "settings", n: c.settings, limit: 120},
		figure{name: "glossary terms", n: c.terms, limit: 90},
		figure{name: "lines over 120 columns (product and lab)", n: c.long, limit: longLines},
		figure{name: "interfaces of the product with one implementation, inside", n: len(lonely)},
		figure{name: "KiB of the largest file", n: c.largest, limit: 2048}, // a program slips in easily, and stays in every clone
		figure{name: "habits of English", n: total, limit: 2000},
	)
	for _, h := range c.habits {
		figures = append(figures, figure{name: "  " + h.name + " (" + h.instead + ")", n: c.hits[h.name]})
	}
	var over []string
	for _, f := range figures {
		fmt.Printf("%8d  %s\n", f.n, f.name)
		if f.limit > 0 && f.n > f.limit {
			over = append(over, fmt.Sprintf("%d %s, the limit is %d", f.n, f.name, f.limit))
		}
	}
	if len(over) > 0 {
		return errors.New(strings.Join(over, "; "))
	}
	if len(lonely) > 0 {
		return fmt.Errorf("take the type and not an interface that only it implements: %s", strings.Join(lonely, ", "))
	}
	return nil
}

// longLines is how many lines over 120 columns there are. Lower it when there are fewer: no change adds one.
const longLines = 4450

// figure is a count, and the most that it may be; 0 if it has no limit.
type figure struct {
	name     string
	n, limit int
}

// census are the counts.
type census struct {
	lines                 map[string]int // by kind
	rooms                 map[string]bool
	settings, terms, long int
	largest               int // file, in KiB
	habits                []habit
	hits                  map[string]int // by habit
}

type habit struct {
	name, instead string
	pattern       *regexp.Regexp
}

func parseHabits(text string) ([]habit, error) {
	var all []habit
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 3 {
			return nil, fmt.Errorf("habits.txt: %q has not three parts", line)
		}
		re, err := regexp.Compile(f[1])
		if err != nil {
			return nil, fmt.Errorf("habits.txt: %w", err)
		}
		all = append(all, habit{name: f[0], pattern: re, instead: f[2]})
	}
	return all, nil
}

// kindOf is the kind of lines in a file; "" if they are not counted.
func kindOf(name string) string {
	switch {
	case strings.Contains(name, "testdata/"):
		return ""
	case strings.HasSuffix(name, ".gen.go"):
		return "generated"
	case strings.HasSuffix(name, "_test.go"):
		return "tests"
	case strings.HasSuffix(name, ".go"):
		for _, dir := range []string{"lab/", "tools/", "cmd/prego-lab/"} {
			if strings.HasPrefix(name, dir) {
				return "lab"
			}
		}
		return "product"
	case strings.HasPrefix(name, "migrations/") && strings.HasSuffix(name, ".sql"):
		return "SQL"
	}
	return ""
}

var (
	setting = regexp.MustCompile(`\benv:"[A-Z]`)
	term    = regexp.MustCompile(`(?m)^\| [A-Z][^|]* \|`) // a row of a table
	// What people read in Go: comments, texts, names of tests.
	read = regexp.MustCompile("//.*|\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|func Test\\w+")
)

func (c *census) count(name, text string) {
	kind := kindOf(name)
	if kind != "" {
		c.lines[kind] += strings.Count(text, "\n")
	}
	if kind == "product" {
		c.rooms[path.Dir(name)] = true
		if strings.HasPrefix(name, "internal/config/") {
			c.settings += len(setting.FindAllString(text, -1))
		}
	}
	if name == "docs/glossary.md" {
		c.terms = len(term.FindAllString(text, -1))
	}
	if kind == "product" || kind == "lab" {
		for line := range strings.Lines(text) {
			if len([]rune(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    "))) > 120 {
				c.long++
			}
		}
	}
	prose := strings.HasSuffix(name, ".md") || strings.HasSuffix(name, ".html") || name == "api/openapi.yaml"
	if kind == "generated" || kind == "SQL" || kind == "" && !prose {
		return
	}
	for line := range strings.Lines(text) {
		if kind != "" {
			line = strings.Join(read.FindAllString(line, -1), " ")
		}
		for _, h := range c.habits {
			c.hits[h.name] += len(h.pattern.FindAllString(line, -1))
		}
	}
}

// outside are types that reach what is outside although they stand in no adapter: Temporal, hosts, the DNS.
var outside = []string{"workflows.Client", "activities.Commander", "activities.Names", "app.containers"}

// lonelyInterfaces are the product's interfaces that only one type implements, and that type is no adapter of the
// outside (internal/, agent/): nothing else will ever stand in its place. An adapter may say what it needs of the
// product, which it doesn't import.
func lonelyInterfaces() ([]string, error) {
	pkgs, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedSyntax | packages.NeedTypesInfo}, "./...")
	if err != nil {
		return nil, err
	}
	var concrete []types.Type
	declared := map[string]declaration{}
	for _, p := range pkgs {
		room := strings.TrimPrefix(p.PkgPath, module)
		if kindOf(room+"/x.go") != "product" {
			continue
		}
		scope := p.Types.Scope()
		for _, name := range scope.Names() {
			t, ok := scope.Lookup(name).(*types.TypeName)
			if !ok || t.IsAlias() {
				continue
			}
			if named, ok := t.Type().(*types.Named); ok && named.TypeParams().Len() > 0 {
				continue
			}
			if i, ok := t.Type().Underlying().(*types.Interface); ok {
				generated := strings.HasSuffix(p.Fset.Position(t.Pos()).Filename, ".gen.go")
				if i.NumMethods() > 0 && !generated && !strings.HasPrefix(room, "internal/") {
					declared[room+"."+name] = declaration{i, p.Types.Imports()}
				}
				continue
			}
			concrete = append(concrete, t.Type())
		}
	}
	var lonely []string
	for name, d := range declared {
		i := d.Interface
		if slices.ContainsFunc(d.imports, func(p *types.Package) bool { return foreign(p, i) }) {
			continue
		}
		var by []string
		for _, t := range concrete {
			if implements(t, i) && !embedsOneThat(t, i) {
				by = append(by, strings.TrimPrefix(t.String(), module))
			}
		}
		if len(by) == 1 && !strings.HasPrefix(by[0], "internal/") && !strings.HasPrefix(by[0], "agent/") && !slices.Contains(outside, by[0]) {
			lonely = append(lonely, name+" by "+by[0])
		}
	}
	slices.Sort(lonely)
	return lonely, nil
}

// declaration is an interface, and what the package imports that declares it.
type declaration struct {
	*types.Interface
	imports []*types.Package
}

// foreign reports whether a package that is not ours has a type for an interface.
func foreign(p *types.Package, i *types.Interface) bool {
	if strings.HasPrefix(p.Path(), module) {
		return false
	}
	for _, name := range p.Scope().Names() {
		t, ok := p.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		if named, ok := t.Type().(*types.Named); ok && named.TypeParams().Len() == 0 && implements(named, i) {
			return true
		}
	}
	return false
}

func implements(t types.Type, i *types.Interface) bool {
	return types.Implements(t, i) || types.Implements(types.NewPointer(t), i)
}

// embedsOneThat reports whether a struct has what an interface wants from a type that it embeds.
func embedsOneThat(t types.Type, i *types.Interface) bool {
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		if f.Embedded() && implements(f.Type(), i) {
			return true
		}
	}
	return false
}
