package sim

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/wire"
)

// The stand-in for bench runs as a child of the agent, in a process of its own.
// It and the simulator share files below .sim in the bench directory:
//
//	host     the name of the server
//	delays   lines of a verb and the seconds that it takes
//	faults   a link to the faults of the cloud, which all hosts share
//
// There each fault is a directory, named after its place in the order of
// injection, that appears and goes at once:
//
//	fault    lines server=, verb=, action=, message= and delay= (seconds)
//	matched  a byte for each time that it was considered
//	skip/    a file for each match that is still to pass
//	times/   a file for each time that it is still to happen
//	forever  is there instead, when it has no end; hits has a byte for each time
//
// A script takes the first fault that matches and happens. It claims one of its
// files by removing it: the file system lets only one of two do so, whichever
// host they are on. How often a fault happened is what is gone from times. Bytes
// are appended one at a time, which never get lost.

//go:embed bench.sh
var benchScript []byte

// benchVerbs are what a fault can be about.
var benchVerbs = []string{"new-site", "rename-site", "set-config", "install-app", "list-apps", "set-maintenance-mode", "backup", "restore", "drop-site", "list-sites"}

func (s *Sim) benchFaultsDir() string { return filepath.Join(s.cfg.StateDir, "bench-faults") }

// installBench puts the stand-in on the host's disk. What sites there are stays.
func (h *host) installBench() error {
	p := h.sim.cfg.Profile
	var delays strings.Builder
	for _, d := range []struct {
		verb string
		time time.Duration
	}{{"new-site", p.BenchNewSite}, {"rename-site", p.BenchRename}, {"install-app", p.BenchInstallApp}} {
		if d.time > 0 {
			fmt.Fprintf(&delays, "%s %s\n", d.verb, seconds(d.time))
		}
	}
	control := filepath.Join(h.root(), wire.BenchDir, ".sim")
	program := filepath.Join(h.root(), wire.BenchBinary)
	for _, dir := range []string{control, filepath.Join(h.root(), wire.BenchDir, "sites"), filepath.Dir(program)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	for _, f := range []struct {
		name    string
		content string
		mode    os.FileMode
	}{{filepath.Join(control, "host"), h.name + "\n", 0o644}, {filepath.Join(control, "delays"), delays.String(), 0o644}, {program, string(benchScript), 0o755}} {
		if err := os.WriteFile(f.name+".new", []byte(f.content), f.mode); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := os.Rename(f.name+".new", f.name); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	faults, err := filepath.Abs(h.sim.benchFaultsDir())
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	link := filepath.Join(control, "faults")
	_ = os.Remove(link)
	if err := os.Symlink(faults, link); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }

func (f *Fault) checkBench() error {
	switch f.Action {
	case "fail", "fail_after":
	case "hang":
		if f.DelayMS == 0 {
			return fmt.Errorf("action hang needs delay_ms")
		}
	default:
		return fmt.Errorf("action must be fail, fail_after or hang")
	}
	if f.Verb != "" && !slices.Contains(benchVerbs, f.Verb) {
		return fmt.Errorf("verb must be one of %s", strings.Join(benchVerbs, ", "))
	}
	if strings.ContainsAny(f.Server+f.Message, "\n\r\x00") {
		return fmt.Errorf("server and message must be one line")
	}
	return nil
}

// publish writes a bench fault for the scripts. Call it with the lock held.
func (s *Sim) publish(f *Fault) error {
	s.benchSeq++
	f.dir = filepath.Join(s.benchFaultsDir(), fmt.Sprintf("%06d-%s", s.benchSeq, f.ID))
	draft := filepath.Join(s.benchFaultsDir(), ".draft")
	message, server := f.Message, f.Server
	if message == "" {
		message = "injected fault"
	}
	if server == "" {
		server = "*"
	}
	// The shell negates a set with "!".
	server = strings.ReplaceAll(server, "[^", "[!")
	files := map[string]string{
		"fault":   fmt.Sprintf("server=%s\nverb=%s\naction=%s\nmessage=%s\ndelay=%s\n", server, f.Verb, f.Action, message, seconds(time.Duration(f.DelayMS)*time.Millisecond)),
		"matched": "",
	}
	for i := range f.Skip {
		files[fmt.Sprintf("skip/%d", i)] = ""
	}
	for i := range f.Times {
		files[fmt.Sprintf("times/%d", i)] = ""
	}
	if f.Times == 0 {
		files["forever"], files["hits"] = "", ""
	}
	_ = os.RemoveAll(draft)
	for name, content := range files {
		name = filepath.Join(draft, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return fmt.Errorf("bench fault: %w", err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return fmt.Errorf("bench fault: %w", err)
		}
	}
	if err := os.Rename(draft, f.dir); err != nil {
		return fmt.Errorf("bench fault: %w", err)
	}
	return nil
}

// count reads what the scripts did with a bench fault.
func (f *Fault) count() {
	size := func(name string) int {
		info, err := os.Stat(filepath.Join(f.dir, name))
		if err != nil {
			return 0
		}
		return int(info.Size())
	}
	f.Matched, f.Hits = size("matched"), size("hits")
	if f.Times > 0 {
		left, _ := os.ReadDir(filepath.Join(f.dir, "times"))
		f.Hits = f.Times - len(left)
	}
}

// withdraw takes all bench faults from the scripts. Call it with the lock held.
func (s *Sim) withdraw() error {
	old := s.benchFaultsDir() + ".old"
	if err := os.Rename(s.benchFaultsDir(), old); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("bench faults: %w", err)
	}
	if err := os.MkdirAll(s.benchFaultsDir(), 0o755); err != nil {
		return fmt.Errorf("bench faults: %w", err)
	}
	_ = os.RemoveAll(old)
	return nil
}

// HostSites lists the finished sites on the disk of a host, by its root directory.
func HostSites(root string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, wire.BenchDir, "sites"))
	if err != nil {
		return nil, fmt.Errorf("sites: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
