//go:debug randseednop=0

package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	sdklog "go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/zap"

	"github.com/prego/prego/access"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/world"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workflows"
)

// played is the system as this package wires it, in the seeded world.
type played struct {
	cfg, named config.Config // named is that of plays with names
	log        *zap.Logger
}

func newPlayed(t *testing.T) *played {
	t.Helper()
	sdkworker.SetStickyWorkflowCacheSize(0) // each task replays its run
	world.Bug = os.Getenv("CHAOS_BUG")
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	require.NoError(t, pki.Init(keys, "world"))
	require.NoError(t, token.InitKeys(keys))
	agent := filepath.Join(dir, "agent")
	require.NoError(t, os.WriteFile(agent, []byte("an agent"), 0o600))
	vars := map[string]string{
		"PREGO_ENV": "world", "PREGO_KEYS_DIR": keys, "PREGO_MASTER_KEY": hex.EncodeToString(sha256.New().Sum(nil)), "DATABASE_URL": "postgres://unused",
		"PREGO_AGENTGW_AGENT_BINARY": agent, "HCLOUD_ENDPOINT": "http://provider/v1", "HCLOUD_TOKEN": world.ProviderToken, "PREGO_SIMULATED": "true",
		"PREGO_EGRESS_CIDRS": "127.0.0.1/32", "PREGO_NETWORK_RANGE": "none", "PREGO_DNS_RESOLVERS": "127.0.0.1:1", "TEMPORAL_NAMESPACE": world.Namespace,
		"PREGO_BACKUP_ENDPOINT": world.StorageEndpoint, "PREGO_BACKUP_BUCKET": world.StorageBucket, "PREGO_BACKUP_REGION": world.StorageRegion,
		"PREGO_BACKUP_ACCESS_KEY": world.StorageAccessKey, "PREGO_BACKUP_SECRET_KEY": world.StorageSecretKey, "PREGO_BACKUP_PATH_STYLE": "true", "PREGO_DRILL_EVERY": "20m",
		"PREGO_GRACE_PERIOD": "10m", "PREGO_RETENTION": "8m", "PREGO_MOVE_GRACE": "3m", // so that tenants' lives and moves end within a play
	}
	// What is looked for every second or two is most of what happens; here, that is less often.
	seldom := func(vars map[string]string) config.Config {
		cfg, err := config.From(vars)
		require.NoError(t, err)
		cfg.Backups.PartBytes, cfg.Backups.SweepEvery, cfg.Backups.DrillRetry = world.StoragePart, time.Minute, 6*time.Minute
		cfg.Worker.CatalogEvery, cfg.Worker.PeersEvery, cfg.Worker.SweepEvery, cfg.Worker.NetworkEvery = 24*time.Hour, time.Minute, time.Minute, 2*time.Minute
		cfg.Workloads.RebalanceEvery, cfg.Workloads.PatchEvery, cfg.Workloads.SweepEvery = 5*time.Minute, 10*time.Minute, 5*time.Minute
		cfg.Names.Every, cfg.ACME.SweepEvery, cfg.Tenants.SweepEvery, cfg.Tenants.StorageSweep = 5*time.Minute, time.Hour, time.Minute, 10*time.Minute
		return cfg
	}
	cfg := seldom(vars)
	maps.Copy(vars, map[string]string{
		"PREGO_NETWORK_RANGE": "10.64.0.0/10", "PREGO_DNS_RESOLVERS": world.Resolver,
		"PREGO_DNS_ZONE": world.Zone, "PREGO_SITE_DOMAIN": world.SiteDomain, "PREGO_ACME_DIRECTORY": world.AuthorityDirectory,
		"PREGO_ACME_LIMIT_ORDERS": "2/8m", // the authority's
	})
	named := seldom(vars)
	named.Names.Every, named.Names.CompareEvery, named.ACME.SweepEvery, named.Edge.Within = time.Minute, 5*time.Minute, time.Minute, 40*time.Second
	named.Names.RetryMax, named.Names.Recheck, named.Names.Grace = 2*time.Minute, 3*time.Minute, 4*time.Minute
	named.ACME.ServeWithin, named.ACME.IssueWithin, named.ACME.Poll = 3*time.Minute, 3*time.Minute, 5*time.Second
	return &played{cfg: cfg, named: named, log: zap.NewNop()}
}

func (p *played) process(l *world.Life) (*Process, *workflows.Client, error) {
	cfg := p.cfg
	if l.Named() {
		cfg = p.named
	}
	out, err := New(l.Context, Options{
		Config: cfg, Name: l.Name, Log: p.log, Pool: l.Pool, Temporal: l.Temporal, Metrics: prometheus.NewRegistry(),
		Provider: l.Provider(), Storage: l.Storage(), Outside: l.Outside(), Resolve: l.Resolve, Follow: 15 * time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	runs, err := out.Runs()
	if err != nil {
		return nil, nil, err
	}
	// A worker goes on with the task of a step that waits for a row at four fifths of its time. Both then happen at one moment, in
	// an order that no seed decides; with twice the time nothing waits that long.
	runs.TaskTimeout = 10 * time.Second
	return out, runs, nil
}

func (p *played) API(l *world.Life) (http.Handler, error) {
	proc, runs, err := p.process(l)
	if err != nil {
		return nil, err
	}
	a, err := proc.API(runs)
	if err != nil {
		return nil, err
	}
	alice := access.Principal{PrincipalID: "sa-alice", Kind: access.ServiceAccount, Name: "alice", Grants: []access.Grant{{Role: "operator"}}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.Handler().ServeHTTP(w, r.WithContext(api.As(r.Context(), alice)))
	}), nil
}

func (p *played) Gateway(l *world.Life) (http.Handler, func(context.Context), error) {
	proc, runs, err := p.process(l)
	if err != nil {
		return nil, nil, err
	}
	gw, _, err := proc.Gateway(runs)
	if err != nil {
		return nil, nil, err
	}
	return gw.Handler(), gw.Run, nil
}

func (p *played) Worker(l *world.Life) (func(), error) {
	proc, runs, err := p.process(l)
	if err != nil {
		return nil, err
	}
	proc.db.LimitWork(p.cfg.Worker.OrgWork)
	ctx := l.Context
	b, err := proc.Worker(ctx, runs, workflows.Queues())
	if err != nil {
		return nil, err
	}
	agents := l.Agents()
	b.Servers.Containers, b.Peers.Agents, b.Backups.Hosts = agents, agents, agents
	b.Edges.Poll = 5 * time.Second
	b.Tenants.Bench = &activities.Commander{Agents: agents, Audit: proc.db}
	if err := runs.EnsureSchedules(ctx, workflows.ScheduleSettings{ReconcileEvery: p.cfg.Worker.ReconcileEvery, CatalogEvery: p.cfg.Worker.CatalogEvery, NetEvery: p.cfg.Worker.NetEvery}); err != nil {
		return nil, err
	}
	if err := b.Worker.Start(); err != nil {
		return nil, err
	}
	b.Looker.Spread = func(d time.Duration) time.Duration { return d / 2 }
	b.Looker.Holder = l.Name
	for i, look := range b.Looker.Looks {
		if look.Name == "redo log" {
			b.Looker.Looks[i].Every = time.Minute
		}
	}
	b.Tenants.Placer.Draw = func(n int) int { return n / 2 }
	journals := 0
	b.Tenants.Placer.NewJournalID = func() string { // by the bubble's time: those of the lives before are in the database
		journals++
		return fmt.Sprintf("%s-%d-%d", l.Name, time.Now().UnixNano(), journals)
	}
	looking := make(chan struct{})
	go func() { defer close(looking); _ = b.Looker.Run(ctx) }()
	return func() { b.Worker.Stop(); <-looking }, nil
}

func (p *played) Restore(l *world.Life, lose func() error) error {
	proc, runs, err := p.process(l)
	if err != nil {
		return err
	}
	redo, err := proc.redoLog()
	if err != nil {
		return err
	}
	if why, err := redo.Verify(l.Context, false); err != nil {
		return err
	} else if why == "" {
		if _, err := worker.LookAtRedo(l.Context, redo); err != nil {
			return err
		}
	}
	if err := lose(); err != nil {
		return err
	}
	lacks, err := redo.Verify(l.Context, true)
	if err != nil || lacks == "" { // nothing has changed since the backup, or the answer to an earlier try was lost
		return err
	}
	if _, err = redo.Apply(l.Context, runs.EndRuns, false); err != nil {
		return err
	}
	why, err := redo.Verify(l.Context, true)
	if err == nil && why != "" {
		err = errors.New(why)
	}
	return err
}

// losing has a third of the plays with faults lose their database, and all of them if CHAOS_LOSES is set.
func losing(seed uint64, o world.Options) world.Options {
	o.Loses = os.Getenv("CHAOS_LOSES") != "" || seed%3 == 0 && !o.Calm
	return o
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(v, 10, 64)
	require.NoError(t, err)
	return n
}

// TestWorld plays some of a few seeds; what they recorded replays. Two of them, without faults or with them, are played
// twice, and are the same plays each time. make chaos plays others.
func TestWorld(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	system := newPlayed(t)
	play := func(t *testing.T, seed uint64, o world.Options) world.Outcome {
		t.Helper()
		out := world.Play(t, system, seed, losing(seed, o))
		t.Log(summary(out))
		require.Empty(t, out.Violations, "make chaos SEED=%d%s", seed, map[bool]string{true: " NAMES=1"}[o.Named])
		replayed(t, out)
		return out
	}
	type seeded struct {
		seed uint64
		world.Options
	}
	t.Run("twice", func(t *testing.T) {
		for _, p := range deep.Some(t, 2, []seeded{{21, world.Options{Calm: true, Keep: true}}, {31, world.Options{Keep: true}}, {4, world.Options{Calm: true, Keep: true, Named: true}}}) {
			same(t, play(t, p.seed, p.Options), play(t, p.seed, p.Options))
		}
	})
	for _, p := range deep.Some(t, 1, []seeded{{22, world.Options{}}, {5, world.Options{Named: true}}}) {
		t.Run(strconv.FormatUint(p.seed, 10), func(t *testing.T) { play(t, p.seed, p.Options) })
	}
}

// same fails unless both plays are the same, step by step.
func same(t *testing.T, first, second world.Outcome) {
	t.Helper()
	for i := range min(len(first.Timeline), len(second.Timeline)) {
		around := max(0, i-10)
		if first.Timeline[i] == second.Timeline[i] {
			continue
		}
		require.Equal(t, first.Timeline[i:min(i+5, len(first.Timeline))], second.Timeline[i:min(i+5, len(second.Timeline))], "seed %d was another play the second time, at line %d of %d; before this:\n%s",
			first.Seed, i, len(first.Timeline), strings.Join(first.Timeline[around:i], "\n"))
	}
	require.Equal(t, first.Sum, second.Sum)
}

func summary(o world.Outcome) string {
	return fmt.Sprintf("seed %d: %d steps in %s, of which %s were played; %d waits for locks, %d faults (%s); timeline %x", o.Seed, o.Steps, o.Real.Round(time.Millisecond), o.Virtual.Round(time.Second), o.Locks, len(o.Faults), o.Swarm, o.Sum)
}

// replayed replays the histories of a play.
func replayed(t *testing.T, out world.Outcome) {
	t.Helper()
	r, err := worker.Replayer()
	require.NoError(t, err)
	for _, h := range out.Histories {
		h.Events.Events = toLastTask(h.Events.Events)
		if !slices.ContainsFunc(h.Events.Events, func(e *historypb.HistoryEvent) bool {
			return e.EventType == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
		}) {
			continue // it was ended before its code ran
		}
		require.NoError(t, r.ReplayWorkflowHistoryWithOptions(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)), h.Events,
			sdkworker.ReplayWorkflowHistoryOptions{OriginalExecution: workflow.Execution{ID: h.WorkflowID, RunID: h.RunID}}), h.WorkflowID)
	}
}

// toLastTask leaves out what came after the last task of a run that was terminated: what that would have led to is in no
// history.
func toLastTask(events []*historypb.HistoryEvent) []*historypb.HistoryEvent {
	if last := events[len(events)-1]; last.EventType != enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED {
		return events
	}
	for i, e := range slices.Backward(events) {
		if e.EventType == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED || decidedBy(e) > 0 {
			return events[:i+1]
		}
	}
	return nil
}

// decidedBy is the id of the completed task that an event comes from, 0 if none.
func decidedBy(e *historypb.HistoryEvent) int64 {
	m := e.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("attributes"))
	if field == nil {
		return 0
	}
	attributes := m.Get(field).Message()
	by := attributes.Descriptor().Fields().ByName("workflow_task_completed_event_id")
	if by == nil {
		return 0
	}
	return attributes.Get(by).Int()
}

// TestChaos plays CHAOS_SEEDS seeds from CHAOS_FIRST, or CHAOS_SEED with its timeline. It is
// for make chaos: without either there is nothing to play. With CHAOS_TWICE it plays each seed twice and
// compares the timelines, with CHAOS_CALM without faults. With CHAOS_NAMES plays have names.
func TestChaos(t *testing.T) {
	named := os.Getenv("CHAOS_NAMES") != ""
	if seed := os.Getenv("CHAOS_SEED"); seed != "" {
		system := newPlayed(t)
		n := number(t, "CHAOS_SEED", 0)
		out := world.Play(t, system, n, losing(n, world.Options{Keep: true, Named: named}))
		for _, line := range out.Timeline {
			fmt.Println(line)
		}
		fmt.Println(summary(out))
		require.Empty(t, out.Violations)
		return
	}
	n, first, step := number(t, "CHAOS_SEEDS", 0), number(t, "CHAOS_FIRST", 1), number(t, "CHAOS_STEP", 1)
	if n == 0 {
		return
	}
	system := newPlayed(t)
	if os.Getenv("CHAOS_TWICE") != "" {
		o := world.Options{Keep: true, Calm: os.Getenv("CHAOS_CALM") != "", Named: named}
		for i := range n {
			t.Run(fmt.Sprint(first+i*step), func(t *testing.T) {
				a := world.Play(t, system, first+i*step, o)
				same(t, a, world.Play(t, system, first+i*step, o))
			})
		}
		return
	}
	met, violations, most := map[string]int{}, 0, int(number(t, "CHAOS_SHRINK", 40))
	began := time.Now()
	for i := range n {
		seed := first + i*step
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			out := world.Play(t, system, seed, losing(seed, world.Options{Named: named}))
			for _, what := range out.Met() {
				met[what]++
			}
			if os.Getenv("CHAOS_VERBOSE") != "" {
				fmt.Println(summary(out))
			}
			if len(out.Violations) == 0 {
				replayed(t, out)
				return
			}
			violations++
			fmt.Printf("VIOLATION by seed %d: %s\n", seed, out.Violations[0])
			if most > 0 {
				short := world.Shrink(out.Faults, most, func(only map[string]bool) bool {
					return len(world.Play(t, system, seed, losing(seed, world.Options{Only: only, Named: named})).Violations) > 0
				})
				fmt.Printf("  with %d of its %d faults:\n", len(short), len(out.Faults))
				for _, f := range short {
					fmt.Printf("    %s\n", f)
				}
			}
			t.Error(out.Violations[0])
		})
		if violations > 0 && os.Getenv("CHAOS_STOP") != "" {
			break
		}
	}
	for _, what := range slices.Sorted(maps.Keys(met)) {
		fmt.Printf("met %6d  %s\n", met[what], what)
	}
	fmt.Printf("played %d seeds in %s, %d violations\n", n, time.Since(began).Round(time.Second), violations)
}

// TestChaosCluster is Postgres for the processes of tools/chaos.sh, until its input ends.
func TestChaosCluster(t *testing.T) {
	file := os.Getenv("CHAOS_CLUSTER")
	if file == "" {
		return
	}
	require.NoError(t, os.WriteFile(file+".new", []byte(pgtest.URL(t)), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	_, err := io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
}

// TestChaosMet compares what a run met with what it must have met.
func TestChaosMet(t *testing.T) {
	file := os.Getenv("CHAOS_MET")
	if file == "" {
		return
	}
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	met := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "met" {
			continue
		}
		if met[strings.Join(f[2:], " ")], err = strconv.Atoi(f[1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, missing := range world.NotMet(met, int(number(t, "CHAOS_SEEDS", 0)), os.Getenv("CHAOS_NAMES") != "") {
		fmt.Println("not met:", missing)
	}
}
