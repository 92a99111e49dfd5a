package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

func benchSim(t *testing.T, p Profile) *Sim {
	t.Helper()
	s, err := New(Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: "secret", Profile: p})
	require.NoError(t, err)
	return s
}

func benchHost(t *testing.T, s *Sim, name string) *processHost {
	t.Helper()
	h := &processHost{sim: s, name: name, dir: filepath.Join(s.cfg.StateDir, "hosts", name)}
	require.NoError(t, h.installBench())
	require.NoError(t, h.installBench(), "as at the next boot")
	return h
}

func (h *processHost) command(args string) *exec.Cmd {
	return exec.CommandContext(context.Background(), filepath.Join(h.root(), wire.BenchBinary), strings.Fields(args)...)
}

// bench runs a command line; it returns its status and what it wrote.
func (h *processHost) bench(t *testing.T, args string) (int, string) {
	t.Helper()
	for {
		cmd := h.command(args)
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.ETXTBSY) { // another test forks while the script is written
			continue
		}
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Errorf("bench %s: %v", args, err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
}

func (h *processHost) site(name string) string {
	return filepath.Join(h.root(), wire.BenchDir, "sites", name)
}

func TestScriptBenchKeepsSites(t *testing.T) {
	t.Parallel()
	h := benchHost(t, benchSim(t, Profile{}), "app-1")
	for _, tc := range []struct {
		args   string
		status int
		says   string
	}{
		{"list-sites", 0, ""},
		{"new-site a.example.com --db-name _a", 0, "has been created"},
		{"new-site a.example.com --db-name _a", 0, "already exists"},
		{"new-site a.example.com --db-name _b", 1, "already exists with another database"},
		{"new-site b.example.com --db-name _b", 0, "created"},
		{"list-sites", 0, "a.example.com\nb.example.com\n"},
		{"--site a.example.com rename-site b.example.com", 1, "already exists"},
		{"--site a.example.com rename-site c.example.com", 0, "is now"},
		{"--site a.example.com rename-site c.example.com", 0, "is now"},
		{"--site c.example.com rename-site c.example.com", 0, "is now"},
		{"--site x.example.com rename-site y.example.com", 1, "does not exist"},
		{"list-sites", 0, "b.example.com\nc.example.com\n"},
		{"--site c.example.com install-app erpnext", 0, "Installed"},
		{"--site c.example.com install-app erpnext", 0, "already installed"},
		{"--site c.example.com list-apps", 0, "frappe\nerpnext\n"},
		{"--site x.example.com install-app erpnext", 1, "does not exist"},
		{"--site x.example.com list-apps", 1, "does not exist"},
		{`--site c.example.com set-config host_name https://c\n.example.com/$HOME`, 0, ""},
		{"--site c.example.com set-config plan small", 0, ""},
		{"--site c.example.com set-config plan large", 0, ""},
		{"--site x.example.com set-config plan large", 1, "does not exist"},
		{"--site c.example.com set-maintenance-mode on", 0, ""},
		{"--site x.example.com set-maintenance-mode on", 1, "does not exist"},
		{"--site c.example.com backup", 0, "bytes "},
		{"--site x.example.com backup", 1, "does not exist"},
		{"drop-site b.example.com --force --no-backup", 0, "gone"},
		{"drop-site b.example.com --force --no-backup", 0, "gone"},
		{"list-sites", 0, "c.example.com\n"},
		{"migrate", 1, "No such command 'migrate'"},
		{"--site c.example.com", 1, "Usage"},
		{"", 1, "No such command"},
	} {
		status, says := h.bench(t, tc.args)
		require.Equal(t, tc.status, status, "%s: %s", tc.args, says)
		require.Contains(t, says, tc.says, tc.args)
		if tc.args == "list-sites" {
			require.Equal(t, tc.says, says)
		}
	}
	for name, want := range map[string]string{"config": `host_name=https://c\n.example.com/$HOME` + "\nplan=large\n", "db-name": "_a\n", "maintenance": "on\n", "apps.txt": "frappe\nerpnext\n"} {
		got, err := os.ReadFile(filepath.Join(h.site("c.example.com"), name))
		require.NoError(t, err)
		require.Equal(t, want, string(got), name)
	}
	entries, err := os.ReadDir(h.site(""))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left lying about")
}

func TestScriptKilledNewSiteIsNoSite(t *testing.T) {
	t.Parallel()
	s := benchSim(t, Profile{BenchNewSite: 5 * time.Minute})
	h := benchHost(t, s, "app-1")
	cmd := h.command("new-site a.example.com --db-name _a")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.Eventually(t, func() bool { return !errors.Is(cmd.Start(), syscall.ETXTBSY) }, 5*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(h.site(".new-a.example.com"), "maintenance"))
		return err == nil
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
	_ = cmd.Wait()
	_, says := h.bench(t, "list-sites")
	require.Empty(t, says)

	s.cfg.Profile.BenchNewSite = 0
	require.NoError(t, h.installBench())
	status, says := h.bench(t, "new-site a.example.com --db-name _a")
	require.Equal(t, 0, status, says)
	require.NoDirExists(t, h.site(".new-a.example.com"))
	require.NoError(t, os.Mkdir(h.site(".new-a.example.com"), 0o755))
	status, _ = h.bench(t, "drop-site a.example.com --force --no-backup")
	require.Equal(t, 0, status)
	entries, err := os.ReadDir(h.site(""))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestScriptBenchTakesItsTime(t *testing.T) {
	t.Parallel()
	h := benchHost(t, benchSim(t, Profile{BenchNewSite: 300 * time.Millisecond}), "app-1")
	began := time.Now()
	status, _ := h.bench(t, "new-site a.example.com --db-name _a")
	require.Equal(t, 0, status)
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
}

func TestScriptBenchFaults(t *testing.T) {
	t.Parallel()
	s := benchSim(t, Profile{})
	h, other := benchHost(t, s, "prego-app-1"), benchHost(t, s, "prego-db-1")
	inject := func(f Fault) {
		f.Kind = "bench"
		_, err := s.Inject(f)
		require.NoError(t, err)
	}
	inject(Fault{Verb: "new-site", Server: "prego-[^d]*", Action: "fail_after", Message: "the disk = is 'full' \\n", Skip: 1, Times: 1})
	inject(Fault{Verb: "backup", Action: "fail"})
	inject(Fault{Verb: "list-apps", Action: "hang", DelayMS: 300, Times: 2})

	status, _ := other.bench(t, "new-site a.example.com --db-name _a")
	require.Equal(t, 0, status)
	for i, want := range []int{0, 1, 0} {
		status, says := h.bench(t, fmt.Sprintf("new-site s%d.example.com --db-name _s%d", i, i))
		require.Equal(t, want, status, says)
		if want == 1 {
			require.Contains(t, says, "the disk = is 'full' \\n\n")
		}
		require.DirExists(t, h.site(fmt.Sprintf("s%d.example.com", i)), "the work is done")
	}
	for range 3 {
		status, says := h.bench(t, "--site s0.example.com backup")
		require.Equal(t, 1, status)
		require.Equal(t, "injected fault\n", says)
	}
	began := time.Now()
	status, says := h.bench(t, "--site s0.example.com list-apps")
	require.Equal(t, 0, status)
	require.Equal(t, "frappe\n", says)
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)

	counts := func() (out [][2]int) {
		for _, f := range s.Faults() {
			out = append(out, [2]int{f.Matched, f.Hits})
		}
		return out
	}
	require.Equal(t, [][2]int{{3, 1}, {3, 3}, {1, 1}}, counts())

	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.ControlURL()+"/faults", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	status, says = h.bench(t, "--site s0.example.com backup")
	require.Equal(t, 0, status, says)
	require.Empty(t, counts())
}

func TestScriptBenchFaultsAreClaimedOnce(t *testing.T) {
	t.Parallel()
	s := benchSim(t, Profile{})
	hosts := []*processHost{benchHost(t, s, "app-1"), benchHost(t, s, "app-2")}
	_, err := s.Inject(Fault{Kind: "bench", Action: "fail", Skip: 7, Times: 5})
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for i := range 40 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			status, _ := hosts[i%2].bench(t, "list-sites")
			mu.Lock()
			defer mu.Unlock()
			failed += status
		}()
	}
	wg.Wait()
	require.Equal(t, 5, failed)
	f := s.Faults()[0]
	require.Equal(t, [2]int{40, 5}, [2]int{f.Matched, f.Hits})
}

func TestScriptBenchFaultsAreChecked(t *testing.T) {
	t.Parallel()
	s := benchSim(t, Profile{})
	for _, f := range []Fault{
		{}, {Action: "respond"}, {Action: "hang"}, {Action: "fail", Verb: "rename"}, {Action: "fail", Message: "two\nlines"}, {Action: "fail", Server: "["}, {Action: "fail", Times: -1},
	} {
		f.Kind = "bench"
		_, err := s.Inject(f)
		require.Error(t, err, "%+v", f)
	}
	require.False(t, bytes.Contains(benchScript, []byte("bash")))
}

// TestABackupIsRestored goes there and back: data and files are those of the backup,
// configuration and maintenance stay.
func TestScriptBackupIsRestored(t *testing.T) {
	t.Parallel()
	h := benchHost(t, benchSim(t, Profile{}), "app-1")
	run := func(want int, args string) string {
		t.Helper()
		status, says := h.bench(t, args)
		require.Equal(t, want, status, says)
		return says
	}
	run(0, "new-site a.example.com --db-name _a")
	site := h.site("a.example.com")
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(site, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(site, name), []byte(text), 0o600))
	}
	write("data", "first")
	write("private/files/letter", "dear")
	files, err := prego.BackupFiles("a.example.com", run(0, "--site a.example.com backup --with-files"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	second, err := prego.BackupFiles("a.example.com", run(0, "--site a.example.com backup --with-files"))
	require.NoError(t, err)
	require.NotEqual(t, files, second, "none is written over")

	write("data", "second")
	write("private/files/letter", "changed")
	write("private/files/new", "new")
	run(0, "--site a.example.com install-app erpnext")
	run(0, "--site a.example.com set-config plan large")
	restore := strings.Join(prego.RestoreArgs("a.example.com", files), " ")
	run(0, restore)
	run(0, restore)
	for name, want := range map[string]string{"data": "first", "private/files/letter": "dear", "apps.txt": "frappe\n", "config": "plan=large\n"} {
		got, err := os.ReadFile(filepath.Join(site, name))
		require.NoError(t, err)
		require.Equal(t, want, string(got), name)
	}
	require.NoFileExists(t, filepath.Join(site, "private/files/new"))

	// What can't be read changes nothing.
	write("private/backups/20200101_000000-a-database.sql.gz", "no backup")
	require.Contains(t, run(1, "--site a.example.com restore a.example.com/private/backups/20200101_000000-a-database.sql.gz"), "could not be read")
	require.Contains(t, run(1, "--site a.example.com restore a.example.com/private/backups/20200101_000001-a-database.sql.gz"), "Invalid path")
	got, err := os.ReadFile(filepath.Join(site, "data"))
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
	entries, err := os.ReadDir(h.site(""))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left lying about")
}
