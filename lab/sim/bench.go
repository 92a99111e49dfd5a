package sim

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	benchsite "github.com/prego/prego/agent/site"
	"github.com/prego/prego/agent/wire"
)

// The stand-in for bench runs as a child of the agent, in a separate process: a Python program in bench/, which has the
// command line, the files and the databases of Frappe 15 (contributing/frappe.md). It and the simulator share files below .sim
// in the bench's directory:
//
//	host     the name of the server
//	image    what the backend's container was made from, as on a real host the code is
//	delays   lines of a verb and the seconds that it takes
//	faults   a link to the faults of the cloud, which all hosts share
// There each fault is a directory, named after its place in the order of injection, that appears and goes atomically:
//
//	fault    lines server=, verb=, action=, message= and delay= (seconds)
//	matched  a byte for each time that it was considered
//	skip/    a file for each match that is still to pass
//	times/   a file for each time that it is still to happen
//	forever  is there instead, when it has no end; hits has a byte for each time
// A command takes the first fault that matches and happens. It claims a file of it by removing the file: the file
// system lets only one of two commands do so, on any host. The number of removed files of times is the number of
// occurrences. Bytes are appended one at a time, which never get lost.

// benchProgram is the stand-in.
//
//go:embed bench/frappe/*.py bench/frappe/commands/*.py bench/frappe/utils/*.py
var benchProgram embed.FS

// benchApps are the apps that a simulated bench has.
var benchApps = []string{"frappe", "erpnext", "hrms", "crm"}

// benchVerbs are what a fault can be about.
var benchVerbs = []string{
	"new-site", "set-config", "install-app", "list-apps", "set-maintenance-mode", "backup", "restore", "drop-site",
	"migrate", "execute", "clear-cache", "set-admin-password", "add-system-manager", "add-user", "enable-scheduler",
	"disable-scheduler",
}

func (s *Sim) benchFaultsDir() string { return filepath.Join(s.cfg.StateDir, "bench-faults") }

// installServices puts the host's services on its disk: a reachable shard's or pool's server, else a bench.
func (h *processHost) installServices(ctx context.Context) error {
	if h.hasData() {
		return h.startData(ctx)
	}
	return h.installBench()
}

// installBench puts the stand-in on the host's disk. What sites there are stays.
func (h *processHost) installBench() error {
	if err := h.installSimulation(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return h.installStrictBench()
}

// installSimulation writes what the stand-in knows of the simulator.
func (h *processHost) installSimulation() error {
	p := h.sim.cfg.Profile
	var delays strings.Builder
	for _, d := range []struct {
		verb string
		time time.Duration
	}{{"new-site", p.BenchNewSite}, {"clear-cache", p.BenchRename}, {"install-app", p.BenchInstallApp}} {
		if d.time > 0 {
			fmt.Fprintf(&delays, "%s %s\n", d.verb, seconds(d.time))
		}
	}
	for _, dir := range []string{".sim", "sites"} {
		if err := os.MkdirAll(filepath.Join(h.root(), wire.BenchDir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := h.write(wire.BenchDir+"/.sim/host", h.name+"\n", 0o644); err != nil {
		return err
	}
	if err := h.write(wire.BenchDir+"/.sim/delays", delays.String(), 0o644); err != nil {
		return err
	}
	faults, err := filepath.Abs(h.sim.benchFaultsDir())
	if err != nil {
		return err
	}
	link := filepath.Join(h.root(), wire.BenchDir, ".sim", "faults")
	_ = os.Remove(link)
	return os.Symlink(faults, link)
}

// installStrictBench makes a bench as the image of a real host has it, with the
// configuration and the credentials that a real host's bench and agent get.
func (h *processHost) installStrictBench() error {
	fail := func(err error) error { return fmt.Errorf("bench: %w", err) }
	services, err := h.sim.benchServices()
	if err != nil {
		return fail(err)
	}
	program, err := h.sim.unpackBench()
	if err != nil {
		return fail(err)
	}
	dirs := []string{wire.BenchDir + "/config/pids", wire.BenchDir + "/logs", filepath.Dir(wire.MariaDBSocket)}
	for _, app := range benchApps {
		dirs = append(dirs, wire.BenchDir+"/apps/"+app)
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(h.root(), dir), 0o755); err != nil {
			return fail(err)
		}
	}
	// As the stack mounts it.
	mounted := filepath.Join(h.root(), filepath.Dir(wire.ContainerTLSDir))
	for _, dir := range []string{filepath.Join(h.root(), wire.BenchMount), filepath.Dir(mounted)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fail(err)
		}
	}
	_ = os.Remove(mounted)
	if err := os.Symlink(filepath.Join(h.root(), wire.BenchMount), mounted); err != nil {
		return fail(err)
	}
	socket := filepath.Join(h.root(), wire.MariaDBSocket)
	_ = os.Remove(socket)
	if err := os.Symlink(services.mariadb.socket, socket); err != nil {
		return fail(err)
	}
	redis := "unix://" + services.redis.socket
	module, content, hook := benchsite.BenchModule()
	common, err := h.mergedConfig(map[string]any{
		"db_socket": services.mariadb.socket, "redis_cache": redis,
		"redis_queue": redis, "extra_config": hook,
	})
	if err != nil {
		return fail(err)
	}
	creds, err := json.Marshal(wire.Services{Bench: wire.Service{User: "root", Password: services.rootPassword}})
	if err != nil {
		return fail(err)
	}
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{
		{wire.BenchDir + "/sites/" + module, string(content), 0o644},
		{wire.BenchDir + "/sites/apps.txt", strings.Join(benchApps, "\n") + "\n", 0o644},
		{wire.BenchDir + "/sites/common_site_config.json", common, 0o644},
		{wire.SecretsDir + "/mariadb-root", services.rootPassword + "\n", 0o600},
		{wire.ServicesPath, string(creds) + "\n", 0o600},
		// -I and -S leave out what a program of our own doesn't need, and starts faster without.
		{wire.BenchBinary, "#!/usr/bin/python3 -IS\nimport sys\nsys.path[:0] = [" + strconv.Quote(program) +
			", \"/usr/lib/python3/dist-packages\"]\n" +
			"from frappe import bench\nbench.main(sys.argv)\n", 0o755},
	} {
		if err := h.write(f.name, f.content, f.mode); err != nil {
			return fail(err)
		}
	}
	return nil
}

// mergedConfig is the bench's configuration with some of its keys set.
func (h *processHost) mergedConfig(set map[string]any) (string, error) {
	conf := make(map[string]any)
	if b, err := os.ReadFile(filepath.Join(h.root(), wire.BenchDir, "sites/common_site_config.json")); err == nil {
		_ = json.Unmarshal(b, &conf) // an unreadable file is recreated
	}
	maps.Copy(conf, set)
	b, err := json.MarshalIndent(conf, "", " ")
	return string(b), err
}

// unpackBench writes the strict stand-in to where the hosts of this cloud run it from:
// its modules are compiled once for all.
func (s *Sim) unpackBench() (string, error) {
	s.benchOnce.Do(func() {
		dir, err := filepath.Abs(filepath.Join(s.cfg.StateDir, "bench"))
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if err == nil {
			var sub fs.FS
			if sub, err = fs.Sub(benchProgram, "bench"); err == nil {
				err = os.CopyFS(dir, sub)
			}
		}
		s.benchDir, s.benchErr = dir, err
	})
	return s.benchDir, s.benchErr
}

// benchServices are what the hosts of this cloud share.
func (s *Sim) benchServices() (*services, error) {
	s.servicesOnce.Do(func() { s.services, s.servicesErr = s.startServices() })
	return s.services, s.servicesErr
}

// write replaces a file of the host atomically.
func (h *processHost) write(name, content string, mode os.FileMode) error {
	path := filepath.Join(h.root(), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return writeProgram(path, []byte(content), mode)
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

// publish writes a bench fault for the stand-ins. Call it with the lock held.
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
	// Shell patterns negate a set with "!".
	server = strings.ReplaceAll(server, "[^", "[!")
	files := map[string]string{
		"fault": fmt.Sprintf("server=%s\nverb=%s\naction=%s\nmessage=%s\ndelay=%s\n", server, f.Verb, f.Action,
			message, seconds(time.Duration(f.DelayMS)*time.Millisecond)),
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

// count reads what the stand-ins did with a bench fault.
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

// withdraw takes all bench faults from the stand-ins. Call it with the lock held.
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
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a shard or a pool
	}
	if err != nil {
		return nil, fmt.Errorf("sites: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "__pycache__" { // of the bench's own module
			out = append(out, e.Name())
		}
	}
	return out, nil
}
