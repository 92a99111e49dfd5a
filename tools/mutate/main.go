// Command mutate lists the changes of a package's code that its own tests do not notice. All mutants are compiled
// together, each behind a switch, so that one build serves a run of the tests for every mutant:
//
//	go run ./tools/mutate [-files REGEXP] [-only REGEXP] [-run TESTS] [-skip TESTS] [-budget 8m] ./placement
//
// A mutant is killed when a test fails or does not end. A survivor is listed with its description, and as "not reached"
// when no test executed it, unless go.txt says why it makes no difference. No file is changed: the mutants are in an
// overlay.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

type options struct {
	files, only *regexp.Regexp
	run, skip   string
	checks      int
	timeout     time.Duration
	budget      time.Duration
	workers     int
	every       int
	draw        int
	seed        uint64
	list        bool
}

func main() {
	log.SetFlags(0)
	var o options
	var files, only, sql string
	flag.StringVar(&files, "files", ".", "files that are mutated, by a regular expression")
	flag.StringVar(&only, "only", ".", "mutants that are tried, by a regular expression of their descriptions")
	flag.StringVar(&o.run, "run", "", "tests that are run; all unless given")
	flag.StringVar(&o.skip, "skip", "", "tests that are left out")
	flag.IntVar(&o.checks, "checks", 60, "of each property test")
	flag.DurationVar(&o.timeout, "timeout", time.Minute, "of one run of the tests")
	flag.DurationVar(&o.budget, "budget", time.Hour, "after which no further mutant is tried")
	flag.IntVar(&o.workers, "workers", 2, "concurrent runs")
	flag.IntVar(&o.every, "every", 1, "try each nth mutant only")
	flag.StringVar(&sql, "sql", "", "try the conditions of SQL instead: named, or a regular expression of names")
	flag.IntVar(&o.draw, "draw", 0, "try so many of them, drawn by -seed and their descriptions")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the drawing")
	flag.BoolVar(&o.list, "list", false, "list them only")
	flag.Parse()
	o.files, o.only = regexp.MustCompile(files), regexp.MustCompile(only)
	if flag.NArg() != 1 {
		log.Fatal("name one package, as ./placement")
	}
	run := run
	if sql != "" {
		run = func(pkg string, o options) error { return runSQL(pkg, sql, o) }
	}
	if err := run(flag.Arg(0), o); err != nil {
		log.Fatal(err)
	}
}

func run(pkg string, o options) error {
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	m, err := mutate(pkg, o.files)
	if err != nil {
		return err
	}
	var tried []mutant
	for _, v := range m.mutants {
		if o.only.MatchString(v.String()) && v.id%o.every == 0 {
			tried = append(tried, v)
		}
	}
	if tried = drawn(o, tried, mutant.text); o.list {
		for _, v := range tried {
			fmt.Println(v)
		}
		return nil
	}
	binary, dir, err := m.build(tmp, pkg)
	if err != nil {
		return err
	}
	r := runner{o: o, binary: binary, dir: dir, tmp: tmp}
	out, ok := r.test(0)
	if !ok && bytes.Contains(out, []byte("-rapid.checks")) { // the package has no property tests
		r.o.checks = 0
		out, ok = r.test(0)
	}
	if !ok {
		return fmt.Errorf("the tests fail without any mutant:\n%s", out)
	}
	explained, err := explanations(goMutants, strings.TrimPrefix(pkg, "./"))
	if err != nil {
		return err
	}
	return r.all(tried, explained)
}

// drawn are o.draw of all, or all. Each is drawn by its own text, so that other code's changes keep it in the sample.
func drawn[T any](o options, all []T, text func(T) string) []T {
	if o.draw == 0 || o.draw >= len(all) {
		return all
	}
	type ticket struct {
		number [sha256.Size]byte
		of     T
	}
	tickets, equals := make([]ticket, 0, len(all)), map[string]int{}
	for _, v := range all {
		number := sha256.Sum256(fmt.Appendf(nil, "%d %s %d", o.seed, text(v), equals[text(v)]))
		equals[text(v)]++
		tickets = append(tickets, ticket{number, v})
	}
	slices.SortFunc(tickets, func(a, b ticket) int { return bytes.Compare(a.number[:], b.number[:]) })
	var out []T
	for _, t := range tickets[:o.draw] {
		out = append(out, t.of)
	}
	fmt.Printf("mutate: %d of %d drawn by -seed %d\n", o.draw, len(all), o.seed)
	return out
}

//go:embed go.txt
var goMutants string

// explanation is why mutants make no difference.
type explanation struct {
	mutant  string         // "" if pattern says which
	pattern *regexp.Regexp // of mutants
	used    bool
}

// explanations reads the lines of go.txt of a package: "PACKAGE MUTANT | REASON", where MUTANT is its description
// without line and column, or a pattern of descriptions between slashes.
func explanations(text, pkg string) (out []*explanation, err error) {
	for line := range strings.Lines(text) {
		of, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if of == "" || of == "#" || of != pkg {
			continue
		}
		mutant, _, err := reasoned(rest)
		if err != nil {
			return nil, fmt.Errorf("go.txt: %w", err)
		}
		e := &explanation{mutant: mutant}
		if p, ok := strings.CutPrefix(e.mutant, "/"); ok {
			e.mutant = ""
			if e.pattern, err = regexp.Compile("^(?:" + strings.TrimSuffix(p, "/") + ")$"); err != nil {
				return nil, fmt.Errorf("go.txt: %w", err)
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// explains reports whether one of them explains a mutant.
func explains(all []*explanation, v mutant) bool {
	for _, e := range all {
		if e.mutant == v.text() || e.pattern != nil && e.pattern.MatchString(v.text()) {
			e.used = true
			return true
		}
	}
	return false
}

// build compiles the package's tests with the mutants in place of its files.
func (m *mutated) build(tmp, pkg string) (binary, dir string, err error) {
	replace := map[string]string{}
	for name, content := range m.files {
		at := filepath.Join(tmp, strconv.Itoa(len(replace))+".go")
		if err := os.WriteFile(at, content, 0o600); err != nil {
			return "", "", err
		}
		replace[name] = at
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", "", err
	}
	overlay := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		return "", "", err
	}
	binary = filepath.Join(tmp, "test")
	out, err := exec.CommandContext(context.Background(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o",
		binary, pkg).CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("the mutants don't compile: %w\n%s", err, out)
	}
	return binary, m.dir, nil
}

type runner struct {
	o                options
	binary, dir, tmp string

	mu         *sync.Mutex
	controlled map[string]bool // tests that pass without a mutant
}

// test runs the tests with one mutant, 0 for none.
func (r runner) test(id int, env ...string) (out []byte, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), r.o.timeout+10*time.Second)
	defer cancel()
	args := []string{"-test.failfast", "-test.timeout", r.o.timeout.String()}
	if r.o.checks > 0 {
		args = append(args, "-rapid.checks", strconv.Itoa(r.o.checks), "-rapid.nofailfile", "-rapid.shrinktime", "0s")
	}
	if r.o.run != "" {
		args = append(args, "-test.run", r.o.run)
	}
	if r.o.skip != "" {
		args = append(args, "-test.skip", r.o.skip)
	}
	c := exec.CommandContext(ctx, r.binary, args...)
	c.Dir = r.dir
	c.Env = append(append(os.Environ(), env...), "MUTANT="+strconv.Itoa(id), "MUTANT_REACHED="+r.reachedFile(id))
	out, err := c.CombinedOutput()
	return out, err == nil
}

func (r runner) reachedFile(id int) string {
	return filepath.Join(r.tmp, fmt.Sprintf("reached-%d", id))
}

// all tries mutants. An unexplained survivor is an error.
func (r runner) all(tried []mutant, explained []*explanation) error {
	began := time.Now()
	var mu sync.Mutex
	var killed, late, fine, survived, missed int
	next := make(chan mutant)
	var wg sync.WaitGroup
	for range r.o.workers {
		wg.Go(func() {
			for v := range next {
				out, ok := r.test(v.id)
				_, err := os.Stat(r.reachedFile(v.id))
				mu.Lock()
				switch {
				case !ok:
					killed++
					if bytes.Contains(out, []byte("panic: test timed out")) {
						late++
					}
				case explains(explained, v):
					fine++
				case errors.Is(err, os.ErrNotExist):
					missed++
					fmt.Println("not reached:", v)
				default:
					survived++
					fmt.Println("survived:   ", v)
				}
				mu.Unlock()
			}
		})
	}
	for _, v := range tried {
		if time.Since(began) > r.o.budget {
			break
		}
		next <- v
	}
	close(next)
	wg.Wait()
	n := killed + fine + survived + missed
	fmt.Printf("mutate: %d of %d mutants killed (%.1f %%, %d by -timeout), %d without difference, %d survived, "+
		"%d not reached; %d not tried; %s\n", killed, n, 100*float64(killed)/float64(max(n, 1)), late, fine, survived,
		missed, len(tried)-n, time.Since(began).Round(time.Second))
	for _, e := range explained {
		if !e.used {
			fmt.Println("explained, and killed or gone:", cmp.Or(e.mutant, fmt.Sprint(e.pattern)))
		}
	}
	if survived+missed > 0 {
		return errors.New("see survivors above: add a test, or explain them in tools/mutate/go.txt")
	}
	return nil
}

// exported is where the compiler left what a package exports.
func exported(pkg string) (map[string]string, error) {
	out, err := exec.CommandContext(context.Background(), "go", "list", "-export", "-deps", "-f",
		"{{.ImportPath}}\t{{.Export}}", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	at := map[string]string{}
	for line := range bytes.Lines(out) {
		if name, file, ok := strings.Cut(strings.TrimSpace(string(line)), "\t"); ok {
			at[name] = file
		}
	}
	return at, nil
}
