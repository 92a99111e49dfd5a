package edge

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// probing runs a prober a hundred times as fast, and collects its reports like the gateway.
func probing(t *testing.T) (p *Prober, next func() wire.EdgeProbe) {
	t.Helper()
	p = NewProber()
	p.speed = 100
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	var waiting []wire.EdgeProbe
	return p, func() wire.EdgeProbe {
		t.Helper()
		require.Eventually(t, func() bool {
			if len(waiting) == 0 {
				r := p.Report()
				p.Reported(r)
				waiting = r.Changes
			}
			return len(waiting) > 0
		}, 20*time.Second, 2*time.Millisecond, "nothing changed")
		c := waiting[0]
		waiting = waiting[1:]
		c.AgeMS = 0
		return c
	}
}

// TestSitesOfAnEdgeAreProbed: a site is requested as Caddy forwards requests to it, with its name, from the moment
// that Caddy serves it until it is under maintenance.
func TestSitesOfAnEdgeAreProbed(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	var status atomic.Int64
	status.Store(200)
	var stranger atomic.Value
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "acme.example.com" || r.Header.Get(wire.HeaderSite) != r.Host || r.URL.Path != "/api/method/ping" {
			stranger.Store(r.Host + r.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
	})
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: answer}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	go func() { _ = web.Serve(l) }()
	t.Cleanup(func() { _ = web.Close() })

	p, next := probing(t)
	d := wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{
		serving("acme.example.com", "t-1", address),
		{
			Name: "shop.example.org", Route: "rte-1", State: wire.EdgeServing,
			Upstreams: []wire.EdgeUpstream{{Address: address}},
		},
	}}
	apply := func() {
		t.Helper()
		d.Version++
		require.NoError(t, e.Apply(context.Background(), d, nil))
		p.Follow(e.Served())
	}
	apply()
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeUp}, next())
	status.Store(502)
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeDown, Cause: wire.EdgeProbeError}, next())
	status.Store(404)
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeDown, Cause: wire.EdgeProbeMissing}, next())
	status.Store(200)
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeUp}, next())
	d.Hosts[0].State = wire.EdgeMaintenance
	apply()
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeGone}, next())
	status.Store(500)
	d.Hosts[0].State = wire.EdgeServing
	apply()
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeDown, Cause: wire.EdgeProbeError}, next())
	require.NoError(t, web.Close())
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeDown, Cause: wire.EdgeProbeRefused}, next())
	// It moves to another server, and answers there.
	there := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(there.Close)
	d.Hosts[0].Upstreams[0].Address = strings.TrimPrefix(there.URL, "http://")
	apply()
	require.Equal(t, wire.EdgeProbe{Tenant: "t-1", State: wire.EdgeProbeUp}, next())
	require.Nil(t, stranger.Load())
}

// TestSilentServerHasFewProbes: a server that accepts connections and never answers has a few probes at a time, and
// delays no probe of other servers.
func TestSilentServerHasFewProbes(t *testing.T) {
	t.Parallel()
	var asked, most atomic.Int64
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		most.Store(max(most.Load(), asked.Add(1)))
		<-release
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(release) })
	well := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(well.Close)
	p, next := probing(t)
	var d wire.EdgeDocument
	for i := range 200 {
		name := fmt.Sprintf("s%d.example.com", i)
		d.Hosts = append(d.Hosts, serving(name, name, strings.TrimPrefix(silent.URL, "http://")))
	}
	p.Follow(d)
	require.Eventually(t, func() bool { return asked.Load() == 32 }, 10*time.Second, time.Millisecond)
	d.Hosts = append(d.Hosts, serving("well.example.com", "well", strings.TrimPrefix(well.URL, "http://")))
	p.Follow(d)
	require.Equal(t, wire.EdgeProbe{Tenant: "well", State: wire.EdgeProbeUp}, next())
	require.EqualValues(t, 32, most.Load())
}

// TestWatchEndsWhenItsHostWasStopped: what happened meanwhile is unknown, so each site has another first verdict.
func TestWatchEndsWhenItsHostWasStopped(t *testing.T) {
	t.Parallel()
	p := NewProber()
	p.Follow(wire.EdgeDocument{Hosts: []wire.EdgeHost{serving("a.example.com", "t-1", "127.0.0.1:1")}})
	now := time.Now()
	take := func(at time.Time) map[string]*probed { return p.take(at) }
	first := take(now)["t-1"]
	require.NotNil(t, first)
	watch := p.Report().Watch
	require.Empty(t, take(now.Add(29*time.Second)), "its probe is under way")
	require.Equal(t, watch, p.Report().Watch)
	again := take(now.Add(60 * time.Second))["t-1"]
	require.NotNil(t, again)
	require.NotSame(t, first, again)
	require.NotEqual(t, watch, p.Report().Watch)
}

// TestReportsKeepTheirOrder: changes are forgotten when their report has arrived, and a report that has not all of
// them covers no later moment than its last.
func TestReportsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	p := NewProber()
	began := time.Now()
	for i := range wire.MaxEdgeProbes + 1 {
		ago := time.Duration(wire.MaxEdgeProbes+1-i) * time.Second
		p.note(siteChange{tenant: "t", state: wire.EdgeProbeUp, at: began.Add(-ago)})
	}
	r := p.Report()
	require.Len(t, r.Changes, wire.MaxEdgeProbes)
	require.InDelta(t, (wire.MaxEdgeProbes+1)*1000, r.Changes[0].AgeMS, 60_000)
	require.InDelta(t, 2000, r.UntilMS, 1000)
	require.Equal(t, r.Changes[0].Tenant, p.Report().Changes[0].Tenant, "it has not arrived")
	require.True(t, p.Reported(r))
	require.True(t, p.Reported(wire.EdgeProbes{Watch: "an earlier one", Changes: r.Changes[:1]}))
	last := p.Report()
	require.Len(t, last.Changes, 1)
	require.Zero(t, last.UntilMS)
	require.False(t, p.Reported(last))
}

// TestLostReportsAreReplaced: another watch of the same age has the current health of each site, and nothing of a site
// without a verdict.
func TestLostReportsAreReplaced(t *testing.T) {
	t.Parallel()
	p := NewProber()
	var d wire.EdgeDocument
	for _, name := range []string{"a", "b", "c"} {
		d.Hosts = append(d.Hosts, serving(name+".example.com", name, "127.0.0.1:1"))
	}
	p.Follow(d)
	saw := func(tenant string, cause wire.EdgeProbeCause, at time.Time) {
		p.sites[tenant].health, _ = p.sites[tenant].after(cause, at)
		p.note(siteChange{tenant: tenant, state: "up", at: at})
	}
	p.began = p.began.Add(-time.Hour)
	for i := range downAfter {
		saw("a", wire.EdgeProbeError, p.began.Add(time.Minute+time.Duration(i)*time.Second))
	}
	saw("b", "", p.began.Add(time.Second))
	saw("b", wire.EdgeProbeError, p.began.Add(time.Hour))
	lost := p.Report()
	require.Len(t, lost.Changes, 5)
	p.Reported(lost)
	require.Equal(t, 5, p.Report().After)
	p.Restate()
	r := p.Report()
	require.NotEqual(t, lost.Watch, r.Watch)
	require.InDelta(t, 3_600_000, r.SinceMS, 60_000)
	require.Zero(t, r.After)
	require.Len(t, r.Changes, 2)
	for i, want := range []wire.EdgeProbe{
		{Tenant: "b", State: wire.EdgeProbeUp, AgeMS: 3599_000},
		{Tenant: "a", State: wire.EdgeProbeDown, Cause: wire.EdgeProbeError, AgeMS: 3540_000},
	} {
		require.InDelta(t, want.AgeMS, r.Changes[i].AgeMS, 20_000)
		r.Changes[i].AgeMS = want.AgeMS
		require.Equal(t, want, r.Changes[i])
	}
	require.True(t, p.Reported(lost))
	require.Equal(t, r.Watch, p.Report().Watch, "an answer to the earlier watch arrives late")
	require.Len(t, p.Report().Changes, 2)
}

// TestFailedProbesAreRepeatedFirst: of a server that does not answer, some sites are found down before each of its
// sites was requested once.
func TestFailedProbesAreRepeatedFirst(t *testing.T) {
	t.Parallel()
	p := NewProber()
	var d wire.EdgeDocument
	for i := range 100 {
		name := fmt.Sprintf("s%d.example.com", i)
		d.Hosts = append(d.Hosts, serving(name, name, "127.0.0.1:1"))
	}
	p.Follow(d)
	p.sites["s70.example.com"].health = health{failed: 1}
	p.sites["s70.example.com"].due = p.looked
	p.sites["s71.example.com"].health = health{failed: 9, state: wire.EdgeProbeDown}
	p.sites["s71.example.com"].due = time.Now().Add(time.Hour)
	due := time.Now().Add(-time.Hour)
	for _, s := range p.sites {
		if s.failed == 0 {
			s.due = due
		}
	}
	taken := p.take(time.Now().Add(20 * time.Second))
	require.Len(t, taken, 32)
	require.Contains(t, taken, "s70.example.com")
	require.NotContains(t, taken, "s71.example.com")
}
