package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/ops/attention"
)

// demo types commands as a person would, and shows their output. In its command lines,
// @ is a suffix that is unique to this start.
type demo struct {
	ctx    context.Context
	c      *cli.Client
	cloud  *cli.Client // of the simulated provider, for what only a demo does to hosts
	out    io.Writer
	suffix string
	sites  devSites
	// caller makes a client with an access role on an org.
	caller   func(ctx context.Context, name, role string, org prego.OrgID) (*cli.Client, error)
	customer *cli.Client // the owner of acme, once there is one
	// stored is closed when there is object storage, which moves go through. Without it the move is played later.
	stored    <-chan struct{}
	moveLater bool
}

func newDemo(ctx context.Context, out io.Writer, c *cli.Client) *demo {
	return &demo{ctx: ctx, c: c, out: &lockedWriter{w: out}, suffix: time.Now().UTC().Format("150405")}
}

// play provisions one server of each role, a tenant of each plan and a fleet over three regions. Then it runs process
// groups, with some refusals. standIn is the image available on hosts with real engines, "" if engines are simulated.
func (d *demo) play(standIn string) error {
	return d.steps(
		func() error {
			return d.atOnce("One server of each role; a node does what app, db-shard and redis-pool do together:",
				"server create app-eu-@ --role app --region eu --watch",
				"server create db-shard-sg-@ --role db-shard --region sg --volume-gb 20 --watch",
				"server create redis-pool-us-@ --role redis-pool --region us --watch",
				"server create node-eu-@ --role node --region eu --tag demo --watch",
				"server create edge-eu-@ --role edge --region eu --watch")
		},
		func() error {
			return d.run("A warm server, so that the next tenant of its plan need not wait for a server to boot:",
				"org set acme --tier enterprise -q", "org set corp --tier enterprise -q", "pool warm set eu starter 1")
		},
		d.warm,
		func() error {
			return d.atOnce("One tenant per plan: trial shares a server, starter claims the warm one, others get new ones:",
				"tenant create trial-@ --org acme --region eu --plan trial --policy shared --watch",
				"tenant create starter-@ --org acme --region eu --plan starter --apps erpnext --watch",
				"tenant create business-@ --org corp --region eu --plan business --residency DE --watch",
				"tenant create enterprise-@ --org corp --region eu --plan enterprise --watch")
		},
		func() error { return d.openSites("trial", "starter", "business", "enterprise") },
		d.move,
		func() error {
			return d.run("Each decision is kept with its reasons. This is why a tenant is where it is:",
				"tenant show business-@")
		},
		d.impact,
		d.access,
		d.silence,
		d.fleet,
		func() error { return d.workloads(standIn) },
		func() error {
			if !d.moveLater {
				return nil
			}
			return d.move()
		},
	)
}

// moveWhenStored plays the move as soon as there is object storage.
func (d *demo) moveWhenStored() {
	select {
	case <-d.ctx.Done():
	case <-d.stored:
		if err := d.move(); err != nil && d.ctx.Err() == nil {
			fmt.Fprintln(d.out, "\nThe move did not go as it should:", err)
		}
	}
}

// move moves a tenant to another app server while its site is requested without a pause.
func (d *demo) move() error {
	if d.sites.missing != "" {
		fmt.Fprintf(d.out, "\nNo tenant moves: %s.\n", d.sites.missing)
		return nil
	}
	select {
	case <-d.stored:
		d.moveLater = false
	default:
		when := "moves later"
		if d.moveLater {
			when = "has not moved"
		}
		d.moveLater = true
		fmt.Fprintf(d.out, "\nA tenant %s: that takes object storage, which is not installed yet (make versitygw).\n",
			when)
		return nil
	}
	if err := d.atOnce("Where a tenant can live and move to: two app servers with a tag, a DB shard and a Redis pool:",
		"server create app-1-eu-@ --role app --region eu --tag moves-@ --watch",
		"server create app-2-eu-@ --role app --region eu --tag moves-@ --watch",
		"server create db-shard-eu-@ --role db-shard --region eu --watch",
		"server create redis-pool-eu-@ --role redis-pool --region eu --watch"); err != nil {
		return err
	}
	if err := d.run("A tenant on one of them, which moves to the other while its site is requested without a pause:",
		"tenant create mover-@ --org acme --region eu --plan starter --policy shared --require moves-@ --watch"); err != nil {
		return err
	}
	slug := "mover-" + d.suffix
	t, from, err := d.place(slug)
	if err != nil {
		return err
	}
	client, err := d.sites.visitor()
	if err != nil {
		return err
	}
	if _, err := d.opened(client, *t.SiteUrl); err != nil {
		return err
	}
	// As a browser: with connections that are kept.
	client.Transport.(*http.Transport).DisableKeepAlives, client.Transport.(*http.Transport).ForceAttemptHTTP2 = false,
		true
	asked := askAgainAndAgain(d.ctx, client, *t.SiteUrl)
	err = d.line("tenant move mover-@ --watch")
	r := asked()
	if err != nil {
		return err
	}
	_, to, err := d.place(slug)
	fmt.Fprintf(d.out, "moved %s from %s to %s: %d requests, %d failed, longest gap %d ms\n", slug, from, to,
		r.requests, r.failed, r.gap.Milliseconds())
	if err == nil && (r.failed > 0 || from == to) {
		err = fmt.Errorf("%d of %d requests failed while %s moved from %s to %s: %s", r.failed, r.requests, slug, from,
			to, r.why)
	}
	return err
}

// place reads a tenant with a site, and its app server.
func (d *demo) place(slug string) (t api.TenantSummary, where string, err error) {
	var page api.TenantPage
	if err = d.c.Do(d.ctx, http.MethodGet, "/v1/tenants", url.Values{"slug": {slug}}, nil, &page); err != nil {
		return t, "", err
	}
	if len(page.Tenants) != 1 || page.Tenants[0].SiteUrl == nil {
		return t, "", fmt.Errorf("there is no site of %s", slug)
	}
	t = page.Tenants[0]
	var whole api.Tenant
	err = d.c.Do(d.ctx, http.MethodGet, "/v1/tenants/"+t.TenantId, nil, nil, &whole)
	if err == nil && whole.Allocation != nil {
		where = whole.Allocation.AppServerId
	}
	return t, where, err
}

// impact asks what deleting the server of a tenant would do.
func (d *demo) impact() error {
	_, where, err := d.place("business-" + d.suffix)
	if err != nil {
		return err
	}
	return d.run("Each change has a preview. This is what deleting its server would do; nothing changes:",
		"server delete "+where+" --dry-run")
}

// access shows what callers with less than everything may do.
func (d *demo) access() (err error) {
	t, where, err := d.place("business-" + d.suffix)
	if err != nil {
		return err
	}
	operator, destroys := d.c, "tenant cancel business-@ --yes"
	if d.sites.missing == "" {
		snapshot, err := d.snapshot(t)
		if err != nil {
			return err
		}
		destroys = "restore create business-@ " + snapshot + " --yes"
	}
	defer func() { d.c = operator }()
	if d.c, err = d.caller(d.ctx, "sign-up-form", "provisioner", ""); err != nil {
		return err
	}
	if err := d.refused("The backend of a sign-up form creates orgs, and tenants in them. With its token:",
		"server delete "+where+" --yes", prego.CodeForbidden); err != nil {
		return err
	}
	var narrowed api.CreatedToken
	limits := map[string]any{"name": "agent-" + d.suffix, "expires_in_seconds": 3600, "caveats": map[string]any{"destroys_nothing": true}}
	if err := operator.Do(d.ctx, http.MethodPost, "/v1/tokens", nil, limits, &narrowed); err != nil {
		return err
	}
	d.c = cli.NewClient(operator.Base, narrowed.Secret)
	if err := d.refused("A token of the operator that destroys nothing, for a script or an AI agent:",
		destroys, prego.CodeCaveat); err != nil {
		return err
	}
	if d.customer, err = d.caller(d.ctx, "acme-owner", "org_owner", "acme"); err != nil {
		return err
	}
	d.c = d.customer
	return d.run("The owner of the org acme sees what is acme's. Everything else looks as if it did not exist:", "org list", "tenant list")
}

// snapshot makes a snapshot of a tenant's site, and returns its id when it is there.
func (d *demo) snapshot(t api.TenantSummary) (id string, err error) {
	if err := d.run("A snapshot of a site, which the site could be set back to:", "snapshot create "+t.Slug+" -q"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	all, err := cli.Until(ctx, func(string) {}, 0, func(ctx context.Context) (all api.SnapshotPage, err error) {
		return all, d.c.Do(ctx, http.MethodGet, "/v1/tenants/"+t.TenantId+"/snapshots", nil, nil, &all)
	}, func(all api.SnapshotPage) bool { return len(all.Snapshots) > 0 && all.Snapshots[0].FinishedAt != nil })
	if err != nil {
		return "", fmt.Errorf("the snapshot of %s: %w", t.Slug, err)
	}
	return all.Snapshots[0].SnapshotId, nil
}

// silence hangs the agent of a tenant's server, follows the advice, and looks what has become of the tenant's site.
func (d *demo) silence() error {
	t, where, err := d.place("business-" + d.suffix)
	if err != nil {
		return err
	}
	host, err := d.host(where)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nThe agent of server %s hangs. Its site keeps serving, and status names the remedy:\n", where)
	stop := fmt.Sprintf("/_sim/hosts/%d/stop-agent", host.ID)
	if err := d.cloud.Do(d.ctx, http.MethodPost, stop, nil, nil, nil); err != nil {
		return err
	}
	if err := d.attention(where, true); err != nil {
		return err
	}
	reboot := "server reboot " + where + " --keep-tenants"
	return d.steps(
		func() error { return d.line("status --todo --kind agent_silent") },
		func() error { return d.serves(*t.SiteUrl) },
		func() error {
			return d.run("The remedy: a reboot keeps the tenants. Its preview names those that it interrupts:",
				reboot+" --dry-run", reboot+" --yes --watch")
		},
		func() error { return d.attention(where, false) },
		func() error { return d.serves(*t.SiteUrl) },
	)
}

// host is the simulated host of a server.
func (d *demo) host(serverID string) (sim.HostInfo, error) {
	hosts, err := d.hosts()
	for _, h := range hosts {
		if strings.HasSuffix(h.Name, serverID) {
			return h, nil
		}
	}
	return sim.HostInfo{}, errors.Join(err, fmt.Errorf("the simulated cloud has no host of server %s", serverID))
}

func (d *demo) hosts() ([]sim.HostInfo, error) {
	var all struct{ Hosts []sim.HostInfo }
	err := d.cloud.Do(d.ctx, http.MethodGet, "/_sim/hosts", nil, nil, &all)
	return all.Hosts, err
}

// attention waits until a server's agent is, or is no longer, listed as silent.
func (d *demo) attention(serverID string, listed bool) error {
	ctx, cancel := context.WithTimeout(d.ctx, 3*time.Minute)
	defer cancel()
	_, err := cli.Until(ctx, func(string) {}, 0, func(ctx context.Context) (all api.AttentionList, err error) {
		kind := url.Values{"kind": {string(attention.AgentSilent)}}
		return all, d.c.Do(ctx, http.MethodGet, "/v1/attention", kind, nil, &all)
	}, func(all api.AttentionList) bool {
		return slices.ContainsFunc(all.Items, func(i api.Attention) bool { return i.Subject.Id == serverID }) == listed
	})
	if err != nil {
		return fmt.Errorf("status should list the silent agent of %s: %t: %w", serverID, listed, err)
	}
	return nil
}

// serves shows that a site answers, where sites can be visited.
func (d *demo) serves(address string) error {
	client, err := d.sites.visitor()
	if d.sites.missing != "" || err != nil {
		return err
	}
	v, err := d.opened(client, address)
	if err == nil {
		fmt.Fprintf(d.out, "%s  %d\n", address, v.status)
	}
	return err
}

// asked is the result of requesting a page without a pause.
type asked struct {
	requests, failed int
	gap              time.Duration // the longest between two answers
	why              string        // the first one failed
}

// askAgainAndAgain requests a page until it is stopped.
func askAgainAndAgain(ctx context.Context, client *http.Client, address string) (stop func() asked) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan asked, 1)
	go func() {
		var r asked
		for last := time.Now(); ; {
			v, err := visit(ctx, client, address)
			if ctx.Err() != nil {
				done <- r
				return
			}
			if r.requests++; err != nil || v.status != http.StatusOK {
				if r.failed++; r.why == "" {
					r.why = fmt.Sprintf("%d %q %v", v.status, v.title, err)
				}
				continue
			}
			r.gap, last = max(r.gap, time.Since(last)), time.Now()
		}
	}()
	return func() asked {
		cancel()
		return <-done
	}
}

// fleet brings a fleet to four servers: weighted equally between us and eu, except for
// the cap. A second start finds the fleet as the first one left it, and starts over.
func (d *demo) fleet() error {
	const resize = "fleet resize demo-pool --to "
	var f api.Fleet
	return d.steps(
		func() error {
			return d.run("A policy decides where a fleet grows; here in three regions, with at most one server in us:",
				"policy create demo-spread --region eu=50 --region us=50:1 --region sg=25 -q",
				"fleet create demo-pool --role redis-pool --policy demo-spread -q")
		},
		func() error { return d.c.Do(d.ctx, http.MethodGet, "/v1/fleets/demo-pool", nil, nil, &f) },
		func() error {
			if f.Size == 0 {
				return nil
			}
			return d.run("An earlier start left servers in it; they go first:", resize+"0 --yes --watch")
		},
		func() error { return d.run("", resize+"4 --dry-run", resize+"4 --yes --watch", "fleet show demo-pool") },
	)
}

// workloads runs a group within its quota, then exceeds the org's quota, at the request
// and after it was accepted, and finally the servers' capacity.
func (d *demo) workloads(standIn string) error {
	image, command := "docker.io/library/nginx:1.29", ""
	if standIn != "" {
		image, command = standIn, " -- "+sim.StandInProgram+" stand-in web"
	}
	group := func(env, name, flags string) string {
		return fmt.Sprintf("group create %s-@ %s-@ --image %s --cpu 0.1 %s%s", env, name, image, flags, command)
	}
	return d.steps(
		func() error {
			return d.run("Customers' containers run as process groups; this server offers 1 GiB and 2 CPUs to them:",
				"fleet create work-@ --role app --region eu --type cx53 --tag work-@ --workload-memory 1G --workload-cpus 2 -q",
				"fleet scale-out work-@ --count 1 --watch", "org set small-@ --tier free -q",
				"app create shop-@ --org small-@ -q", "env create prod-@ --app shop-@ --region eu -q",
				group("prod", "web", "--memory 128M --replicas 2 --require work-@ --watch"), "instance list web-@")
		},
		func() error {
			return d.refused("An org's quota limits what it uses. More is rejected when it is requested:",
				group("prod", "many", "--memory 64M --replicas 6"), prego.CodeQuotaExceeded)
		},
		func() error {
			return d.run("It is checked again when there is room; while this group waits, the limit is lowered:",
				group("prod", "later", "--memory 900M --require work-@ -q"))
		},
		func() error { return d.await("later", "no_capacity_memory") },
		func() error {
			return d.run("", "quota set small-@ max_instances 2 --reason demo -q",
				"fleet update work-@ --workload-memory 4G -q", "group scale later-@ 1 -q")
		},
		func() error { return d.await("later", "org_quota_exceeded:max_instances") },
		func() error {
			return d.run("Within the quota, but without capacity: the reason is another one, and so is the remedy:",
				"org set large-@ --tier paid -q",
				"app create store-@ --org large-@ -q", "env create live-@ --app store-@ --region eu -q",
				"env create elsewhere-@ --app store-@ --region us -q",
				group("live", "huge", "--memory 64G --require work-@ -q"),
				group("elsewhere", "nowhere", "--memory 64M -q"))
		},
		func() error { return d.await("huge", "no_capacity_memory") },
		func() error { return d.await("nowhere", "no_nodes_active") },
	)
}

// steps are run in order until one fails.
func (d *demo) steps(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// line runs a command line.
func (d *demo) line(line string) error {
	line = strings.ReplaceAll(line, "@", d.suffix)
	fmt.Fprintf(d.out, "$ prego %s\n", line)
	if err := d.c.Run(d.ctx, d.out, strings.Fields(line)...); err != nil {
		return fmt.Errorf("prego %s: %w", line, err)
	}
	return nil
}

// run runs command lines, one after the other.
func (d *demo) run(title string, lines ...string) error {
	if title != "" {
		fmt.Fprintf(d.out, "\n%s\n", title)
	}
	for _, line := range lines {
		if err := d.line(line); err != nil {
			return err
		}
	}
	return nil
}

// atOnce runs command lines at the same time.
func (d *demo) atOnce(title string, lines ...string) error {
	fmt.Fprintf(d.out, "\n%s\n", title)
	var g errgroup.Group
	for _, line := range lines {
		g.Go(func() error { return d.line(line) })
	}
	return g.Wait()
}

// refused runs a command line that must be refused.
func (d *demo) refused(title, line string, code prego.Code) error {
	err := d.run(title, line)
	var r *cli.Refusal
	if !errors.As(err, &r) || r.Code != string(code) {
		return fmt.Errorf("prego %s should have been refused with %s: %w", line, code, err)
	}
	fmt.Fprintln(d.out, "prego:", r)
	return nil
}

// warm waits until a warm server is ready for the next tenant.
func (d *demo) warm() error {
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	_, err := cli.Until(ctx, func(string) {}, 0, func(ctx context.Context) (pools api.WarmPoolList, err error) {
		return pools, d.c.Do(ctx, http.MethodGet, "/v1/warm-pools", nil, nil, &pools)
	}, func(pools api.WarmPoolList) bool { return len(pools.WarmPools) > 0 && pools.WarmPools[0].Claimable > 0 })
	if err != nil {
		return err
	}
	return d.run("", "pool warm list")
}

// await waits until a group cannot be scheduled for a given reason, and shows it.
func (d *demo) await(name, reason string) error {
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	_, err := cli.Until(ctx, func(string) {}, 0, func(ctx context.Context) (page api.GroupPage, err error) {
		return page, d.c.Do(ctx, http.MethodGet, "/v1/groups", url.Values{"name": {name + "-" + d.suffix}}, nil, &page)
	}, func(page api.GroupPage) bool {
		return len(page.Groups) == 1 && page.Groups[0].StatusReason != nil && *page.Groups[0].StatusReason == reason
	})
	if err != nil {
		return fmt.Errorf("process group %s should wait for %s: %w", name, reason, err)
	}
	return d.run("", "group list --columns name,status --name "+name+"-@")
}

// lockedWriter keeps lines of several writers whole.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
