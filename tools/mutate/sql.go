package main

import (
	"bytes"
	_ "embed" // what sql.txt names
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// sqlTests are the statements that may have no survivor, each with the tests that hold it, and the mutants that make no
// difference, each with its reason.
//
//go:embed sql.txt
var sqlTests string

const functionsDir = "migrations/functions"

// statement is an SQL function of migrations/functions, or one of the package's constants that start with sql.
type statement struct {
	name, text string
	function   bool
}

// condition is a part of a statement, and what replaces it in a mutant.
type condition struct {
	statement
	from, to int
	instead  string
	nth      int // of those with the same text
}

func (c condition) String() string {
	text := comment.ReplaceAllString(c.text[c.from:c.to], "")
	text = c.name + ": " + c.instead + " for " + strings.Join(strings.Fields(text), " ")
	if c.nth > 1 {
		text += fmt.Sprintf(" (%d)", c.nth)
	}
	return text
}

// mutated keeps what is replaced, so that its parameters keep their types.
func (c condition) mutated() string {
	operator := map[string]string{"true": " OR ", "false": " AND "}[c.instead]
	return c.text[:c.from] + "(" + c.text[c.from:c.to] + operator + c.instead + ")" + c.text[c.to:]
}

var (
	comment = regexp.MustCompile(`--[^\n]*`)
	lexeme  = regexp.MustCompile(`--[^\n]*|'(?:[^']|'')*'|"[^"]*"|\$\w*\$|[A-Za-z_]\w*|:=|\S`)
	// keywords separate expressions.
	keywords = strings.Fields(`, ; := $$ SELECT FROM WHERE ON WHEN THEN ELSE END IF ELSIF HAVING GROUP ORDER LIMIT
		OFFSET RETURNING BY DESC ASC UNION EXCEPT INTERSECT LEFT RIGHT FULL JOIN CROSS INNER SET AS LOOP FOR WINDOW INTO
		USING BEGIN RETURN WITH VALUES DO PERFORM EXECUTE UPDATE DELETE INSERT`)
	// conditional keywords have a condition after them, also without AND and OR.
	conditional = strings.Fields(`WHERE WHEN IF ELSIF HAVING`)
	closers     = map[string]string{"(": ")", "[": "]", "CASE": "END"}
)

// conditions are the operands of each AND (replaced by true) and OR (by false), and other whole conditions (by true).
func conditions(s statement) (out []condition) {
	var at [][]int
	for _, l := range lexeme.FindAllStringIndex(s.text, -1) {
		if !strings.HasPrefix(s.text[l[0]:], "--") {
			at = append(at, l)
		}
	}
	word := func(i int) string {
		if i < 0 || i >= len(at) {
			return ""
		}
		return strings.ToUpper(s.text[at[i][0]:at[i][1]])
	}
	var level func(i int, closer string) int
	level = func(i int, closer string) int {
		head, between := "", false
		groups := [][][2]int{{}} // of operands of one AND each, with OR between them
		from := -1
		operand := func(end int) {
			if from >= 0 {
				last := &groups[len(groups)-1]
				*last = append(*last, [2]int{at[from][0], at[end-1][1]})
			}
			from = -1
		}
		expression := func(end int, next string) {
			operand(end)
			for _, g := range groups {
				for _, o := range g {
					if len(g) > 1 || len(groups) == 1 && slices.Contains(conditional, head) && s.text[o[0]] != '\'' {
						out = append(out, condition{s, o[0], o[1], "true", 1})
					}
				}
				if len(groups) > 1 && len(g) > 0 {
					out = append(out, condition{s, g[0][0], g[len(g)-1][1], "false", 1})
				}
			}
			head, groups = next, [][][2]int{{}}
		}
		for ; i < len(at); i++ {
			switch w := word(i); {
			case w == closer:
				expression(i, "")
				return i
			case w == "AND" && between:
				between = false
			case w == "AND":
				operand(i)
			case w == "OR" && word(i-1) != "CREATE":
				operand(i)
				groups = append(groups, [][2]int{})
			case slices.Contains(keywords, w) && (w != "FROM" || word(i-1) != "DISTINCT"):
				expression(i, w)
			default:
				between = between || w == "BETWEEN"
				if from < 0 {
					from = i
				}
				if c, ok := closers[w]; ok {
					i = level(i+1, c)
				}
			}
		}
		expression(min(i, len(at)), "")
		return i
	}
	level(0, "")
	seen := map[string]int{}
	for i := range out {
		text := out[i].String()
		seen[text]++
		out[i].nth = seen[text]
	}
	return out
}

// constants puts a variable in place of each constant of a file that starts with sql.
func (m *mutated) constants(f *ast.File) (out []statement) {
	ast.Inspect(f, func(n ast.Node) bool {
		d, ok := n.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			return true
		}
		first := len(out)
		for _, s := range d.Specs {
			s := s.(*ast.ValueSpec)
			c := m.info.Defs[s.Names[0]].(*types.Const)
			if len(s.Values) != 1 || s.Type != nil || c.Val().Kind() != constant.String {
				out = out[:first]
				return true
			}
			if strings.HasPrefix(c.Name(), "sql") {
				out = append(out, statement{name: c.Name(), text: constant.StringVal(c.Val())})
				m.wrap(s.Values[0], fmt.Sprintf("mutantText(%q, ", c.Name()), ")")
			}
		}
		if len(out) > first {
			m.put(d.TokPos, d.TokPos+token.Pos(len("const")), "var")
		}
		return true
	})
	return out
}

const sqlSwitch = `

import "os"

func mutantText(name, text string) string {
	if os.Getenv("MUTANT_NAME") != name {
		return text
	}
	b, err := os.ReadFile(os.Getenv("MUTANT_TEXT"))
	if err != nil {
		panic(err)
	}
	return string(b)
}
`

// named reads sql.txt: lines "test STATEMENT PATTERN" and "fine MUTANT | REASON".
func named(text string) (tests map[string][]string, fine map[string]string, err error) {
	tests, fine = map[string][]string{}, map[string]string{}
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "", "#":
		case "test":
			name, pattern, _ := strings.Cut(rest, " ")
			tests[name] = append(tests[name], pattern)
		case "fine":
			mutant, reason, err := reasoned(rest)
			if err != nil {
				return nil, nil, fmt.Errorf("sql.txt: %w", err)
			}
			fine[mutant] = reason
		default:
			return nil, nil, fmt.Errorf("sql.txt: %q", line)
		}
	}
	return tests, fine, nil
}

// reasoned splits "MUTANT | REASON"; a mutant may contain a bar, too.
func reasoned(text string) (mutant, reason string, err error) {
	i := strings.LastIndex(text, " | ")
	if i < 0 {
		return "", "", fmt.Errorf("%q has no reason", text)
	}
	return text[:i], text[i+3:], nil
}

// runSQL tries the conditions of statements: "named" are those of sql.txt, with its tests, and others are given by a
// pattern of their names, with the tests of -run.
func runSQL(pkg, which string, o options) error {
	tests, fine, err := named(sqlTests)
	if err != nil {
		return err
	}
	m, err := load(pkg)
	if err != nil {
		return err
	}
	all, err := sqlFunctions()
	if err != nil {
		return err
	}
	err = m.change(o.files, sqlSwitch, func(f *ast.File) { all = append(all, m.constants(f)...) })
	if err != nil {
		return err
	}
	var tried []condition
	for _, s := range all {
		_, isNamed := tests[s.name]
		if isNamed && which == "named" || which != "named" && regexp.MustCompile(which).MatchString(s.name) {
			tried = append(tried, conditions(s)...)
		}
	}
	tried = slices.DeleteFunc(tried, func(c condition) bool { return !o.only.MatchString(c.String()) })
	if tried = drawn(o, tried, condition.String); o.list {
		for _, c := range tried {
			fmt.Println(c)
		}
		return nil
	}
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	binary, dir, err := m.build(tmp, pkg)
	if err != nil {
		return err
	}
	r := runner{o: o, binary: binary, dir: dir, tmp: tmp, mu: &sync.Mutex{}, controlled: map[string]bool{}}
	return r.sql(tried, tests, fine)
}

// sqlFunctions are all functions of the schema.
func sqlFunctions() (out []statement, err error) {
	files, err := filepath.Glob(filepath.Join(functionsDir, "*.sql"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		out = append(out, statement{strings.TrimSuffix(filepath.Base(f), ".sql"), string(b), true})
	}
	return out, err
}

// refusedSQL is what Postgres answers to what is no SQL, or has other types: no mutant.
var refusedSQL = regexp.MustCompile(`\(SQLSTATE 42[0-9A-Z]{3}\)`)

// sql tries conditions. An unexplained survivor is an error.
func (r runner) sql(tried []condition, tests map[string][]string, fine map[string]string) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	began, next, counts := time.Now(), make(chan int), map[string]int{}
	for range r.o.workers {
		wg.Go(func() {
			for i := range next {
				runs := tests[tried[i].name]
				if runs == nil {
					runs = []string{r.o.run}
				}
				what, err := r.condition(i+1, tried[i], runs)
				mu.Lock()
				reason, explained := fine[tried[i].String()]
				switch {
				case err != nil:
					what = "failed"
					fmt.Println("not tried:", err)
				case what == "survived" && explained:
					what = "explained"
				case what == "killed" && explained:
					fmt.Printf("killed, and explained (%s): %s\n", reason, tried[i])
				case what == "survived":
					fmt.Println("survived:", tried[i])
				case what == "refused":
					fmt.Println("no mutant, Postgres refuses it:", tried[i])
				case what == "timed out":
					fmt.Println("timed out, so unknown:", tried[i])
				}
				counts[what]++
				mu.Unlock()
			}
		})
	}
	for i := range tried {
		if time.Since(began) > r.o.budget {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	n := counts["killed"] + counts["explained"] + counts["survived"]
	fmt.Printf("mutate: %d of %d conditions noticed (%.1f %%), %d without difference, %d survived; %d not tried; %s\n",
		counts["killed"], n, 100*float64(counts["killed"])/float64(max(n, 1)), counts["explained"], counts["survived"],
		len(tried)-n-counts["refused"], time.Since(began).Round(time.Second))
	if counts["survived"] > 0 || counts["failed"] > 0 {
		return errors.New("see survivors above: add a test, or explain them in tools/mutate/sql.txt")
	}
	return nil
}

// condition reports what became of a mutant, by one run of tests after the other until it is noticed.
func (r runner) condition(id int, c condition, runs []string) (what string, err error) {
	for _, r.o.run = range runs {
		if what, err = r.plant(id, c); err != nil || what != "survived" {
			break
		}
	}
	return what, err
}

func (r runner) plant(id int, c condition) (string, error) {
	if err := r.control(); err != nil {
		return "", err
	}
	file := filepath.Join(r.tmp, fmt.Sprintf("%d.sql", id))
	if err := os.WriteFile(file, []byte(c.mutated()), 0o600); err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(file) }()
	env := []string{"PREGO_TEST_SQL=" + file}
	if !c.function {
		env = []string{"MUTANT_NAME=" + c.name, "MUTANT_TEXT=" + file}
	}
	// Postgres would compile every statement of a condition that no index serves any more, which takes much longer.
	out, ok := r.test(0, append(env, "PGOPTIONS=-c jit=off")...)
	switch {
	case ok:
		return "survived", nil
	case refusedSQL.Match(out):
		return "refused", nil
	case bytes.Contains(out, []byte("panic: test timed out")):
		return "timed out", nil
	default:
		return "killed", nil
	}
}

// control runs the tests without a mutant, once: tests that fail anyway notice nothing.
func (r runner) control() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.controlled[r.o.run] {
		return nil
	}
	out, ok := r.test(0)
	if !ok {
		return fmt.Errorf("the tests fail without any mutant:\n%s", out)
	}
	r.controlled[r.o.run] = true
	return nil
}
