package app

import (
	"crypto/rand"
	"os"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/worker"
)

// newLooker has what a worker looks for by itself; the sweeps' schedules are the net below.
func newLooker(p *Process, servers *activities.Servers, fleet *activities.Reconciler, tenants *activities.Tenants, groups *activities.Groups, peers *activities.Peers, certificates *activities.Certificates, drains *activities.Drains, rebalances *activities.Rebalances) *worker.Looker {
	host, _ := os.Hostname()
	return &worker.Looker{
		Store: p.db, Holder: host + "/" + rand.Text(), Log: p.log.Named("looks"), Lease: worker.LookLease,
		Looks: []worker.Look{
			{Name: "agents", Every: p.cfg.Worker.SweepEvery, Do: activities.LookAtAgents(fleet)},
			// With a row's first seconds and what a start takes, within 15 s.
			{Name: "runs", Every: p.cfg.Worker.SweepEvery / 2, Do: activities.LookAtRuns(fleet)},
			{Name: "networks", Every: p.cfg.Worker.NetworkEvery, Do: activities.LookAtNetworks(servers)},
			{Name: "tenants", Every: p.cfg.Tenants.SweepEvery, Do: activities.LookAtTenants(tenants)},
			{Name: "fleet", Every: p.cfg.Tenants.SweepEvery, Do: activities.LookAtFleet(tenants)},
			{Name: "groups", Every: p.cfg.Workloads.SweepEvery, Do: activities.LookAtGroups(groups)},
			{Name: "drains", Every: p.cfg.Workloads.SweepEvery, Do: activities.LookAtDrains(drains)},
			{Name: "patches", Every: p.cfg.Workloads.PatchEvery, Do: activities.LookAtPatches(drains)},
			{Name: "rebalances", Every: p.cfg.Workloads.RebalanceEvery, Do: activities.LookAtRebalances(rebalances)},
			{Name: "addresses", Every: p.cfg.Workloads.SweepEvery, Do: activities.LookAtAddresses(fleet.Org)},
			{Name: "storage", Every: p.cfg.Tenants.StorageSweep, Do: activities.LookAtStorage(tenants)},
			{Name: "peers", Every: p.cfg.Worker.PeersEvery, Do: activities.LookAtPeers(peers)},
			{Name: "egress", Every: p.cfg.Worker.SweepEvery, Do: activities.LookAtEgress(peers)},
			{Name: "public ports", Every: p.cfg.Worker.SweepEvery, Do: activities.LookAtPublicPorts(servers)},
			{Name: "certificates", Every: p.cfg.ACME.SweepEvery, Do: activities.LookAtCertificates(certificates)},
		},
	}
}
