package sim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/sim"
	"github.com/prego/prego/tenant"
)

func config(tenants int, mode tenant.PlacementMode, a placement.Algorithm) sim.Config {
	p := placement.DefaultPolicy()
	p.Mode, p.Algorithm = mode, a
	return sim.DefaultConfig(tenants, p)
}

func play(t *testing.T, c sim.Config, seed uint64) sim.Report {
	t.Helper()
	s := sim.New(c, rand.NewPCG(seed, 0))
	s.Run()
	r := s.Report()
	r.Seed = seed
	return r
}

func rendered(t *testing.T, r sim.Report) (text, html, doc string) {
	t.Helper()
	var a, b bytes.Buffer
	require.NoError(t, r.WriteText(&a))
	require.NoError(t, r.WriteHTML(&b))
	j, err := json.Marshal(r)
	require.NoError(t, err)
	return a.String(), b.String(), string(j)
}

func everyPolicy(t *testing.T, check func(*testing.T, tenant.PlacementMode, placement.Algorithm)) {
	for _, mode := range []tenant.PlacementMode{tenant.ModeShared, tenant.ModeOneTenantOneServer} {
		for _, a := range []placement.Algorithm{placement.BestFit, placement.FirstFit, placement.RoundRobin} {
			t.Run(fmt.Sprintf("%s/%s", mode, a), func(t *testing.T) { t.Parallel(); check(t, mode, a) })
		}
	}
}

func TestTheSameSeedGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	everyPolicy(t, func(t *testing.T, mode tenant.PlacementMode, a placement.Algorithm) {
		text, html, doc := rendered(t, play(t, config(800, mode, a), 7))
		text2, html2, doc2 := rendered(t, play(t, config(800, mode, a), 7))
		require.Equal(t, text, text2)
		require.Equal(t, html, html2)
		require.Equal(t, doc, doc2)
		other, _, _ := rendered(t, play(t, config(800, mode, a), 8))
		require.NotEqual(t, text, other)
	})
}

// lively is ten days with much activity: small shards fill, trials end, machines are given back.
func lively(mode tenant.PlacementMode, a placement.Algorithm, tenants int, seed uint64) sim.Config {
	c := config(tenants, mode, a)
	c.Days, c.Settle, c.TrialFor, c.IdleFor = 10, 48*time.Hour, 48*time.Hour, 12*time.Hour
	c.ShardCapacity, c.PoolCapacity = 5, 9
	c.MismatchShare, c.UnknownShare, c.DedicatedRedisShare, c.WarmNodes = 0.2, 0.2, 0.3, int(seed%2)
	for i := range c.Plans {
		c.Plans[i].ChurnPerMonth = 3
	}
	c.Plans[3].Share = 0.4 // many dedicated tenants, and slow boots: reserved servers are not always needed
	for i := range c.Roles {
		c.Roles[i].Boot *= 40
	}
	if seed%2 == 1 {
		c.Policy.EmptyPool, c.Policy.SameShard = placement.Hold, true
	}
	return c
}

// TestEveryStep looks at all invariants after everything that happens.
func TestEveryStep(t *testing.T) {
	t.Parallel()
	everyPolicy(t, func(t *testing.T, mode tenant.PlacementMode, a placement.Algorithm) {
		waited := 0
		for seed := range uint64(4) {
			s := sim.New(lively(mode, a, 150, seed), rand.NewPCG(seed, 1))
			for s.Step() {
				require.Empty(t, s.Check(), "seed %d", seed)
			}
			r := s.Report()
			require.Equal(t, 150, r.Tenants.Arrived)
			require.Equal(t, r.Tenants.Arrived, r.Tenants.Placed+r.Tenants.Waiting+r.Tenants.Rejected)
			require.Zero(t, r.Tenants.Waiting, "the simulation continues until all are placed")
			require.Positive(t, r.Tenants.Left)
			require.LessOrEqual(t, r.ServersEnd, r.ServersPeak)
			waited += r.Waits.Waited
		}
		require.Positive(t, waited)
	})
}

func TestInvariantsHoldAtScale(t *testing.T) {
	t.Parallel()
	for _, mode := range []tenant.PlacementMode{tenant.ModeShared, tenant.ModeOneTenantOneServer} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%s/%d", mode, seed), func(t *testing.T) {
				t.Parallel()
				r := play(t, config(2000, mode, placement.BestFit), seed)
				require.Empty(t, r.Violations)
				require.Equal(t, 2000, r.Tenants.Arrived)
				require.Greater(t, r.Tenants.Placed, 1900)
				require.Zero(t, r.Tenants.Waiting)
			})
		}
	}
}

func TestABurstIsServedByFewerRuns(t *testing.T) {
	t.Parallel()
	c := config(6000, tenant.ModeShared, placement.BestFit)
	c.Days = 1
	r := play(t, c, 3)
	require.Empty(t, r.Violations)
	require.Zero(t, r.Tenants.Waiting)
	runs, servers := 0, 0
	for _, x := range r.ScaleOuts {
		runs, servers = runs+x.Runs, servers+x.Servers
	}
	require.Less(t, runs, servers, "a run is sized for all that wait")
}

func TestTheDemandIsTheSameForEveryPolicy(t *testing.T) {
	t.Parallel()
	shared := play(t, config(500, tenant.ModeShared, placement.BestFit), 5)
	own := play(t, config(500, tenant.ModeOneTenantOneServer, placement.RoundRobin), 5)
	require.Equal(t, shared.Rejected, own.Rejected)
	for i := range shared.Plans {
		require.Equal(t, shared.Plans[i].Arrived, own.Plans[i].Arrived)
	}
}

func TestNobodyComes(t *testing.T) {
	t.Parallel()
	for _, mode := range []tenant.PlacementMode{tenant.ModeShared, tenant.ModeOneTenantOneServer} {
		r := play(t, config(0, mode, placement.BestFit), 1)
		require.Zero(t, r.Tenants)
		require.Zero(t, r.Decisions)
		require.Positive(t, r.ServersEnd)
		require.Zero(t, r.Cost.PerTenantEnd)
		text, html, doc := rendered(t, r)
		require.Contains(t, text, "invariants: ok")
		for _, s := range []string{text, html, doc} {
			require.False(t, strings.Contains(s, "NaN") || strings.Contains(s, "Inf"))
		}
		require.False(t, strings.Contains(doc, "null"))
		wellFormed(t, html)
	}
}

func TestOneTenant(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		require.Empty(t, play(t, config(1, tenant.ModeShared, placement.BestFit), seed).Violations)
	}
}

func TestReportIsOneDocument(t *testing.T) {
	t.Parallel()
	r := play(t, config(400, tenant.ModeShared, placement.BestFit), 9)
	_, _, doc := rendered(t, r)
	var back sim.Report
	dec := json.NewDecoder(bytes.NewReader([]byte(doc)))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&back))
	require.Equal(t, r, back)
}
