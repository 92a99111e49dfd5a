package app

import (
	"crypto/rand"
	"os"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/worker"
)

// newLooker has what a worker looks for by itself; the sweeps' schedules are the net below.
func newLooker(p *Process, servers *activities.Servers, fleet *activities.Reconciler, tenants *activities.Tenants, groups *activities.Groups, peers *activities.Peers, certificates *activities.Certificates, maintenances *activities.Maintenances, rebalances *worker.Rebalances) *worker.Looker {
	host, _ := os.Hostname()
	return &worker.Looker{
		Store: p.db, Holder: host + "/" + rand.Text(), Log: p.log.Named("looks"), Lease: worker.LookLease,
		Looks: []worker.Look{
			{Name: "agents", Every: p.cfg.Worker.SweepEvery, Do: worker.LookAtAgents(fleet)},
			// With a row's first seconds and what a start takes, within 15 s.
			{Name: "runs", Every: p.cfg.Worker.SweepEvery / 2, Do: worker.LookAtRuns(fleet)},
			{Name: "networks", Every: p.cfg.Worker.NetworkEvery, Do: worker.LookAtNetworks(servers)},
			{Name: "tenants", Every: p.cfg.Tenants.SweepEvery, Do: worker.LookAtTenants(tenants)},
			{Name: "fleet", Every: p.cfg.Tenants.SweepEvery, Do: worker.LookAtFleet(tenants)},
			{Name: "groups", Every: p.cfg.Workloads.SweepEvery, Do: worker.LookAtGroups(groups)},
			{Name: "maintenances", Every: p.cfg.Workloads.SweepEvery, Do: worker.LookAtMaintenances(maintenances)},
			{Name: "patches", Every: p.cfg.Workloads.PatchEvery, Do: worker.LookAtPatches(maintenances)},
			{Name: "rebalances", Every: p.cfg.Workloads.RebalanceEvery, Do: worker.LookAtRebalances(rebalances)},
			{Name: "addresses", Every: p.cfg.Workloads.SweepEvery, Do: worker.LookAtAddresses(fleet.Org)},
			{Name: "storage", Every: p.cfg.Tenants.StorageSweep, Do: worker.LookAtStorage(tenants)},
			{Name: "peers", Every: p.cfg.Worker.PeersEvery, Do: worker.LookAtPeers(peers)},
			{Name: "egress", Every: p.cfg.Worker.SweepEvery, Do: worker.LookAtEgress(peers)},
			{Name: "public ports", Every: p.cfg.Worker.SweepEvery, Do: worker.LookAtPublicPorts(servers)},
			{Name: "certificates", Every: p.cfg.ACME.SweepEvery, Do: worker.LookAtCertificates(certificates)},
		},
	}
}
