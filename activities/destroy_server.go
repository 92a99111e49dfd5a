package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// DestroyInput names the resources to destroy: all of a server's attempts up to one.
type DestroyInput struct {
	ServerID prego.ServerID `json:"server_id"`
	Attempt  int            `json:"attempt"`
	Reason   prego.Reason   `json:"reason"`
	Message  string         `json:"message,omitempty"`
}

// DestroyResult reports what could not be resolved yet.
type DestroyResult struct {
	// Unresolved counts creates of unknown outcome that may still complete at the
	// provider. Look again later.
	Unresolved int `json:"unresolved"`
	// Unrestored counts the tenants that were lost with the server and have no site yet: until they have one, its
	// machine is kept, switched off.
	Unrestored int `json:"unrestored,omitempty"`
}

// DestroyServer revokes a server's tokens and identity, deletes everything that its
// attempts created at the provider, and confirms each deletion in the ledger. The
// machine of a lost server is switched off and kept while it has the newest data of a
// tenant. It is safe to repeat.
func (a *Servers) DestroyServer(ctx context.Context, in DestroyInput) (_ DestroyResult, err error) {
	defer func() {
		noteRefusal(ctx, a.Log, err, func(ctx context.Context, why string) error {
			return a.Store.DeletionRefused(ctx, in.ServerID, why)
		})
	}()
	st, err := a.Store.ProvisionState(ctx, in.ServerID)
	if err != nil {
		return DestroyResult{}, fromStore(err)
	}
	infra, err := a.infra(st.Provider)
	if err != nil {
		return DestroyResult{}, err
	}
	unrestored, err := a.Store.UnrestoredOf(ctx, in.ServerID)
	if err != nil {
		return DestroyResult{}, err
	}
	// Before its identity is revoked. Each deletion asks again.
	if unrestored == 0 && st.ProviderServerID != "" && st.Attempt <= in.Attempt {
		if err := a.Store.MayDelete(ctx, st.Provider, server.ResourceServer, st.ProviderServerID); err != nil {
			return DestroyResult{}, err
		}
	}
	if err := a.Store.BeginRelease(ctx, in.ServerID, in.Attempt); err != nil {
		return DestroyResult{}, err
	}
	a.hook("destroy/start")
	if a.LeaveDNS != nil {
		if err := a.LeaveDNS(ctx, in.ServerID); err != nil {
			return DestroyResult{}, err
		}
	}
	live, err := a.Store.LiveResources(ctx, in.ServerID)
	if err != nil {
		return DestroyResult{}, err
	}
	found, err := infra.FindServers(ctx, in.ServerID)
	if err != nil {
		return DestroyResult{}, fromInfra(err)
	}
	disk := func(r server.ProviderResource) bool { return r.Kind == server.ResourceVolume && r.ProviderID != "" }
	if unrestored > 0 && (len(found) > 0 || slices.ContainsFunc(live, disk)) {
		for _, h := range found {
			if err := infra.PowerOff(ctx, prego.ServerID(h.ProviderServerID)); err != nil {
				return DestroyResult{}, fromInfra(err)
			}
		}
		return DestroyResult{Unrestored: unrestored}, nil
	}
	gone := make(map[string]bool) // provider ids of servers deleted here
	for _, id := range serversToDestroy(found, live, in.Attempt) {
		if err := (protected{a.Store, infra, st.Provider, server.ResourceServer, id}).destroy(ctx); err != nil {
			return DestroyResult{}, destroyError(err)
		}
		gone[id] = true
	}
	a.hook("destroy/deleted")
	var result DestroyResult
	for _, r := range live {
		if r.Attempt > in.Attempt {
			continue
		}
		released, err := a.release(ctx, infra, r, len(gone) > 0)
		if err != nil {
			return DestroyResult{}, destroyError(err)
		}
		if !released {
			result.Unresolved++
		}
	}
	return result, a.Store.FinishRelease(ctx, in.ServerID, in.Attempt, in.Reason, in.Message)
}

// serversToDestroy returns the provider ids that labels or the ledger assign to
// attempts up to the given one.
func serversToDestroy(found []server.Handle, live []server.ProviderResource, attempt int) []string {
	var ids []string
	seen := make(map[string]bool)
	newer := make(map[string]bool)
	for _, h := range found {
		if h.Attempt > attempt {
			newer[h.ProviderServerID] = true
			continue
		}
		if !seen[h.ProviderServerID] {
			seen[h.ProviderServerID] = true
			ids = append(ids, h.ProviderServerID)
		}
	}
	for _, r := range live {
		if r.Kind == server.ResourceServer && r.ProviderID != "" && r.Attempt <= attempt && !seen[r.ProviderID] && !newer[r.ProviderID] {
			seen[r.ProviderID] = true
			ids = append(ids, r.ProviderID)
		}
	}
	return ids
}

// release deletes one thing and confirms it. An intent without a provider id is settled
// if its server was found and deleted just now, or if the call is too long ago to still
// complete.
func (a *Servers) release(ctx context.Context, infra Infra, r server.ProviderResource, serverDeleted bool) (bool, error) {
	switch {
	case r.ProviderID != "" && r.Kind != server.ResourceServer:
		if err := infra.DeleteResource(ctx, r.Kind, prego.ServerID(r.ProviderID)); err != nil {
			return false, err
		}
	case r.ProviderID != "":
	case serverDeleted && r.Kind != server.ResourceVolume:
	case r.Age > a.Settings.AmbiguousGrace:
		if err := a.deleteByName(ctx, infra, r); err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	return true, a.Store.Released(ctx, r.ResourceID)
}

// deleteByName settles an intent of unknown outcome by searching everything that we own
// at the provider.
func (a *Servers) deleteByName(ctx context.Context, infra Infra, r server.ProviderResource) error {
	owned, err := infra.ListOwned(ctx)
	if err != nil {
		return err
	}
	for _, o := range owned {
		if o.Kind == r.Kind && o.Name == r.Name {
			if err := infra.DeleteResource(ctx, o.Kind, prego.ServerID(o.ProviderID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// destroyError makes deletions retryable: a billed server is never abandoned because
// the provider refused once.
func destroyError(err error) error {
	if ie, ok := errors.AsType[*server.InfraError](err); ok && ie.Class == server.InfraPermanent {
		return fmt.Errorf("delete refused, will be repeated: %w", err)
	}
	return fromInfra(err)
}

// DecommissionPlan lists the resources that a decommissioning destroys.
type DecommissionPlan struct {
	Role    prego.Role   `json:"role"`
	Region  prego.Region `json:"region"`
	Attempt int          `json:"attempt"`
	Done    bool         `json:"done,omitempty"` // already terminated
}

// PlanDecommission reads the row, which must be draining.
func (a *Servers) PlanDecommission(ctx context.Context, serverID prego.ServerID) (DecommissionPlan, error) {
	st, err := a.Store.ProvisionState(ctx, serverID)
	if err != nil {
		return DecommissionPlan{}, fromStore(err)
	}
	p := DecommissionPlan{Role: st.Role, Region: st.Region, Attempt: st.Attempt, Done: st.Status == server.Terminated}
	if !p.Done && st.Status != server.Decommissioning {
		return p, permanentError(ErrTypeSuperseded, fmt.Sprintf("server %s is %s, not draining", serverID, st.Status), nil)
	}
	return p, nil
}

// StopProvisioning cancels a running provisioning and waits until it has cleaned up.
func (a *Servers) StopProvisioning(ctx context.Context, serverID prego.ServerID) error {
	return a.Runs.StopProvisioning(ctx, serverID, func() {})
}

// TerminateServer ends a server's life with one UPDATE. The row stays.
func (a *Servers) TerminateServer(ctx context.Context, serverID prego.ServerID) error {
	if err := a.Store.AddEvent(ctx, server.Event{
		ServerID: serverID, Step: server.StepServerDeleted, Reason: prego.ReasonDecommission,
		Message: "everything that the server owned at the provider is gone",
	}, string(server.StepServerDeleted)); err != nil {
		return err
	}
	return a.Store.Terminate(ctx, serverID)
}

// NoteCleanupIncomplete reports a clean-up that gave up; the reconciler finishes it.
func (a *Servers) NoteCleanupIncomplete(ctx context.Context, in NoteInput) error {
	a.Metrics.Cleanup.Inc()
	return a.Store.AddEvent(ctx, server.Event{
		ServerID: in.Server.ServerID, Step: server.StepCleanupIncomplete, Attempt: in.Server.Attempt, Reason: in.Reason, Message: in.Message,
	}, fmt.Sprintf("%s/%d", server.StepCleanupIncomplete, in.Server.Attempt))
}
