package worker

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

// LookAtAgents marks agents that fell silent, with one statement.
func LookAtAgents(ctx context.Context, a *activities.Reconciler) (ops.LookResult, error) {
	r, err := a.SweepSilent(ctx)
	return ops.LookResult{Found: r.Degraded+r.Failed > 0, Pause: ops.FleetPause(r.Fleet)}, err
}

// notBegun is how long a row may be as it was accepted before its run is looked for.
const notBegun = 5 * time.Second

// LookAtRuns starts the runs of servers and of what orgs own that were accepted while Temporal
// was away, when the API that would have repeated the start has died meanwhile. Reconciliation
// finds runs that were lost later.
func LookAtRuns(ctx context.Context, a *activities.Reconciler) (ops.LookResult, error) {
	started, err := a.StartLostRuns(ctx, notBegun)
	return ops.LookResult{Found: started > 0}, err
}

// LookAtNetworks attaches servers that should be in a private network and are not: imported
// servers, and servers whose network is gone. There are few of them once
// in the life of an installation, and a call or two each, so there is no run.
func LookAtNetworks(ctx context.Context, a *activities.Servers) (ops.LookResult, error) {
	found, err := a.AttachUnattached(ctx)
	return ops.LookResult{Found: found}, err
}

// LookAtMaintenances starts the runs of maintenances that have lost theirs.
func LookAtMaintenances(ctx context.Context, a *activities.Maintenances) (ops.LookResult, error) {
	ids, err := a.Store.QuietMaintenances(ctx, a.Quiet)
	return startLost(ctx, ids, err, a.Runs.EnsureMaintenance)
}

// patchWindow is the requester of patches without an operator's request.
const patchWindow = "patch window"

// LookAtPatches requests the patches of servers that lack something, while their windows are open: one server of each
// fleet at a time.
func LookAtPatches(ctx context.Context, a *activities.Maintenances) (ops.LookResult, error) {
	fleets, err := a.Store.FleetWindows(ctx)
	if err != nil {
		return ops.LookResult{}, err
	}
	open := server.PatchWindowsOpen(time.Now(), a.Window, fleets)
	if open.None() {
		return ops.LookResult{}, nil
	}
	next, err := a.Store.ServersToPatch(ctx, open)
	var try activities.Attempts
	try.OK(err)
	for s := range activities.Each(&try, next) {
		// A shard with tenants' data is not emptied: an operator decides when its tenants may be down.
		_, err := a.Store.RequestMaintenance(impact.By(ctx, "patch window"), s.ServerID, server.MaintenancePatch, server.MaintenanceRequest{Wave: s.Wave()}, patchWindow)
		switch {
		case prego.CodeOf(err) != "":
			a.Log.Warn("a server is not patched in this window", zap.String("server_id", string(s.ServerID)), zap.Error(err))
		case try.OK(err):
			_, err = a.Runs.EnsureMaintenance(ctx, s.ServerID)
			try.OK(err)
		}
	}
	return ops.LookResult{Found: len(next) > 0}, try.Err()
}

// peersAtOnce bounds the rules that are made in one transaction.
const peersAtOnce = 200

// LookAtPeers recomputes the rules that may have changed.
func LookAtPeers(ctx context.Context, a *activities.Peers) (ops.LookResult, error) {
	var r ops.LookResult
	for {
		n, err := a.Store.MakeDuePeers(ctx, peersAtOnce, a.Ports)
		r.Found = r.Found || n > 0
		if err != nil || n < peersAtOnce {
			return r, err
		}
	}
}

// LookAtEgress admits the addresses that this control plane calls from, at hosts and at the providers' firewalls, and
// removes former ones.
func LookAtEgress(ctx context.Context, a *activities.Peers) (ops.LookResult, error) {
	e, changed, err := a.Store.SetEgress(ctx, a.Egress, a.Grace)
	if err != nil || !changed {
		return ops.LookResult{}, err
	}
	a.Log.Info("hosts let in other addresses", zap.Strings("cidrs", e.CIDRs), zap.Strings("leaving", e.Leaving), zap.Int64("epoch", e.Epoch))
	// Reconciliation does it again if this fails.
	return ops.LookResult{Found: true}, a.Firewalls(ctx)
}

// LookAtPublicPorts keeps the providers' firewalls of edges at the ports that routes listen
// on. Reconciliation restores what others change of them.
func LookAtPublicPorts(a *activities.Servers) func(context.Context) (ops.LookResult, error) {
	var open []int
	known := false
	return func(ctx context.Context) (ops.LookResult, error) {
		ports, err := a.Store.PublicPorts(ctx)
		if err != nil || known && slices.Equal(ports, open) {
			return ops.LookResult{}, err
		}
		if err := a.OpenPublicPorts(ctx); err != nil {
			return ops.LookResult{}, err
		}
		open, known = ports, true
		return ops.LookResult{Found: true}, nil
	}
}
