package activities

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// Reconciler holds the periodic steps over all servers.
type Reconciler struct {
	Store       *store.Store
	Infra       map[prego.InfraProviderID]Infra
	Runs        Runs
	Environment string
	Firewall    server.FirewallParams
	// Egress is as in Servers: its addresses are let in besides the Firewall addresses.
	Egress func(ctx context.Context) (server.Egress, error)
	Rules  OrphanRules
	Grace  time.Duration // how long a create of unknown outcome may still land
	Sweep  server.SweepParams
	// Check compares servers' containers with their declaration, DriftHosts servers per
	// run; may be nil.
	Check      func(ctx context.Context, serverID prego.ServerID) (ContainerReport, error)
	DriftHosts int
	// Images knows the golden images; may be nil.
	Images *Images
	// Org knows what orgs own at the provider; may be nil.
	Org     *OrgResources
	Metrics *Metrics
	Log     *zap.Logger
}

// ReconcileResult counts what one reconciliation found and did.
type ReconcileResult struct {
	RunID      int64 `json:"run_id"`
	Owned      int   `json:"owned"`                // our resources at the provider
	Restarted  int   `json:"restarted"`            // rows whose workflow had never started or was lost
	Missing    int   `json:"missing"`              // rows whose server is gone: now failed
	Orphans    int   `json:"orphans"`              // resources without an owner
	Destroyed  int   `json:"destroyed"`            // of those, destroyed
	Settled    int   `json:"settled"`              // ledger lines closed
	Unattached int   `json:"unattached,omitempty"` // volumes that are not attached where their rows have them
	BreakerHit bool  `json:"breaker_hit"`          // refused to destroy; investigate before anything else

	ContainersChecked int               `json:"containers_checked"`        // servers whose containers were checked
	ContainersUnknown int               `json:"containers_unknown"`        // of those, not reached
	Drift             []ContainerReport `json:"container_drift,omitempty"` // servers that differ from their declaration
}

// Reconcile brings the provider and the rows into agreement (direct-provisioning §3).
func (a *Reconciler) Reconcile(ctx context.Context) (ReconcileResult, error) {
	runID, err := a.Store.BeginReconcile(ctx)
	if err != nil {
		return ReconcileResult{}, err
	}
	result := ReconcileResult{RunID: runID}
	var active []string
	var try Attempts
	for _, infra := range a.Infra {
		rows, err := a.reconcile(ctx, infra, &result)
		try.OK(err)
		for _, r := range rows {
			if r.Status == server.Active {
				active = append(active, string(r.ServerID))
			}
		}
	}
	if a.Org != nil {
		started, err := a.Org.startLost(ctx, idleAfter)
		result.Restarted += started
		try.OK(err)
	}
	a.checkContainers(ctx, active, &result)
	a.checkUsage(ctx)
	if err := a.Store.PruneChanges(ctx, keepChanges); err != nil {
		a.Log.Warn("the feed of changes is not pruned", zap.String("error", prego.Redact(err.Error())))
	}
	if len(try) > 0 {
		return result, try.Err()
	}
	a.Metrics.Breaker.Set(map[bool]float64{true: 1}[result.BreakerHit])
	return result, a.Store.EndReconcile(ctx, runID, result)
}

func (a *Reconciler) reconcile(ctx context.Context, infra Infra, result *ReconcileResult) ([]server.ReconcileRow, error) {
	snapshot, err := a.snapshot(ctx, infra)
	if err != nil {
		return nil, err
	}
	found := Compare(snapshot)
	var try Attempts // one row keeps no other from its turn
	result.Owned += len(snapshot.Owned)
	if a.Images != nil {
		started, err := a.Images.startLost(ctx, slices.SortedFunc(maps.Values(snapshot.Images), func(a, b server.GoldenImage) int { return strings.Compare(string(a.ImageID), string(b.ImageID)) }))
		result.Restarted += started
		try.OK(err)
		try.OK(a.Images.missing(ctx, infra.ID(), snapshot))
	}
	try.OK(a.restart(ctx, found.Idle, result))
	try.OK(a.failMissing(ctx, infra, found.Missing, result))
	a.protect(ctx, infra, snapshot)
	if a.Org != nil {
		n, err := a.Org.checkAttached(ctx, snapshot.Attached, snapshot.Owned)
		if result.Unattached += n; err != nil { // one volume or host hinders no other work; the next run repeats it
			a.Log.Warn("attached volumes not compared", zap.String("error", prego.Redact(err.Error())))
		}
	}
	if len(try) > 0 { // nothing is destroyed by a process whose statements fail
		return snapshot.Rows, try.Err()
	}
	if err := a.destroyOrphans(ctx, infra, snapshot, found.Orphans, result); err != nil {
		return snapshot.Rows, err
	}
	return snapshot.Rows, a.settle(ctx, infra, snapshot, found.Lost, result)
}

// snapshot reads the rows before it lists the provider. A server created in between can
// look like an orphan once, but is too young to be destroyed; a row can never look like
// one whose server is missing.
func (a *Reconciler) snapshot(ctx context.Context, infra Infra) (Comparison, error) {
	var s Comparison
	var err error
	if s.Rows, err = a.Store.FleetRows(ctx, infra.ID()); err != nil {
		return s, err
	}
	if s.Resources, err = a.Store.AllLiveResources(ctx, infra.ID()); err != nil {
		return s, err
	}
	if a.Org != nil {
		names, err := a.Org.Store.OrgNames(ctx, infra.ID())
		if err != nil {
			return s, err
		}
		if s.Attached, err = a.Org.Store.AttachedVolumes(ctx, infra.ID(), ""); err != nil {
			return s, err
		}
		s.OrgNames = make(map[string]bool, len(names))
		for _, n := range names {
			s.OrgNames[resourceKey(n.Kind, n.Name)] = true
		}
	}
	if a.Images != nil {
		images, err := a.Images.Store.LiveGoldenImages(ctx, infra.ID())
		if err != nil {
			return s, err
		}
		s.Images = make(map[string]server.GoldenImage, len(images))
		for _, g := range images {
			s.Images[string(g.ImageID)] = g
		}
	}
	if s.Owned, err = infra.ListOwned(ctx); err != nil {
		return s, fromInfra(err)
	}
	s.Now = time.Now()
	return s, nil
}

// StartLostRuns starts the runs of servers and of what orgs own that were accepted and have had none for a while.
func (a *Reconciler) StartLostRuns(ctx context.Context, quiet time.Duration) (started int, err error) {
	idle, err := a.Store.ServersWithoutRun(ctx, quiet)
	if err != nil {
		return 0, err
	}
	var r ReconcileResult
	err = a.restart(ctx, idle, &r)
	if a.Org != nil {
		var orgErr error
		started, orgErr = a.Org.startLost(ctx, quiet)
		err = errors.Join(err, orgErr)
	}
	return r.Restarted + started, err
}

func (a *Reconciler) restart(ctx context.Context, idle []server.ReconcileRow, result *ReconcileResult) error {
	var try Attempts
	for r := range Each(&try, idle) {
		ensure := func() (bool, error) { return a.Runs.EnsureProvision(ctx, r.ServerID, r.Generation) }
		if r.Status == server.Decommissioning {
			ensure = func() (bool, error) { return a.Runs.EnsureDecommission(ctx, r.ServerID) }
		}
		started, err := ensure()
		if err != nil {
			err = fmt.Errorf("start the run of %s: %w", r.ServerID, err)
		}
		if !try.OK(err) || !started {
			continue
		}
		result.Restarted++
		a.Log.Warn("started the run of a row that had none", zap.String("server_id", string(r.ServerID)), zap.String("status", string(r.Status)))
		try.OK(a.Store.AddEvent(ctx, server.Event{
			ServerID: r.ServerID, Step: server.StepWorkflowRestarted, Attempt: r.Attempt, Actor: prego.ActorSystem,
			Message: "the row had no run working on it",
		}, ""))
	}
	return try.Err()
}

// failMissing asks the provider for each server individually before it believes the
// list.
func (a *Reconciler) failMissing(ctx context.Context, infra Infra, missing []server.ReconcileRow, result *ReconcileResult) error {
	var try Attempts
	for _, r := range missing {
		_, err := infra.GetServer(ctx, prego.ServerID(r.ProviderServerID))
		var ie *server.InfraError
		if err == nil || !errors.As(err, &ie) || ie.Class != server.InfraNotFound {
			continue
		}
		marked, err := a.Store.MarkMissing(ctx, r.ServerID, r.ProviderServerID)
		if try.OK(err) && marked {
			result.Missing++
			a.Log.Error("the server of a row is gone", zap.String("server_id", string(r.ServerID)), zap.String("provider_server_id", r.ProviderServerID))
		}
	}
	return try.Err()
}

// mostProtected bounds what one run protects: the provider's budget is for others, too.
const mostProtected = 100

// protect protects servers and volumes in use at the provider, whose protection was missed or lifted by hand.
func (a *Reconciler) protect(ctx context.Context, infra Infra, s Comparison) {
	used := make(map[string]bool, len(s.Rows))
	for _, r := range s.Rows {
		used[r.ProviderServerID] = r.Status == server.Active
	}
	n := 0
	for _, o := range s.Owned {
		switch {
		case o.Protected || n == mostProtected:
			continue
		case o.Kind == server.ResourceServer && used[o.ProviderID]:
		case o.Kind == server.ResourceVolume && s.OrgNames[resourceKey(o.Kind, o.Name)]:
		default:
			continue
		}
		if err := (protected{a.Store, infra, infra.ID(), o.Kind, o.ProviderID}).protect(ctx); err != nil {
			a.Log.Warn("not protected from deletion at the provider; the next reconciliation tries again",
				zap.String("kind", string(o.Kind)), zap.String("provider_id", o.ProviderID), zap.Error(err))
			return
		}
		n++
	}
}

func (a *Reconciler) destroyOrphans(ctx context.Context, infra Infra, snapshot Comparison, orphans []server.OwnedResource, result *ReconcileResult) error {
	result.Orphans += len(orphans)
	sightings := make(map[string]server.Sighting, len(orphans))
	still := make([]string, 0, len(orphans))
	for _, o := range orphans {
		seen, err := a.Store.SightOrphan(ctx, infra.ID(), o)
		if err != nil {
			return err
		}
		key := resourceKey(o.Kind, o.ProviderID)
		sightings[key] = seen
		still = append(still, key)
	}
	if err := a.Store.ForgetSightings(ctx, infra.ID(), still); err != nil {
		return err
	}
	doomed, tripped := Doomed(snapshot, orphans, sightings, a.Rules)
	if tripped {
		result.BreakerHit = true
		a.Log.Error("reconcile refuses to destroy: too much of the fleet has no owner in this database",
			zap.Int("orphans", len(orphans)), zap.Int("rows", len(snapshot.Rows)))
		return nil
	}
	for _, o := range doomed {
		if err := infra.DeleteResource(ctx, o.Kind, prego.ServerID(o.ProviderID)); err != nil {
			a.Log.Error("destroy orphan", zap.String("kind", string(o.Kind)), zap.String("provider_id", o.ProviderID), zap.Error(err))
			continue
		}
		if err := a.Store.OrphanDestroyed(ctx, infra.ID(), o.Kind, o.ProviderID, prego.ServerID(o.Labels[server.LabelServerID])); err != nil {
			return err
		}
		a.Metrics.Orphans.WithLabelValues(string(o.Kind)).Inc()
		a.Log.Warn("orphan destroyed", zap.String("kind", string(o.Kind)), zap.String("provider_id", o.ProviderID), zap.String("name", o.Name))
		result.Destroyed++
	}
	return nil
}

// settle closes ledger lines: shared resources that are gone at the provider or never came, and
// lines of failed or terminated servers without a pending outcome.
func (a *Reconciler) settle(ctx context.Context, infra Infra, s Comparison, lost []server.ProviderResource, result *ReconcileResult) error {
	for _, r := range lost {
		if a.Org != nil && (r.Kind == server.ResourceVolume || r.Kind == server.ResourceFloatingIP) {
			if err := a.Org.Store.OrgResourceMissing(ctx, r); err != nil {
				return err
			}
		}
		if r.Kind == server.ResourceNetwork {
			if err := a.Store.NetworkGone(ctx, infra.ID(), r.ProviderID); err != nil {
				return err
			}
		}
		if err := a.Store.Released(ctx, r.ResourceID); err != nil {
			return err
		}
		result.Settled++
	}
	rows := make(map[string]server.ReconcileRow, len(s.Rows))
	for _, r := range s.Rows {
		rows[string(r.ServerID)] = r
	}
	byName := make(map[string]server.OwnedResource, len(s.Owned))
	byID := make(map[string]bool, len(s.Owned))
	for _, o := range s.Owned {
		byName[resourceKey(o.Kind, o.Name)] = o
		byID[resourceKey(o.Kind, o.ProviderID)] = true
	}
	for _, r := range s.Resources {
		_, there := byName[resourceKey(r.Kind, r.Name)]
		if shared := r.Kind == server.ResourceFirewall || r.Kind == server.ResourcePlacementGroup; shared && r.ServerID == "" && r.ProviderID == "" && !there && r.Age >= a.Grace {
			// Its user no longer needs it, or asks again. A resource made since has its id, and stays.
			if err := a.Store.IntentWithdrawn(ctx, infra.ID(), r.Kind, r.Name); err != nil {
				return err
			}
			result.Settled++
			continue
		}
		row := rows[string(r.ServerID)]
		settled := row.Status == server.Failed || row.Status == server.Terminated
		if r.ServerID == "" || !settled || r.Age < a.Grace {
			continue
		}
		switch o, there := byName[resourceKey(r.Kind, r.Name)]; {
		case r.ProviderID == "" && there && row.ProviderServerID == "":
			if err := infra.DeleteResource(ctx, o.Kind, prego.ServerID(o.ProviderID)); err != nil {
				a.Log.Error("settle a create of unknown outcome", zap.String("name", r.Name), zap.Error(err))
				continue
			}
		case r.ProviderID == "" && !there:
		case r.ProviderID != "" && r.State == server.ResourceReleasing:
			if byID[resourceKey(r.Kind, r.ProviderID)] {
				if err := (protected{a.Store, infra, infra.ID(), r.Kind, r.ProviderID}).destroy(ctx); err != nil {
					a.Log.Error("finish a deletion", zap.String("name", r.Name), zap.Error(err))
					continue
				}
			}
		default:
			continue
		}
		if err := a.Store.Released(ctx, r.ResourceID); err != nil {
			return err
		}
		result.Settled++
	}
	// Rules that were changed by hand are restored.
	for _, r := range s.Resources {
		if r.Kind == server.ResourceFirewall && r.ProviderID != "" && byID[resourceKey(r.Kind, r.ProviderID)] {
			if err := a.ensureFirewall(ctx, infra, r.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *Reconciler) ensureFirewall(ctx context.Context, infra Infra, name string) error {
	var err error
	if name == PublicFirewallName(a.Environment) {
		_, err = ensurePublicFirewall(a.Store, a.Environment, a.Firewall.Ports)(ctx, infra, name)
		return fromInfra(err)
	}
	f := a.Firewall
	if f.CIDRs, err = allEgress(ctx, a.Egress, f.CIDRs); err != nil {
		return err
	}
	_, err = infra.EnsureFirewall(ctx, f)
	return fromInfra(err)
}

const (
	keepChanges   = 10 * time.Minute // a slower reader reloads everything
	usagePage     = 1000             // orgs
	usagePatience = 5 * time.Second
)

// checkUsage compares the counters of some orgs with their rows, others each time. A failure here
// blocks nothing.
func (a *Reconciler) checkUsage(ctx context.Context) {
	c, err := a.Store.CheckUsage(ctx, usagePage, usagePatience)
	for _, d := range c.Repaired {
		a.Log.Error("an org's quota counters were wrong and were recomputed", zap.String("org_id", string(d.OrgID)), zap.ByteString("drift", d.Drift))
	}
	if err != nil {
		a.Log.Warn("usage of orgs not compared", zap.String("error", prego.Redact(err.Error())))
		return
	}
	a.Metrics.Usage.Set(float64(c.Drifted))
}

// SweepSilent marks agents that fell silent (direct-provisioning §3).
func (a *Reconciler) SweepSilent(ctx context.Context) (server.SweepResult, error) {
	r, err := a.Store.SweepSilent(ctx, a.Sweep)
	if err != nil {
		return r, err
	}
	a.Metrics.Frozen.Set(map[bool]float64{true: 1}[r.Frozen])
	if r.Frozen {
		a.Log.Error("too many agents are silent at the same time, so none is marked: check the gateway",
			zap.Int("silent", r.Silent), zap.Int("fleet", r.Fleet))
	}
	a.Metrics.Silent.WithLabelValues(string(server.AgentDegraded)).Add(float64(r.Degraded))
	a.Metrics.Silent.WithLabelValues(string(server.AgentDisconnected)).Add(float64(r.Failed))
	return r, nil
}
