package edge

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prego/prego/agent/wire"
)

const (
	// Probes begin in small groups: at most 300 a second, however many sites are new or down.
	probeTick  = 200 * time.Millisecond
	probeGroup = 60
	// probesAtOnce bounds the probes of one server, so that a server that does not answer delays no other. The sites
	// of one with 200 are found down within three minutes, the first of them within half a minute.
	probesAtOnce = 32
	// probePaused is the time without probes after which a watch is over: the host was stopped meanwhile.
	probePaused = 30 * time.Second
	// keepChanges bounds what waits to be reported while no gateway can be reached. Beyond it only the current health
	// of each site is reported.
	keepChanges = 100_000
	pingPath    = "/api/method/ping"
)

// Prober requests the sites that an edge serves from their servers, and keeps the changes of their health until they
// are reported.
type Prober struct {
	client *http.Client
	ask    probe
	speed  time.Duration // how many times more often than by the rules: 1 except in tests

	mu      sync.Mutex
	sites   map[string]*probed // by tenant
	busy    map[string]int     // probes under way by address
	watch   string
	began   time.Time // of the watch
	looked  time.Time // when probes were last begun
	changes []siteChange
	sent    int // changes of the watch that were reported before these
	changed chan struct{}
}

// probed is a site that is probed.
type probed struct {
	site, address string
	health
	due  time.Time
	busy bool
}

type dueSite struct {
	tenant string
	*probed
}

// siteChange is a change that is not reported yet.
type siteChange struct {
	tenant string
	state  wire.EdgeProbeState
	cause  wire.EdgeProbeCause
	at     time.Time
}

func newProbeClient() *http.Client {
	return &http.Client{
		Timeout: probeAnswer,
		Transport: &http.Transport{
			DialContext:  (&net.Dialer{Timeout: probeConnect}).DialContext,
			MaxIdleConns: 1000, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// NewProber makes a prober without sites.
func NewProber() *Prober {
	client := newProbeClient()
	p := &Prober{
		client: client, ask: askSite(client),
		speed: 1, sites: map[string]*probed{}, busy: map[string]int{}, changed: make(chan struct{}, 1),
	}
	p.restart(time.Now())
	return p
}

// restart begins a watch: nothing is known of any site.
func (p *Prober) restart(now time.Time) {
	p.watch, p.began, p.looked, p.sent, p.changes = rand.Text(), now, now, 0, nil
	for tenant, s := range p.sites {
		p.sites[tenant] = &probed{site: s.site, address: s.address, due: now}
	}
}

// Restate begins another watch, of the same age, with the current health of each site: some of the changes that were
// reported are not known any more.
func (p *Prober) Restate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restate()
}

func (p *Prober) restate() {
	p.watch, p.sent, p.changes = rand.Text(), 0, nil
	for tenant, s := range p.sites {
		if s.state != "" {
			p.note(siteChange{tenant: tenant, state: s.state, cause: s.verdict(), at: s.since})
		}
	}
	slices.SortFunc(p.changes, func(a, b siteChange) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.tenant, b.tenant))
	})
}

// Follow sets the sites: those of a served document that are not under maintenance.
func (p *Prober) Follow(d wire.EdgeDocument) {
	now, places := time.Now(), placesOf(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	serving := map[string]bool{}
	for _, h := range d.Hosts {
		if h.Tenant == "" || h.State != wire.EdgeServing || places[h.Site] == "" {
			continue
		}
		serving[h.Tenant] = true
		if s := p.sites[h.Tenant]; s == nil || s.site != h.Site || s.address != places[h.Site] {
			p.sites[h.Tenant] = &probed{site: h.Site, address: places[h.Site], due: now}
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(p.sites)) {
		if !serving[tenant] {
			delete(p.sites, tenant)
			p.note(siteChange{tenant: tenant, state: wire.EdgeProbeGone, at: now})
		}
	}
}

func (p *Prober) note(c siteChange) {
	p.changes = append(p.changes, c)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Changed receives when there is something to report.
func (p *Prober) Changed() <-chan struct{} { return p.changed }

// Report returns the oldest changes, and Reported forgets so many of them.
func (p *Prober) Report() wire.EdgeProbes {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	age := func(t time.Time) int64 { return max(0, now.Sub(t).Milliseconds()) }
	out := wire.EdgeProbes{Watch: p.watch, SinceMS: age(p.began), After: p.sent}
	for _, c := range p.changes[:min(len(p.changes), wire.MaxEdgeProbes)] {
		change := wire.EdgeProbe{Tenant: c.tenant, State: c.state, Cause: c.cause, AgeMS: age(c.at)}
		out.Changes = append(out.Changes, change)
	}
	if n := len(out.Changes); n < len(p.changes) {
		out.UntilMS = out.Changes[n-1].AgeMS
	}
	return out
}

// Reported forgets the changes of a report. More reports whether there are others.
func (p *Prober) Reported(r wire.EdgeProbes) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Watch == p.watch {
		p.changes = p.changes[len(r.Changes):]
		p.sent += len(r.Changes)
	}
	return len(p.changes) > 0
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	defer p.client.CloseIdleConnections()
	var probes sync.WaitGroup
	defer probes.Wait()
	t := time.NewTicker(probeTick / p.speed)
	defer t.Stop()
	for {
		for tenant, s := range p.take(time.Now()) {
			probes.Go(func() { p.probe(ctx, tenant, s) })
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// take returns the sites to probe now: first those that have just failed, so that it is soon known of some sites of a
// server that does not answer, and then the longest due.
func (p *Prober) take(now time.Time) map[string]*probed {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Without the monotonic part, which does not count the time that a host is stopped.
	switch {
	case now.Round(0).Sub(p.looked.Round(0)) > probePaused:
		p.restart(now)
	case len(p.changes) > keepChanges:
		p.restate()
	}
	p.looked = now
	var due []dueSite
	for tenant, s := range p.sites {
		if !s.busy && !now.Before(s.due) {
			due = append(due, dueSite{tenant, s})
		}
	}
	slices.SortFunc(due, func(a, b dueSite) int {
		switch {
		case a.suspect() == b.suspect():
			return a.due.Compare(b.due)
		case a.suspect():
			return -1
		}
		return 1
	})
	out := map[string]*probed{}
	for _, s := range due {
		if len(out) < probeGroup && p.busy[s.address] < probesAtOnce {
			s.busy, out[s.tenant] = true, s.probed
			p.busy[s.address]++
		}
	}
	return out
}

func (p *Prober) probe(ctx context.Context, tenant string, s *probed) {
	began := time.Now()
	cause := p.ask(ctx, s.site, s.address)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[s.address]--; p.busy[s.address] == 0 {
		delete(p.busy, s.address)
	}
	if ctx.Err() != nil || p.sites[tenant] != s {
		return // the site has another place by now, or the watch is over
	}
	var changed bool
	s.health, changed = s.after(cause, began)
	every := s.pause(len(p.sites)) / p.speed
	s.busy, s.due = false, time.Now().Add(every+time.Duration((mathrand.Float64()-0.5)*0.2*float64(every)))
	if changed {
		p.note(siteChange{tenant: tenant, state: s.state, cause: s.cause, at: s.since})
	}
}

// probe requests a site as the edge's server forwards a request. "" means that it answers.
type probe func(ctx context.Context, site, address string) wire.EdgeProbeCause

func askSite(client *http.Client) probe {
	return func(ctx context.Context, site, address string) wire.EdgeProbeCause {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+pingPath, http.NoBody)
		if err != nil {
			return wire.EdgeProbeRefused
		}
		r.Host = site
		r.Header.Set(wire.HeaderSite, site)
		r.Header.Set("X-Forwarded-Proto", "https")
		resp, err := client.Do(r)
		if err != nil {
			return causeOf(0, nil, err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return causeOf(resp.StatusCode, body, err)
	}
}
