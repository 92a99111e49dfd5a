// Command frozen plants the mutants of mutants.txt, one at a time, and runs the test that catches each: a refactoring
// that loses a test, or what it looks at, lets one survive.
//
//	go run ./tools/frozen [-jobs 2] [ID or REGEXP...]
//
// No file is changed: a mutant is in an overlay of the build. What can't be planted any more, does not compile, or names
// a test that is not there, or that fails without it, is an error, and never counts as caught.
package main

import (
	"context"
	_ "embed" // the mutants
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

const list = "tools/frozen/mutants.txt"

//go:embed mutants.txt
var text string

// mutant is a change that a test catches.
type mutant struct {
	id string
	// file is changed where it has the text of old, which is there once; or bug is planted for the seeded world.
	file, old, new string
	bug            string
	pkg, test      string // the test as a pattern of -run
}

// parse reads blocks such as
//
//	# id: its fault
//	file: placement/policy.go
//	test: ./placement TestTierLocks
//	- what there is, a part of a line or several; how far they are indented does not matter
//	+ what there is instead
//
// or, with `bug: NAME` instead of file, - and +, a bug of lab/world/testdata/bugs.
func parse(text string) (out []mutant, err error) {
	ids := map[string]bool{}
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		var m mutant
		var before, after []string
		for line := range strings.SplitSeq(block, "\n") {
			switch key, rest, _ := strings.Cut(line, " "); key {
			case "#":
				m.id, _, _ = strings.Cut(rest, ":")
			case "file:":
				m.file = rest
			case "bug:":
				m.bug = rest
			case "test:":
				m.pkg, m.test, _ = strings.Cut(rest, " ")
			case "-":
				before = append(before, rest)
			case "+":
				after = append(after, rest)
			default:
				return nil, fmt.Errorf("%s: %q", m.id, line)
			}
		}
		m.old, m.new = strings.Join(before, "\n"), strings.Join(after, "\n")
		change := m.file != "" && m.old != "" && m.old != m.new
		if m.id == "" || ids[m.id] || m.pkg == "" || m.test == "" || (m.bug == "") != change {
			return nil, fmt.Errorf("%q is no mutant, or is there twice", block)
		}
		ids[m.id] = true
		out = append(out, m)
	}
	return out, nil
}

// plant returns the mutant's text of its file.
func (m mutant) plant(root string) ([]byte, error) {
	is, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.SplitSeq(m.old, "\n") {
		lines = append(lines, regexp.QuoteMeta(strings.TrimSpace(line)))
	}
	found := regexp.MustCompile(strings.Join(lines, `\n[ \t]*`)).FindAllIndex(is, -1)
	if len(found) != 1 {
		return nil, fmt.Errorf("its text is %d times in %s", len(found), m.file)
	}
	at := found[0]
	return append(append(append([]byte{}, is[:at[0]]...), m.new...), is[at[1]:]...), nil
}

// runner runs tests with mutants and without.
type runner struct {
	root, dir string
	timeout   time.Duration
	planted   func() (overlay string, err error)

	mu       sync.Mutex
	built    map[string]func() (string, error) // test binaries by package and overlay
	controls map[string]func() error           // of tests without a mutant
}

// binary builds a package's tests once.
func (r *runner) binary(pkg, overlay, name string) (string, error) {
	r.mu.Lock()
	key := pkg + " " + overlay
	build, ok := r.built[key]
	if !ok {
		build = sync.OnceValues(func() (string, error) {
			out := filepath.Join(r.dir, name+".test")
			args := []string{"test", "-trimpath", "-vet=off", "-c", "-o", out}
			if overlay != "" {
				args = append(args, "-overlay", overlay)
			}
			cmd := exec.CommandContext(context.Background(), "go", append(args, pkg)...)
			cmd.Dir, cmd.Env = r.root, append(os.Environ(), "CGO_ENABLED=0")
			if said, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("it does not compile: %s", last(said))
			}
			return out, nil
		})
		r.built[key] = build
	}
	r.mu.Unlock()
	return build()
}

var none = regexp.MustCompile(`(?m)^testing: warning: no tests to run$`)

// fails reports whether a test fails. A test that reads the code as text gets the overlay.
func (r *runner) fails(binary string, m mutant, overlay, bug string) (failed bool, said []byte, err error) {
	cmd := exec.CommandContext(context.Background(), binary, "-test.run", m.test, "-test.timeout", r.timeout.String())
	cmd.Dir = filepath.Join(r.root, m.pkg)
	cmd.Env = append(os.Environ(), "CHAOS_BUG="+bug, "PREGO_TEST_PLANTED="+bug, "PREGO_TEST_OVERLAY="+overlay)
	said, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return true, said, nil
	case err == nil && none.Match(said):
		err = fmt.Errorf("%s has no test %s", m.pkg, m.test)
	}
	return false, said, err
}

// control runs a test without a mutant, once: a test that fails anyway catches nothing.
func (r *runner) control(m mutant) error {
	r.mu.Lock()
	key := m.pkg + " " + m.test
	run, ok := r.controls[key]
	if !ok {
		run = sync.OnceValue(func() error {
			binary, err := r.binary(m.pkg, "", "control-"+strings.NewReplacer("/", "_", ".", "").Replace(m.pkg))
			if err != nil {
				return err
			}
			failed, said, err := r.fails(binary, m, "", "none")
			if failed {
				err = fmt.Errorf("its test fails without it: %s", last(said))
			}
			return err
		})
		r.controls[key] = run
	}
	r.mu.Unlock()
	return run()
}

// try reports whether a mutant is caught.
func (r *runner) try(m mutant) (bool, error) {
	var overlay string
	name, bug := m.id, "none"
	if m.bug != "" {
		var err error
		if overlay, err = r.planted(); err != nil {
			return false, err
		}
		name, bug = "planted-"+strings.NewReplacer("/", "_", ".", "").Replace(m.pkg), m.bug
	} else {
		mutated, err := m.plant(r.root)
		if err != nil {
			return false, err
		}
		file := filepath.Join(r.dir, m.id+filepath.Ext(m.file))
		overlay = filepath.Join(r.dir, m.id+".json")
		replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, m.file): file}})
		if err != nil {
			return false, err
		}
		if err := errors.Join(os.WriteFile(file, mutated, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
			return false, err
		}
	}
	binary, err := r.binary(m.pkg, overlay, name)
	if err != nil {
		return false, err
	}
	if m.bug == "" {
		defer func() { _ = os.Remove(binary) }() // they are large
	}
	if err := r.control(m); err != nil {
		return false, err
	}
	failed, _, err := r.fails(binary, m, overlay, bug)
	return failed, err
}

// last is the end of a program's output, on one line.
func last(said []byte) string {
	s := strings.Join(strings.Fields(string(said)), " ")
	return s[max(0, len(s)-300):]
}

func chosen(all []mutant, patterns []string) (out []mutant) {
	for _, m := range all {
		is := len(patterns) == 0
		for _, p := range patterns {
			is = is || regexp.MustCompile("^(?:"+p+")$").MatchString(m.id)
		}
		if is {
			out = append(out, m)
		}
	}
	return out
}

func main() {
	log.SetFlags(0)
	jobs := flag.Int("jobs", 1, "mutants that are tried concurrently")
	timeout := flag.Duration("timeout", 5*time.Minute, "of one test; a test that does not end counts as failed")
	flag.Parse()
	caught, survived, wrong, err := run(*jobs, *timeout, flag.Args())
	if err != nil {
		log.Fatal(err)
	}
	if wrong > 0 {
		fmt.Printf("%d could not be tried\n", wrong)
	}
	fmt.Printf("%d caught, %d survived\n", caught, survived)
	if survived > 0 || wrong > 0 || caught == 0 {
		os.Exit(1)
	}
}

func run(jobs int, timeout time.Duration, patterns []string) (caught, survived, wrong int, err error) {
	all, err := parse(text)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("%s: %w", list, err)
	}
	root, err := os.Getwd()
	if err != nil {
		return 0, 0, 0, err
	}
	dir, err := os.MkdirTemp("", "frozen-")
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &runner{
		root: root, dir: dir, timeout: timeout,
		built: map[string]func() (string, error){}, controls: map[string]func() error{},
	}
	r.planted = sync.OnceValues(func() (string, error) {
		overlay, err := exec.CommandContext(context.Background(), "tools/planted.sh",
			filepath.Join(dir, "tree")).Output()
		file := filepath.Join(dir, "planted.json")
		return file, errors.Join(err, os.WriteFile(file, overlay, 0o600))
	})
	var (
		todo = make(chan mutant)
		mu   sync.Mutex
		wg   sync.WaitGroup
	)
	for range jobs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for m := range todo {
				began := time.Now()
				is, err := r.try(m)
				mu.Lock()
				what := "SURVIVED"
				switch {
				case err != nil:
					what = "ERROR"
					wrong++
				case is:
					what = "caught"
					caught++
				default:
					survived++
				}
				fmt.Printf("%-8s  %-32s  %s %s  %.0fs\n", what, m.id, m.pkg, m.test, time.Since(began).Seconds())
				if err != nil {
					fmt.Printf("          %v\n", err)
				}
				mu.Unlock()
			}
		}()
	}
	for _, m := range chosen(all, patterns) {
		todo <- m
	}
	close(todo)
	wg.Wait()
	return caught, survived, wrong, nil
}
