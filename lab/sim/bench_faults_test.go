package sim

import (
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
)

// other is a bench on another host of the same cloud.
func (b *bench) other(name string) *bench {
	b.t.Helper()
	out := &bench{t: b.t, host: &processHost{sim: b.host.sim, name: name, dir: filepath.Join(b.host.sim.cfg.StateDir, "hosts", name)}}
	out.install()
	return out
}

func (b *bench) inject(f Fault) {
	b.t.Helper()
	f.Kind = "bench"
	_, err := b.host.sim.Inject(f)
	require.NoError(b.t, err)
}

func TestStandInFaults(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{BenchInstallApp: 300 * time.Millisecond})
	s := b.host.sim
	shard := b.other("prego-db-1")
	b.inject(Fault{Verb: "new-site", Server: "prego-[^d]*", Action: "fail_after", Message: "the disk = is 'full' \\n", Skip: 1, Times: 1})
	b.inject(Fault{Verb: "backup", Action: "fail"})
	b.inject(Fault{Verb: "list-apps", Action: "hang", DelayMS: 300, Times: 2})

	shard.newSite("shard.example.com", "_shard")
	for i, want := range []int{0, 1, 0} {
		name := fmt.Sprintf("s%d.example.com", i)
		got := b.run(want, "new-site "+name+fmt.Sprintf(" --db-name _s%d --admin-password x", i)+b.root())
		if want == 1 {
			require.Equal(t, "the disk = is 'full' \\n\n", got.stderr)
		}
		require.Equal(t, "[\"frappe\"]\n", b.run(0, "--site "+name+" execute frappe.get_installed_apps").stdout, "the work is done")
	}
	for range 3 {
		require.Equal(t, "injected fault\n", b.run(1, "--site s0.example.com backup").stderr)
	}
	began := time.Now()
	require.Equal(t, "\nfrappe\n\n", b.run(0, "--site s0.example.com list-apps").stdout)
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
	began = time.Now()
	b.run(0, "--site s0.example.com install-app erpnext")
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond, "it takes its time")

	counts := func() (out [][2]int) {
		for _, f := range s.Faults() {
			out = append(out, [2]int{f.Matched, f.Hits})
		}
		return out
	}
	require.Equal(t, [][2]int{{3, 1}, {3, 3}, {1, 1}}, counts())

	require.NoError(t, s.Start())
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.ControlURL()+"/faults", nil)
	require.NoError(t, err)
	resp, err := need.HTTP.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	b.run(0, "--site s0.example.com backup")
	require.Empty(t, counts())
}

func TestStandInFaultsAreClaimedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	hosts := []*bench{b, b.other("app-2")}
	b.inject(Fault{Action: "fail", Skip: 7, Times: 5})
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for i := range 40 {
		wg.Go(func() {
			status := hosts[i%2].input("", "list-apps --format json").status
			mu.Lock()
			defer mu.Unlock()
			failed += status
		})
	}
	wg.Wait()
	require.Equal(t, 5, failed)
	f := b.host.sim.Faults()[0]
	require.Equal(t, [2]int{40, 5}, [2]int{f.Matched, f.Hits})
}

func TestStandInFaultsAreChecked(t *testing.T) {
	t.Parallel()
	s := benchSim(t, Profile{})
	for _, tc := range []struct {
		fault Fault
		want  string
	}{
		{Fault{}, "action must be fail, fail_after or hang"},
		{Fault{Action: "respond"}, "action must be fail, fail_after or hang"},
		{Fault{Action: "hang"}, "action hang needs delay_ms"},
		{Fault{Action: "fail", Verb: "rename"}, "verb must be one of "},
		{Fault{Action: "fail", Message: "two\nlines"}, "server and message must be one line"},
		{Fault{Action: "fail", Server: "app-1\n"}, "server and message must be one line"},
		{Fault{Action: "fail", Server: "["}, `bad pattern "["`},
		{Fault{Action: "fail", Times: -1}, "must not be negative"},
		{Fault{Action: "fail", Skip: -1}, "must not be negative"},
		{Fault{Action: "hang", DelayMS: -1}, "must not be negative"},
	} {
		tc.fault.Kind = "bench"
		_, err := s.Inject(tc.fault)
		require.ErrorContains(t, err, tc.want, "%+v", tc.fault)
	}
	require.Empty(t, s.Faults())
}
