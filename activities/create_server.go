package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// createCalls is how often the provider is asked per attempt (direct-provisioning §3).
const createCalls = 3

// CreateServerInput names an attempt to create a server from one of its candidates.
type CreateServerInput struct {
	ServerID   prego.ServerID     `json:"server_id"`
	Generation int                `json:"generation"`
	Attempt    int                `json:"attempt"`
	Candidates []server.Candidate `json:"candidates"` // in order of preference
	Machines   []Machine          `json:"machines"`   // one per candidate
}

// MadeServer is the created server and the index of the candidate that it is.
type MadeServer struct {
	server.Handle
	Candidate int `json:"candidate"`
}

// candidateAttempt is an attempt at one of its candidates.
type candidateAttempt struct {
	ServerID   prego.ServerID
	Generation int
	Attempt    int
	Candidate  server.Candidate
	Machine    Machine
}

// groupTries is how many full placement groups one attempt meets before its candidate is given up.
const groupTries = 3

// MakeServer creates the server from the first of its candidates that the provider has: it finds the firewall and a
// placement group, issues the attempt's token, renders the user_data and creates the server, in one activity, so that
// the raw token never leaves this call (direct-provisioning §4). All candidates share the attempt's token, since a
// refused creation has used none. It finds and adopts what an earlier run of itself created, and continues with the
// candidate that one was at. ErrTypeCandidate if the provider has none of them now.
func (a *Servers) MakeServer(ctx context.Context, in CreateServerInput) (MadeServer, error) {
	st, err := a.current(ctx, ServerRef{ServerID: in.ServerID, Generation: in.Generation})
	if err != nil {
		return MadeServer{}, err
	}
	infra, err := a.infra(st.Provider)
	if err != nil {
		return MadeServer{}, err
	}
	f, err := a.prepareFoundation(ctx, infra, st, nil)
	if err != nil {
		return MadeServer{}, err
	}
	var refusal *server.InfraError
	var full []string // placement groups that the provider refused
	noDedicated := false
	for i := in.begunWith(st); i < len(in.Candidates); {
		if noDedicated && in.Machines[i].Dedicated {
			i++
			continue
		}
		one := candidateAttempt{in.ServerID, in.Generation, in.Attempt, in.Candidates[i], in.Machines[i]}
		activity.RecordHeartbeat(ctx, fmt.Sprintf("creating %s", one.Candidate))
		handle, err := a.create(ctx, infra, st, one, f)
		if err == nil {
			return MadeServer{handle, i}, nil
		}
		if !errors.As(err, &refusal) {
			return MadeServer{}, err
		}
		st.Image = "" // another candidate may need another one
		switch {
		case refusal.Class == server.InfraQuota: // an account limit: no candidate would do better
			i = len(in.Candidates)
		case refusal.Class != server.InfraNext:
			return MadeServer{}, fromInfra(err)
		case refusal.Code == server.InfraGroupFull && len(full) < groupTries-1: // the same candidate in another group
			full = append(full, f.GroupName)
			if f, err = a.prepareFoundation(ctx, infra, st, full); err != nil {
				return MadeServer{}, err
			}
		default:
			noDedicated = noDedicated || refusal.Code == server.InfraDedicatedLimit
			i++
		}
	}
	if refusal == nil {
		return MadeServer{}, permanentError(ErrTypeCandidate, "no candidate is left", nil)
	}
	return MadeServer{}, permanentError(ErrTypeCandidate, refusal.Error(), nil)
}

// begunWith is the index of the candidate that an earlier run of the attempt was at.
func (in CreateServerInput) begunWith(st server.ProvisionState) int {
	if st.Attempt != in.Attempt {
		return 0
	}
	return max(0, slices.Index(in.Candidates, server.Candidate{ServerType: st.ServerType, Location: st.Location}))
}

func (a *Servers) create(ctx context.Context, infra Infra, st server.ProvisionState, in candidateAttempt, f foundation) (server.Handle, error) {
	a.hook("create/start")
	var refused []prego.NetworkID
	for fallback, networks := 0, 1; ; fallback++ {
		network, err := a.network(ctx, infra, st.ServerID, in.Machine.Zone, refused)
		if err != nil {
			return server.Handle{}, err
		}
		image, err := a.imageFor(ctx, st, in)
		if err != nil {
			return server.Handle{}, err
		}
		handle, err := a.createFrom(ctx, infra, st, in, f, image, network)
		if err == nil {
			return handle, nil
		}
		others, elsewhere, noteErr := a.withoutNetwork(ctx, st.Provider, network, refused, err)
		if noteErr != nil {
			return server.Handle{}, noteErr
		}
		if refused = others; elsewhere && networks < networkTries {
			networks++
			fallback--
			continue
		}
		again, noteErr := a.withoutImage(ctx, st, in, image, err)
		if noteErr != nil {
			return server.Handle{}, noteErr
		}
		if !again || fallback == imageFallbacks {
			return server.Handle{}, a.refused(ctx, infra, in, err)
		}
		st.Image = "" // as the row has it now
	}
}

// createFrom creates the server of an attempt from an image. The provider's errors are
// returned unchanged.
func (a *Servers) createFrom(ctx context.Context, infra Infra, st server.ProvisionState, in candidateAttempt, f foundation, image string, network server.Network) (_ server.Handle, err error) {
	id := a.Tokens.NewTokenID()
	issued, err := a.Store.BeginCreate(ctx, server.AttemptStart{
		ServerID: in.ServerID, Generation: in.Generation, Attempt: in.Attempt,
		Candidate: in.Candidate, Image: image, Resources: a.intents(st, in),
	}, server.TokenIssue{
		TokenID: id, ServerID: in.ServerID, Attempt: in.Attempt, Purpose: server.PurposeAgentBootstrap,
		Hash: a.Tokens.Hash(a.Tokens.Derive(id)), TTL: a.Settings.BootstrapTokenTTL,
	})
	if err != nil {
		return server.Handle{}, fromStore(err)
	}
	a.hook("create/intended")
	params := server.CreateParams{
		Environment: a.Settings.Environment, ServerID: in.ServerID, Role: st.Role, Region: st.Region,
		Attempt: in.Attempt, SpecHash: specHash(st, in.Candidate, image), Candidate: in.Candidate, Image: image,
		FirewallID: f.FirewallID, PublicFirewall: f.PublicFirewallID, PlacementGroup: f.PlacementGroupID, NetworkID: network.ProviderNetworkID,
	}
	if params.UserData, err = a.userData(ctx, st, issued); err != nil {
		return server.Handle{}, err
	}
	a.hook("create/token")
	handle, err := a.callProvider(ctx, infra, st, params)
	if err != nil {
		return server.Handle{}, err
	}
	a.hook("create/called")
	if err := a.Store.RecordCreated(ctx, in.ServerID, in.Generation, handle, st.Provider); err != nil {
		return server.Handle{}, fromStore(err)
	}
	a.hook("create/recorded")
	// The ledger already records who owns the addresses; the labels are for people and
	// for the orphan search, so failing to set them is not an error.
	if err := infra.LabelPrimaryIPs(ctx, handle, params.Labels()); err != nil {
		a.Log.Warn("label primary addresses", zap.String("server_id", string(in.ServerID)), zap.Error(err))
	}
	return handle, nil
}

// callProvider makes up to createCalls calls. Repeating a call is safe: names are
// unique at the provider, and CreateServer adopts a server that has the name.
func (a *Servers) callProvider(ctx context.Context, infra Infra, st server.ProvisionState, p server.CreateParams) (server.Handle, error) {
	backoff := a.Settings.CreateBackoff
	for call := 1; ; call++ {
		handle, err := a.createOnce(ctx, infra, st, p)
		var ie *server.InfraError
		if err == nil || !errors.As(err, &ie) {
			return handle, err
		}
		repeatable := ie.Class == server.InfraRetry || ie.Class == server.InfraAmbiguous || ie.Class == server.InfraThrottled
		if !repeatable || call == createCalls {
			return handle, err
		}
		activity.RecordHeartbeat(ctx, fmt.Sprintf("create call %d of %d failed: %s", call, createCalls, ie.Code))
		if e := a.Store.AddEvent(ctx, server.Event{
			ServerID: p.ServerID, Step: server.StepCreateRefused, Attempt: p.Attempt, Reason: prego.Reason(ie.Code),
			Message: fmt.Sprintf("call %d of %d: %s; repeated in %s", call, createCalls, ie.Message, backoff),
		}, fmt.Sprintf("%s/%d/call%d/%s", server.StepCreateRefused, p.Attempt, call, p.Candidate)); e != nil {
			return handle, e
		}
		if err := prego.Sleep(ctx, max(backoff, ie.RetryAfter)); err != nil {
			return handle, err
		}
		backoff *= 2
	}
}

func (a *Servers) createOnce(ctx context.Context, infra Infra, st server.ProvisionState, p server.CreateParams) (server.Handle, error) {
	if st.Spec.VolumeGB > 0 {
		id, err := infra.EnsureVolume(ctx, server.VolumeParams{
			Environment: p.Environment, ServerID: p.ServerID, Location: p.Candidate.Location,
			Name: a.volumeName(p.ServerID, p.Candidate.Location), GB: st.Spec.VolumeGB,
		})
		if err != nil {
			return server.Handle{}, err
		}
		if err := a.Store.ConfirmCreated(ctx, st.Provider, p.ServerID, p.Attempt, server.ResourceVolume, a.volumeName(p.ServerID, p.Candidate.Location), id); err != nil {
			return server.Handle{}, err
		}
		p.VolumeIDs = prego.IDs[prego.VolumeID]([]string{id})
	}
	handle, err := infra.CreateServer(ctx, p)
	if !isProtected(err) {
		return handle, err
	}
	// The machine of an earlier attempt has the name, and was in use.
	found, err := infra.FindServers(ctx, p.ServerID)
	if err != nil {
		return handle, err
	}
	for _, id := range serversToDestroy(found, nil, p.Attempt-1) {
		if err := (protected{a.Store, infra, st.Provider, server.ResourceServer, id}).destroy(ctx); err != nil {
			return handle, err
		}
	}
	return infra.CreateServer(ctx, p)
}

// refused records the provider's refusal. A definite refusal closes the intents. If the
// outcome is unknown they stay open, and are looked up again before anything is taken
// for gone.
func (a *Servers) refused(ctx context.Context, infra Infra, in candidateAttempt, err error) error {
	var ie *server.InfraError
	if !errors.As(err, &ie) {
		return err
	}
	switch ie.Class {
	case server.InfraNext, server.InfraQuota, server.InfraPermanent, server.InfraForeign:
		if err := a.dropVolume(ctx, infra, in); err != nil {
			return err
		}
		if err := a.Store.IntentRefused(ctx, in.ServerID, in.Generation, in.Attempt, in.Candidate, ie); err != nil {
			return err
		}
		if ie.Unsold {
			a.catalogIsOld(ctx, infra.ID())
		}
	case server.InfraRetry, server.InfraAmbiguous, server.InfraThrottled:
		return permanentError(ErrTypeProvider, fmt.Sprintf("after %d calls: %s", createCalls, ie.Error()), nil)
	case server.InfraNotFound, server.InfraAttempt:
	}
	return err
}

// catalogIsOld has the catalog read again that had what the provider does not sell, unless that was just tried: the
// next plan then leaves the candidate out. If it fails, the periodic reading does it.
func (a *Servers) catalogIsOld(ctx context.Context, provider prego.InfraProviderID) {
	offer, err := a.Store.ProviderCatalog(ctx, provider)
	if err == nil && time.Since(offer.AttemptedAt) > catalogPause {
		_, err = a.Runs.StartCatalogRefresh(ctx)
	}
	if err != nil {
		a.Log.Warn("the provider's catalog is not read again", zap.String("provider", string(provider)), zap.Error(err))
	}
}

// catalogPause is between two readings of the catalog because of refusals.
const catalogPause = time.Minute

// dropVolume deletes the volume created for a candidate that was out of stock: the next
// candidate may be in another location.
func (a *Servers) dropVolume(ctx context.Context, infra Infra, in candidateAttempt) error {
	name := a.volumeName(in.ServerID, in.Candidate.Location)
	r, ok, err := a.Store.FindResource(ctx, infra.ID(), server.ResourceVolume, name)
	if err != nil || !ok || r.ProviderID == "" {
		return err
	}
	if err := infra.DeleteResource(ctx, server.ResourceVolume, prego.ServerID(r.ProviderID)); err != nil {
		return fromInfra(err)
	}
	return a.Store.Released(ctx, r.ResourceID)
}

func (a *Servers) intents(st server.ProvisionState, in candidateAttempt) []server.ResourceIntent {
	name := server.Name(a.Settings.Environment, in.ServerID)
	out := []server.ResourceIntent{
		{Kind: server.ResourceServer, Name: name},
		{Kind: server.ResourcePrimaryIP, Name: server.PrimaryIPName(name, 0)},
		{Kind: server.ResourcePrimaryIP, Name: server.PrimaryIPName(name, 1)},
	}
	if st.Spec.VolumeGB > 0 {
		out = append(out, server.ResourceIntent{Kind: server.ResourceVolume, Name: a.volumeName(in.ServerID, in.Candidate.Location)})
	}
	return out
}

func (a *Servers) volumeName(serverID prego.ServerID, location string) string {
	return server.Name(a.Settings.Environment, serverID) + "-" + location
}

// userData renders the user_data with the attempt's token. The token is derived from its
// id, so a repeated call renders the same text.
func (a *Servers) userData(ctx context.Context, st server.ProvisionState, issued server.TokenIssued) (string, error) {
	boot, err := a.Boot(BootParams{
		ServerID: st.ServerID, Role: st.Role, Region: st.Region, Tags: st.Tags,
		Token: a.Tokens.Derive(issued.TokenID), Issued: issued.IssuedAt, Volume: st.Spec.VolumeGB > 0,
	})
	if err != nil {
		return "", permanentError(ErrTypePermanent, "render cloud-init: "+err.Error(), nil)
	}
	if boot.StageTwo != nil {
		sum, err := a.Store.PutBootArtifact(ctx, boot.StageTwo)
		if err != nil {
			return "", err
		}
		if sum != boot.StageTwoSHA256 {
			return "", permanentError(ErrTypePermanent, "second boot stage: stored digest differs from the pinned one", nil)
		}
	}
	return boot.UserData, nil
}

// specHash identifies what an attempt creates, so that a repeated step recognises its
// own server. It has 32 hex digits so that it fits a label.
func specHash(st server.ProvisionState, c server.Candidate, image string) string {
	b, err := json.Marshal([]any{hex.EncodeToString(st.RequestHash), c, image})
	if err != nil {
		panic("activities: a spec always marshals: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
