package docsrun

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
)

// documents are the repository's, by their path. The contracts and decisions are rules,
// and show no commands; their fences are read all the same.
func documents(t *testing.T, root string) []document {
	t.Helper()
	var out []document
	require.NoError(t, filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if name := e.Name(); p != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(p) != ".md" {
			return nil
		}
		b, err := os.ReadFile(p)
		if err == nil {
			name, _ := filepath.Rel(root, p)
			out = append(out, parse(filepath.ToSlash(name), string(b)))
		}
		return err
	}))
	return out
}

// TestDocumentsAreWellFormed: each fence declares its language.
func TestDocumentsAreWellFormed(t *testing.T) {
	t.Parallel()
	commands := 0
	for _, d := range documents(t, "../..") {
		for _, p := range d.problems {
			t.Error(p)
		}
		commands += len(d.commands)
	}
	require.Greater(t, commands, 200)
}

// TestDocumentsRunAsWritten: every command of the documents works as described, in the order of each document, on a
// fresh control plane.
func TestDocumentsRunAsWritten(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var (
		mu    sync.Mutex
		ran   int
		marks []string
	)
	t.Cleanup(func() {
		slices.Sort(marks)
		t.Logf("%d commands ran; fences that are not run:\n%s", ran, strings.Join(marks, "\n"))
	})
	for _, d := range documents(t, s.root) {
		for _, m := range d.marks {
			marks = append(marks, fmt.Sprintf("%s: %d commands: %s", m.at, m.commands, m.why))
		}
		if len(d.commands) == 0 {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			shell := s.session(t)
			out, status, err := shell.run(start, limit)
			require.NoError(t, err, out)
			require.Zero(t, status, out)
			for _, p := range play(shell, d, limit, t.Logf) {
				t.Error(p)
			}
			mu.Lock()
			defer mu.Unlock()
			ran += len(d.commands)
		})
	}
}

// TestTheDemoRunsAsShown: what make demo runs does what docs/first-run.md shows of it.
func TestTheDemoRunsAsShown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	shown := slices.Collect(func(yield func([]string) bool) {
		for _, d := range documents(t, s.root) {
			for _, m := range d.marks {
				if strings.Contains(m.why, t.Name()) && !yield(m.lines) {
					return
				}
			}
		}
	})
	require.Len(t, shown, 1)
	shell := s.session(t)
	out, status, err := shell.run(demo, limit)
	require.NoError(t, err, out)
	require.Zero(t, status, out)
	out, held, ok := strings.Cut(out, "secrets of processes:\n")
	require.True(t, ok, out)
	found := map[string]string{}
	for line := range strings.Lines(held) {
		f := strings.Fields(line)
		if len(f) > 1 {
			found[f[0]] = f[1]
		}
	}
	require.Equal(t, map[string]string{
		"prego/api": "DATABASE_URL", "prego/agentgw": "DATABASE_URL",
		"prego/worker": "DATABASE_URL,HCLOUD_TOKEN,PREGO_BACKUP_ACCESS_KEY,PREGO_BACKUP_SECRET_KEY,PREGO_MASTER_KEY",
	}, found, "the secrets of each process")
	missing, ok := matches(append([]string{anything}, shown[0]...), out)
	require.True(t, ok, "%s is not where it should be in\n%s", missing, out)
}

// demo runs the demo, and looks at the environment of each process while it does: program,
// its first argument, and the names of the secrets that have a value.
const demo = `ip link set lo up && mount -t tmpfs tmpfs /dev/shm || exit
bin/prego-lab dev --demo --exit >demo.log 2>&1 &
pid=$!
until grep -q 'worker is ready' demo.log; do
	kill -0 $pid 2>/dev/null || break
	sleep 0.1
done
for p in /proc/[0-9]*; do
	name=$(basename "$(readlink $p/exe)" 2>/dev/null)/$(tr '\0' '\n' <$p/cmdline 2>/dev/null | sed -n 2p)
	echo "$name" "$(tr '\0' '\n' <$p/environ 2>/dev/null | sed -nE 's/^((DATABASE_URL|HCLOUD_TOKEN|PREGO_MASTER_KEY|PREGO_BACKUP_(ACCESS|SECRET)_KEY)[A-Z_]*)=.+/\1/p' | sort | paste -sd,)"
done >held.log
status=0
wait $pid || status=$?
cat demo.log
echo secrets of processes:
cat held.log
(exit $status)`

// stage is what sessions share: the programs that documents run.
type stage struct{ root, bins, unshare string }

func newStage(t *testing.T) stage {
	t.Helper()
	s := stage{unshare: need.Program(t, "unshare")}
	for _, p := range []string{"ip", "curl", "jq", "hcloud"} {
		need.Program(t, p)
	}
	need.Root(t, "the ports in the documents are fixed, so that each needs a separate network")
	var err error
	s.root, err = filepath.Abs("../..")
	require.NoError(t, err)
	s.bins, err = build()
	require.NoError(t, err)
	return s
}

// session is a shell with a separate network, and the programs in bin.
func (s stage) session(t *testing.T) *session {
	t.Helper()
	shell := newSession(t, environment(t, s.root, s.bins), s.unshare, "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
	require.NoError(t, os.Symlink(s.bins, filepath.Join(shell.dir, "bin")))
	return shell
}

// start is what a reader does first: prego-lab dev in one terminal, and in another the two
// variables that it prints. An answer of curl that is an error ends it as one.
const start = `set -o pipefail
curl() { command curl --fail-with-body "$@"; }
ip link set lo up || return
mount -t tmpfs tmpfs /dev/shm || return
bin/prego-lab dev >dev.log 2>&1 &
until grep -q 'Ctrl-C stops everything' dev.log; do
	kill -0 $! 2>/dev/null || { cat dev.log; return 1; }
	sleep 0.1
done
eval "$(grep '^  export ' dev.log)"`

// environment is a reader's: without our settings, and with a home that is empty.
func environment(t *testing.T, root, bins string) []string {
	t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		for _, prefix := range []string{"PREGO_", "HCLOUD_", "TEMPORAL_", "DATABASE_URL=", "XDG_", "HOME=", "PATH="} {
			if strings.HasPrefix(v, prefix) {
				return true
			}
		}
		return false
	})
	return append(env, "HOME="+t.TempDir(), "PATH="+bins+":"+filepath.Join(root, ".prego", "bin")+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
}
