package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/cli"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// demoOffer is what the server of the demo's own fleet has for instances at first.
const demoOffer = 1 << 30

// demoWork is what the demo runs on servers that offer room, and what it is refused.
type demoWork struct {
	c       *cli.Client
	out     io.Writer
	suffix  string
	fleet   string
	image   string
	command []string
}

// begin asks for a fleet of one server that offers room to instances; it is awaited
// later. Its tag keeps the groups away from servers of earlier starts.
func (d *demoWork) begin(ctx context.Context) (action int, err error) {
	in := server.CreateFleetRequest{
		FleetID: d.fleet, Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner,
		Spec: server.Spec{Tags: []string{d.fleet}}, WorkloadMemory: demoOffer, WorkloadCPUs: 2,
	}
	if err := d.c.Do(ctx, http.MethodPost, "/v1/fleets", nil, in, nil); err != nil {
		return 0, err
	}
	var a api.FleetActionAccepted
	err = d.c.Do(ctx, http.MethodPost, fleetPath(d.fleet, "actions"), nil, map[string]any{"action": server.ClusterScaleOut, "inputs": map[string]any{"count": 1}}, &a)
	return a.Seq, err
}

// show runs a group within its quota, and then asks for more than the org may have,
// before and after it was accepted, and for more than the servers have.
func (d *demoWork) show(ctx context.Context, action int) error {
	fmt.Fprintf(d.out, "\nProcess groups on fleet %s: one server, which offers 1 GiB and 2 CPUs to them\n", d.fleet)
	if err := ended(ctx, d.c, io.Discard, d.fleet, action); err != nil {
		return err
	}
	small, err := d.env(ctx, "small-"+d.suffix, prego.TierFree, prego.RegionEU)
	if err != nil {
		return err
	}
	web, err := d.group(ctx, small, "web", 2, 128<<20)
	if err != nil {
		return err
	}
	if web, err = d.await(ctx, web.GroupId, func(g api.ProcessGroup) bool { return g.Status == "running" && g.Converged }); err != nil {
		return err
	}
	var placed api.InstancePage
	if err := d.c.Do(ctx, http.MethodGet, "/v1/groups/"+web.GroupId+"/instances", nil, nil, &placed); err != nil {
		return err
	}
	for _, i := range placed.Instances {
		fmt.Fprintf(d.out, "  web  %s is %s on %s\n", i.InstanceId, i.State, i.ServerId)
	}
	if err := d.refusedByRequest(ctx, small); err != nil {
		return err
	}
	if err := d.refusedByScheduler(ctx, small); err != nil {
		return err
	}
	return d.refusedByCapacity(ctx)
}

// refusedByRequest asks for more than the tier allows.
func (d *demoWork) refusedByRequest(ctx context.Context, env api.Env) error {
	fmt.Fprintf(d.out, "\nRefused by the org's quota when it is asked for: 6 instances more for %s, of tier free\n", env.OrgId)
	_, err := d.group(ctx, env, "many", 6, 64<<20)
	var r *cli.Refusal
	if !errors.As(err, &r) || r.Code != string(prego.CodeQuotaExceeded) || r.Dimension == nil || r.Limit == nil || r.CurrentUsage == nil || r.RequestedDelta == nil {
		return fmt.Errorf("6 instances more for %s should have been refused with %s: %w", env.OrgId, prego.CodeQuotaExceeded, orAccepted(err))
	}
	return d.rows([2]string{fmt.Sprintf("%d %s", r.Status, r.Code), *r.Dimension}, [2]string{"limit", fmt.Sprint(*r.Limit)},
		[2]string{"current_usage", fmt.Sprint(*r.CurrentUsage)}, [2]string{"requested_delta", fmt.Sprint(*r.RequestedDelta)}, [2]string{"why", deref(r.Detail)})
}

// refusedByScheduler lets a group wait for room, lowers its org's limit, and makes room.
func (d *demoWork) refusedByScheduler(ctx context.Context, env api.Env) error {
	fmt.Fprintln(d.out, "\nRefused by the org's quota when it is scheduled: later was accepted and waits for room; then the limit is lowered, and there is room")
	later, err := d.group(ctx, env, "later", 1, 900<<20)
	if err != nil {
		return err
	}
	if later, err = d.unschedulable(ctx, later.GroupId, "no_capacity_memory"); err != nil {
		return err
	}
	before := deref(later.StatusReason)
	if err := d.c.Do(ctx, http.MethodPut, "/v1/orgs/"+env.OrgId+"/quotas/max_instances", nil, api.SetQuota{Limit: 2, Reason: "shown by the demo"}, nil); err != nil {
		return err
	}
	room := int64(4 * demoOffer)
	if err := d.c.Do(ctx, http.MethodPatch, fleetPath(d.fleet), nil, server.UpdateFleetRequest{WorkloadMemory: &room}, nil); err != nil {
		return err
	}
	// The same number again takes nothing, and has the group looked at now.
	if err := d.c.Do(ctx, http.MethodPost, "/v1/groups/"+later.GroupId+"/scale", nil, api.ScaleGroup{Replicas: 1}, nil); err != nil {
		return err
	}
	if later, err = d.unschedulable(ctx, later.GroupId, "org_quota_exceeded:max_instances"); err != nil {
		return err
	}
	return d.rows([2]string{"at first", before}, [2]string{"now", deref(later.StatusReason)}, [2]string{"why", deref(later.StatusMessage)})
}

// refusedByCapacity asks within the quota for what no server has, and where there is none.
func (d *demoWork) refusedByCapacity(ctx context.Context) error {
	fmt.Fprintf(d.out, "\nWithin the quota, and the cluster has no room: large-%s is of tier paid\n", d.suffix)
	large, err := d.env(ctx, "large-"+d.suffix, prego.TierPaid, prego.RegionEU)
	if err != nil {
		return err
	}
	elsewhere, err := d.envOf(ctx, large.AppId, "elsewhere", prego.RegionUS)
	if err != nil {
		return err
	}
	var rows [][2]string
	for _, ask := range []struct {
		env    api.Env
		name   string
		memory int64
		reason string
	}{
		{large, "huge", 64 << 30, "no_capacity_memory"},
		{elsewhere, "nowhere", 64 << 20, "no_nodes_active"},
	} {
		g, err := d.group(ctx, ask.env, ask.name, 1, ask.memory)
		if err != nil {
			return err
		}
		if g, err = d.unschedulable(ctx, g.GroupId, ask.reason); err != nil {
			return err
		}
		rows = append(rows, [2]string{fmt.Sprintf("%s, %s in %s", ask.name, cli.Bytes(ask.memory), ask.env.Region), deref(g.StatusReason)}, [2]string{"why", deref(g.StatusMessage)})
	}
	return d.rows(rows...)
}

func (d *demoWork) rows(rows ...[2]string) error {
	for i := range rows {
		rows[i][0] = "  " + rows[i][0]
	}
	cli.Pairs(d.out, rows...)
	return nil
}

// env is an env of a new app of a new org.
func (d *demoWork) env(ctx context.Context, org string, tier prego.Tier, region prego.Region) (e api.Env, err error) {
	if err := d.c.Do(ctx, http.MethodPut, "/v1/orgs/"+url.PathEscape(org), nil, map[string]string{"tier": string(tier)}, nil); err != nil {
		return e, err
	}
	var app api.App
	if err := d.c.Do(ctx, http.MethodPost, "/v1/apps", nil, api.CreateApp{OrgId: org, Name: "shop"}, &app); err != nil {
		return e, err
	}
	return d.envOf(ctx, app.AppId, "prod", region)
}

func (d *demoWork) envOf(ctx context.Context, app, name string, region prego.Region) (e api.Env, err error) {
	return e, d.c.Do(ctx, http.MethodPost, "/v1/apps/"+url.PathEscape(app)+"/envs", nil, api.CreateEnv{Name: name, Region: api.Region(region)}, &e)
}

func (d *demoWork) group(ctx context.Context, env api.Env, name string, replicas int, memory int64) (g api.ProcessGroup, err error) {
	spec := workload.Spec{Image: d.image, Command: d.command, MemoryLimitBytes: memory, CPURequest: 0.1}
	if env.Region == api.Region(prego.RegionEU) {
		spec.Constraint = &prego.Constraint{Require: []string{d.fleet}}
	}
	err = d.c.Do(ctx, http.MethodPost, "/v1/envs/"+url.PathEscape(env.EnvId)+"/groups", nil, workload.CreateGroupRequest{Name: name, Spec: spec, Replicas: &replicas}, &g)
	return g, err
}

func (d *demoWork) unschedulable(ctx context.Context, id, reason string) (api.ProcessGroup, error) {
	return d.await(ctx, id, func(g api.ProcessGroup) bool { return g.Status == "unschedulable" && deref(g.StatusReason) == reason })
}

// await asks for a group until it is as it should be, for a minute at most.
func (d *demoWork) await(ctx context.Context, id string, as func(api.ProcessGroup) bool) (g api.ProcessGroup, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	last, err := cli.Until(ctx, func(string) {}, 0, func(ctx context.Context) (now api.ProcessGroup, err error) {
		err = d.c.Do(ctx, http.MethodGet, "/v1/groups/"+id, nil, nil, &now)
		return now, err
	}, func(now api.ProcessGroup) bool { g = now; return as(now) })
	if ctx.Err() != nil {
		err = fmt.Errorf("process group %s is not as it should be but %s", id, cli.GroupStatus(g))
	}
	return last, err
}

// orAccepted is what was answered where a refusal was expected.
func orAccepted(err error) error {
	if err == nil {
		return errors.New("it was accepted")
	}
	return err
}
