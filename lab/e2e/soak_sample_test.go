//go:build soak

package e2e

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/soak"
)

// sampler measures, and keeps what it measured as series.
type sampler struct {
	l       *load
	s3      *s3test.Server
	every   time.Duration
	began   time.Time
	series  map[string]*soak.Series
	rows    string         // counts each table's
	pid     map[string]int // of processes without metrics
	allglen uint64         // address in the agents' memory
}

func newSampler(l *load, s *s3test.Server, d time.Duration) *sampler {
	l.t.Helper()
	m := &sampler{l: l, s3: s, every: min(max(d/360, 500*time.Millisecond), 5*time.Second), series: map[string]*soak.Series{}, pid: map[string]int{}}
	tables, err := l.pool.Query(context.Background(), `SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1`)
	require.NoError(l.t, err)
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	require.NoError(l.t, err)
	for i, name := range names {
		names[i] = fmt.Sprintf("SELECT '%s', count(*) FROM %s", name, pgx.Identifier{name}.Sanitize())
	}
	m.rows = strings.Join(names, " UNION ALL ")
	if p, ok := temporal.(*devstack.Temporal); ok {
		m.pid["temporal"] = p.PID()
	}
	for _, h := range l.sim.Hosts() {
		for _, name := range []string{"app", "edge"} {
			if h.Name == "prego-"+l.env+"-"+l.id(name) {
				m.pid["agent of "+name], m.pid["executor of "+name] = h.AgentPID, h.ExecPID
			}
		}
	}
	m.allglen = symbol(l.t, filepath.Join(bins, "prego-agent"), "runtime.allglen")
	return m
}

// symbol is the address of a variable of a program.
func symbol(t require.TestingT, program, name string) uint64 {
	f, err := elf.Open(program)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	symbols, err := f.Symbols()
	require.NoError(t, err)
	for _, s := range symbols {
		if s.Name == name {
			return s.Value
		}
	}
	require.Fail(t, "no symbol "+name)
	return 0
}

// run measures until the context ends.
func (m *sampler) run(ctx context.Context) {
	m.began = time.Now()
	tick := time.NewTicker(m.every)
	defer tick.Stop()
	for n := 0; ; n++ {
		if err := m.sample(ctx, n); err != nil && ctx.Err() == nil {
			m.l.t.Errorf("sample %d: %v", n, err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *sampler) sample(ctx context.Context, n int) error {
	for _, f := range []func(context.Context) error{m.processes, m.database, m.workflows} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	if n%6 == 0 { // walks through directories
		return m.disk()
	}
	return nil
}

// add adds a measurement to a series, which its first one makes.
func (m *sampler) add(name string, unit soak.Unit, limit soak.Limit, v float64) {
	s, ok := m.series[name]
	if !ok {
		// With room for all, or the measurements themselves would be what grows.
		s = &soak.Series{Name: name, Unit: unit, Limit: limit, Points: make([]soak.Point, 0, *soakFor/m.every+2)}
		m.series[name] = s
	}
	p := soak.Point{At: time.Since(m.began), Value: v}
	if limit.Per != "" {
		p.Work = m.l.work(limit.Per)
	}
	s.Points = append(s.Points, p)
}

func mib(perHour, least float64) soak.Limit {
	return soak.Limit{Slope: perHour * mb, Least: least * mb}
}

// Limits of processes. A leak of one goroutine a minute, or of a hundred KiB a minute, is above.
var (
	ofGoroutines = soak.Limit{Slope: 20, Least: 5}
	ofFiles      = soak.Limit{Slope: 20, Least: 5}
	ofHeap       = mib(4, 1)
	ofRSS        = mib(24, 8)
)

func (m *sampler) processes(ctx context.Context) error {
	for name, addr := range map[string]string{"api": m.l.addr("api-ops"), "worker": m.l.addr("worker-ops"), "agentgw": m.l.addr("agentgw-ops")} {
		v, lines, err := scrape(ctx, "http://"+addr+"/metrics")
		if err != nil {
			return err
		}
		m.add(name+" goroutines", soak.Number, ofGoroutines, v["go_goroutines"])
		m.add(name+" open files", soak.Number, ofFiles, v["process_open_fds"])
		m.add(name+" RSS", soak.Bytes, ofRSS, v["process_resident_memory_bytes"])
		// The next collection begins when the heap is GOGC percent above what the last one left.
		m.add(name+" heap after GC", soak.Bytes, ofHeap, v["go_memstats_next_gc_bytes"]*100/(100+v["go_gc_gogc_percent"]))
		m.add(name+" metrics", soak.Number, soak.Limit{Slope: 20, Least: 10}, float64(lines))
		if size, err := os.Stat(m.l.logFile(name)); err == nil {
			m.add(name+" log", soak.Bytes, ofLogs[name], float64(size.Size()))
		}
	}
	for name, pid := range m.pid {
		proc := fmt.Sprintf("/proc/%d/", pid)
		statm, err := os.ReadFile(proc + "statm")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
		if err != nil {
			return err
		}
		limit := ofRSS
		if name == "temporal" {
			limit = soak.Limit{Slope: 3 * mb, Per: "tenant", Least: 128 * mb} // it keeps histories in a cache, and isn't ours
		}
		m.add(name+" RSS", soak.Bytes, limit, float64(pages*os.Getpagesize()))
		fds, err := os.ReadDir(proc + "fd")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.add(name+" open files", soak.Number, ofFiles, float64(len(fds)))
		if name == "temporal" {
			continue
		}
		mem, err := os.Open(proc + "mem")
		if err != nil {
			return err
		}
		var word [8]byte
		_, err = mem.ReadAt(word[:], int64(m.allglen))
		_ = mem.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.add(name+" goroutines at most", soak.Number, ofGoroutines, float64(binary.LittleEndian.Uint64(word[:])))
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	m.add("simulator goroutines", soak.Number, ofGoroutines, float64(runtime.NumGoroutine()))
	m.add("simulator heap after GC", soak.Bytes, ofHeap, float64(stats.NextGC)/2)
	return nil
}

// scrape reads a process's metrics: the values of those without labels, and how many lines.
func scrape(ctx context.Context, url string) (map[string]float64, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := need.HTTP.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	out, lines := map[string]float64{}, 0
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		name, value, ok := strings.Cut(in.Text(), " ")
		if !ok || name == "#" {
			continue
		}
		lines++
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = v
		}
	}
	return out, lines, nil
}

func (m *sampler) database(ctx context.Context) error {
	rows, err := m.l.pool.Query(ctx, m.rows)
	if err != nil {
		return err
	}
	var table string
	var n, all float64
	if _, err := pgx.ForEachRow(rows, []any{&table, &n}, func() error {
		m.add("rows of "+table, soak.Number, ofRows(table), n)
		all += n
		return nil
	}); err != nil {
		return err
	}
	var size, dead, connections float64
	err = m.l.pool.QueryRow(ctx, `SELECT pg_database_size(current_database()), (SELECT sum(n_dead_tup) FROM pg_stat_user_tables),
		(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())`).Scan(&size, &dead, &connections)
	if err != nil {
		return err
	}
	m.add("database size", soak.Bytes, ofDatabase, size)
	m.add("dead rows", soak.Number, soak.Limit{Slope: 5000, Least: 2000}, dead)
	m.add("Postgres connections", soak.Number, soak.Limit{Slope: 6, Least: 3}, connections)
	return nil
}

func (m *sampler) workflows(ctx context.Context) error {
	r, err := temporalClient.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: "TaskQueue STARTS_WITH '" + m.l.vars["TEMPORAL_TASK_QUEUE"] + "' AND ExecutionStatus = 'Running'"})
	if err != nil {
		return err
	}
	m.add("open workflows", soak.Number, soak.Limit{Slope: 10, Least: 4}, float64(r.GetCount()))
	var size int64
	for _, f := range []string{"temporal.db", "temporal.db-wal"} {
		if s, err := os.Stat(filepath.Join(scratch, f)); err == nil {
			size += s.Size()
		}
	}
	m.add("Temporal's database", soak.Bytes, ofTemporal, float64(size))
	return nil
}

func (m *sampler) disk() error {
	for name, dir := range m.l.hostDirs() {
		results := filepath.Join(dir, wire.ExecResultsDir)
		size, files := usage(dir, results)
		m.add("disk of "+name, soak.Bytes, mib(30, 5), size)
		m.add("files of "+name, soak.Number, soak.Limit{Slope: 60, Least: 20}, files)
		_, files = usage(results, "")
		m.add("results of commands on "+name, soak.Number, ofResults, files)
	}
	size, files := usage(filepath.Join(m.s3.Dir, m.s3.Bucket), "") // beside it, the server keeps locks forever
	m.add("object storage", soak.Bytes, mib(10, 2), size)
	m.add("objects", soak.Number, soak.Limit{Slope: 30, Least: 10}, files)
	entries, err := os.ReadDir(filepath.Join(m.l.dir, "sim", "hosts"))
	if err != nil {
		return err
	}
	m.add("directories of hosts", soak.Number, soak.Limit{Slope: 6, Least: 3}, float64(len(entries)))
	return nil
}

// usage is the size of a directory without one below it, and its files. Files deleted meanwhile are left out.
func usage(dir, without string) (bytes, files float64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		if path == without {
			return fs.SkipDir
		}
		if i, err := d.Info(); err == nil {
			if st, ok := i.Sys().(*syscall.Stat_t); ok {
				bytes += float64(st.Blocks) * 512
				if !d.IsDir() {
					files++
				}
			}
		}
		return nil
	})
	return bytes, files
}

// all are the series, with how long tenants took, in the order of their names.
func (m *sampler) all() []soak.Series {
	m.l.mu.Lock()
	for name, of := range map[string]struct {
		quantile float64
		limit    soak.Limit
	}{
		"time to provision a tenant, p50": {0.5, soak.Limit{Slope: 4, Least: 1}},
		"time to provision a tenant, p99": {0.99, soak.Limit{Slope: 20, Least: 5}},
	} {
		s := soak.Series{Name: name, Unit: soak.Seconds, Quantile: of.quantile, Limit: of.limit}
		for _, t := range m.l.took {
			s.Points = append(s.Points, soak.Point{At: t.at.Sub(m.began), Value: t.took.Seconds()})
		}
		m.series[name] = &s
	}
	m.l.mu.Unlock()
	var out []soak.Series
	for _, name := range slices.Sorted(maps.Keys(m.series)) {
		out = append(out, *m.series[name])
	}
	return out
}
