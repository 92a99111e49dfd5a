package app

import (
	"context"
	"crypto/rand"
	"os"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workflows"
)

// selfLook is how a process that serves no requests of callers states that it runs, and whether it is ready.
func (p *Process) selfLook(name string, runs *workflows.Client) worker.Look {
	ready := p.ready(runs)
	return worker.Look{Name: name, Every: ops.ProcessEvery, Do: func(ctx context.Context) (ops.LookResult, error) {
		return ops.LookResult{}, ready(ctx)
	}}
}

// looker repeats looks.
func (p *Process) looker(looks ...worker.Look) *worker.Looker {
	host, _ := os.Hostname()
	return &worker.Looker{
		Store: p.db, Holder: host + "/" + rand.Text(), Log: p.log.Named("looks"), Lease: worker.LookLease, Looks: looks,
	}
}

// newLooker has what a worker looks for by itself; the sweeps' schedules are the net below.
func newLooker(p *Process, servers *activities.Servers, fleet *activities.Reconciler, tenants *activities.Tenants, groups *activities.Groups, peers *activities.Peers, certificates *activities.Certificates, maintenances *activities.Maintenances, rebalances *worker.Rebalances) *worker.Looker {
	return p.looker([]worker.Look{
		{Name: "agents", Every: p.cfg.Worker.SweepEvery, Do: worker.At(fleet, worker.LookAtAgents)},
		// With a row's first seconds and what a start takes, within 15 s.
		{Name: "runs", Every: p.cfg.Worker.SweepEvery / 2, Do: worker.At(fleet, worker.LookAtRuns)},
		{Name: "networks", Every: p.cfg.Worker.NetworkEvery, Do: worker.At(servers, worker.LookAtNetworks)},
		{Name: "tenants", Every: p.cfg.Tenants.SweepEvery, Do: worker.At(tenants, worker.LookAtTenants)},
		{Name: "fleet", Every: p.cfg.Tenants.SweepEvery, Do: worker.At(tenants, worker.LookAtFleet)},
		{Name: "groups", Every: p.cfg.Workloads.SweepEvery, Do: worker.At(groups, worker.LookAtGroups)},
		{Name: "places", Every: p.cfg.Workloads.SweepEvery / 2, Do: worker.At(groups, worker.LookAtPlaces)},
		{Name: "maintenances", Every: p.cfg.Workloads.SweepEvery, Do: worker.At(maintenances, worker.LookAtMaintenances)},
		{Name: "patches", Every: p.cfg.Workloads.PatchEvery, Do: worker.At(maintenances, worker.LookAtPatches)},
		{Name: "rebalances", Every: p.cfg.Workloads.RebalanceEvery, Do: worker.At(rebalances, worker.LookAtRebalances)},
		{Name: "addresses", Every: p.cfg.Workloads.SweepEvery, Do: worker.At(fleet.Org, worker.LookAtAddresses)},
		{Name: "storage", Every: p.cfg.Tenants.StorageSweep, Do: worker.At(tenants, worker.LookAtStorage)},
		{Name: "peers", Every: p.cfg.Worker.PeersEvery, Do: worker.At(peers, worker.LookAtPeers)},
		{Name: "egress", Every: p.cfg.Worker.SweepEvery, Do: worker.At(peers, worker.LookAtEgress)},
		{Name: "public ports", Every: p.cfg.Worker.SweepEvery, Do: worker.LookAtPublicPorts(servers)},
		{Name: "certificates", Every: p.cfg.ACME.SweepEvery, Do: worker.At(certificates, worker.LookAtCertificates)},
	}...)
}
