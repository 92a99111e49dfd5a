package activities

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
	"github.com/prego/prego/server"
)

// ProvisionPlan is what a provisioning run needs to know before its first step.
type ProvisionPlan struct {
	Role        prego.Role            `json:"role"`
	Region      prego.Region          `json:"region"`
	Provider    prego.InfraProviderID `json:"provider"`
	Image       string                `json:"image"`
	Candidates  []server.Candidate    `json:"candidates"`
	Timeouts    []server.BootTimeouts `json:"timeouts"`           // one per candidate
	Machines    []Machine             `json:"machines,omitempty"` // one per candidate
	BaseAttempt int                   `json:"base_attempt"`
	MaxRetries  int                   `json:"max_retries"`
	// Import: the server exists; nothing is created and nothing is ever destroyed.
	Import bool `json:"import,omitempty"`
	// Resume: an earlier run's server is enrolled; only the steps after its first
	// heartbeat are left.
	Resume           bool          `json:"resume,omitempty"`
	CapacityWait     time.Duration `json:"capacity_wait"`
	CapacityPoll     time.Duration `json:"capacity_poll"`
	ContainerTimeout time.Duration `json:"container_timeout"`
	TokenTTL         time.Duration `json:"token_ttl"`
	// ProviderPauses follow the tries of an attempt whose calls failed at the provider.
	ProviderPauses []time.Duration `json:"provider_pauses,omitempty"`
}

// ServerRef names a generation of a server.
type ServerRef struct {
	ServerID   prego.ServerID `json:"server_id"`
	Generation int            `json:"generation"`
	Attempt    int            `json:"attempt,omitempty"`
}

// providerPauses are 30 s and 2 min at the default backoff: an outage of the provider that lasts minutes costs no server.
func providerPauses(backoff time.Duration) []time.Duration {
	return []time.Duration{15 * backoff, 60 * backoff}
}

// PlanProvisioning reads the row and the catalog.
func (a *Servers) PlanProvisioning(ctx context.Context, in ServerRef) (ProvisionPlan, error) {
	st, err := a.current(ctx, in)
	if err != nil {
		return ProvisionPlan{}, err
	}
	p := ProvisionPlan{
		Role: st.Role, Region: st.Region, Provider: st.Provider, Image: a.Catalog.ImageFor(st.Spec),
		Candidates: a.Catalog.Candidates(st.Role, st.Region, st.Spec), BaseAttempt: st.Attempt, MaxRetries: a.Settings.MaxRetries,
		Import:       st.Purpose == server.PurposeImportExisting,
		CapacityWait: a.Settings.CapacityWait, CapacityPoll: a.Settings.CapacityPoll,
		ContainerTimeout: a.Settings.ContainerTimeout, TokenTTL: a.Settings.BootstrapTokenTTL, ProviderPauses: providerPauses(a.Settings.CreateBackoff),
	}
	if st.Spread {
		p.CapacityWait = min(p.CapacityWait, a.Settings.FleetWait)
	}
	p.Resume = st.ProviderServerID != "" && st.FirstHeartbeatAt != nil && st.RevokedAt == nil && st.AgentStatus == server.AgentConnected
	if !p.Import && !p.Resume {
		if err = a.spread(ctx, st, &p); err != nil {
			return ProvisionPlan{}, err
		}
		offer, err := a.Store.ProviderCatalog(ctx, st.Provider)
		if err != nil {
			return ProvisionPlan{}, err
		}
		if p.Candidates, err = a.inZone(ctx, st, p.Candidates, offer); err != nil {
			return ProvisionPlan{}, err
		}
		if p.Candidates, err = a.usable(ctx, st, p, offer); err != nil {
			return ProvisionPlan{}, err
		}
		for _, c := range p.Candidates {
			p.Machines = append(p.Machines, machineOf(offer, c))
		}
	}
	for _, c := range p.Candidates {
		p.Timeouts = append(p.Timeouts, a.Catalog.TimeoutsFor(c.Location, p.Image))
	}
	if len(p.Candidates) == 0 && !p.Import {
		return ProvisionPlan{}, permanentError(ErrTypePermanent, fmt.Sprintf("the catalog has nothing for role %s in region %s with this spec", st.Role, st.Region), nil)
	}
	return p, nil
}

// spread lets a fleet's server prefer the locations of its region where the fleet has the fewest
// servers, and records a changed order on the timeline.
func (a *Servers) spread(ctx context.Context, st server.ProvisionState, p *ProvisionPlan) error {
	if !st.Member || len(p.Candidates) < 2 {
		return nil
	}
	members, ahead, err := a.Store.FleetLocations(ctx, st.ServerID)
	if err != nil {
		return err
	}
	spread := region.SpreadLocations(p.Candidates, members, ahead)
	before := p.Candidates
	if p.Candidates = spread; slices.Equal(spread, before) {
		return nil
	}
	var counts []string
	for _, l := range slices.Sorted(maps.Keys(members)) {
		counts = append(counts, fmt.Sprintf("%d in %s", members[l], l))
	}
	text := fmt.Sprintf("%s first: its fleet has %s, and %d without a location choose before it", spread[0].Location, cmp.Or(strings.Join(counts, ", "), "none placed"), ahead)
	return a.Store.AddEvent(ctx, server.Event{ServerID: st.ServerID, Step: server.StepLocationSpread, Message: text}, fmt.Sprintf("%s/g%d", server.StepLocationSpread, st.Generation))
}

// usable returns the plan's candidates that the provider sells, those in stock first.
// Omitted candidates are put on the timeline. Until the catalog has been read once, all
// configured candidates are tried.
func (a *Servers) usable(ctx context.Context, st server.ProvisionState, p ProvisionPlan, offer server.CatalogState) ([]server.Candidate, error) {
	if !offer.Known() || len(p.Candidates) == 0 {
		return p.Candidates, nil
	}
	usable, skipped := offer.Usable(p.Candidates, p.Image, st.Now)
	if len(skipped) == 0 {
		return usable, nil
	}
	texts := make([]string, 0, len(skipped))
	for _, s := range skipped {
		texts = append(texts, s.String())
	}
	text := strings.Join(texts, "; ")
	if len(usable) == 0 {
		return nil, permanentError(ErrTypePermanent, "the provider sells none of the configured types: "+text, nil)
	}
	return usable, a.Store.AddEvent(ctx, server.Event{ServerID: st.ServerID, Step: server.StepCandidatesSkipped, Message: text},
		fmt.Sprintf("%s/g%d", server.StepCandidatesSkipped, st.Generation))
}

// current reads the row, and fails if it no longer belongs to this generation.
func (a *Servers) current(ctx context.Context, in ServerRef) (server.ProvisionState, error) {
	st, err := a.Store.ProvisionState(ctx, in.ServerID)
	if err != nil {
		return st, fromStore(err)
	}
	return st, ofGeneration(st, in)
}

func ofGeneration(st server.ProvisionState, in ServerRef) error {
	if st.Status != server.Provisioning || st.Generation != in.Generation {
		return permanentError(ErrTypeSuperseded, fmt.Sprintf("server %s is %s in generation %d", in.ServerID, st.Status, st.Generation), nil)
	}
	return nil
}

// Progress is how far an attempt's agent has got.
type Progress struct {
	Handshake        bool `json:"handshake"`
	FirstHeartbeat   bool `json:"first_heartbeat"`
	BootstrapRefused bool `json:"bootstrap_refused"` // a second key presented the token
	// HandshakeAge is how long ago the handshake was.
	HandshakeAge time.Duration `json:"handshake_age,omitempty"`
	// BootFailed is the reason of a failed boot, "" if it did not fail; BootFailure is
	// the host's message.
	BootFailed  prego.Reason `json:"boot_failed,omitempty"`
	BootFailure string       `json:"boot_failure,omitempty"`
	// BootSign is the last sign of life of the boot, "" for none; BootSignAge is its
	// age, and BootSignReason its reason, if it has one.
	BootSign       string        `json:"boot_sign,omitempty"`
	BootSignAge    time.Duration `json:"boot_sign_age,omitempty"`
	BootSignReason prego.Reason  `json:"boot_sign_reason,omitempty"`
}

// ReadProgress reads what the gateway recorded for an attempt.
func (a *Servers) ReadProgress(ctx context.Context, in ServerRef) (Progress, error) {
	st, err := a.current(ctx, in)
	if err != nil {
		return Progress{}, err
	}
	if st.Attempt != in.Attempt {
		return Progress{}, permanentError(ErrTypeSuperseded, fmt.Sprintf("server %s is at attempt %d", in.ServerID, st.Attempt), nil)
	}
	p := Progress{
		Handshake: st.HandshakeAt != nil, FirstHeartbeat: st.FirstHeartbeatAt != nil, BootstrapRefused: st.BootstrapRefused,
		BootFailed: st.BootFailed, BootFailure: st.BootFailure, BootSign: st.BootSign, BootSignReason: st.BootSignReason,
	}
	if st.HandshakeAt != nil {
		p.HandshakeAge = max(0, st.Now.Sub(*st.HandshakeAt))
	}
	if st.BootSignAt != nil {
		p.BootSignAge = max(0, st.Now.Sub(*st.BootSignAt))
	}
	return p, nil
}

// AwaitRunningInput names the server to wait for.
type AwaitRunningInput struct {
	Server ServerRef     `json:"server"`
	Handle server.Handle `json:"handle"`
}

// AwaitRunning waits until the provider reports the server as running. The workflow
// sets the time limit.
func (a *Servers) AwaitRunning(ctx context.Context, in AwaitRunningInput) error {
	st, err := a.current(ctx, in.Server)
	if err != nil {
		return err
	}
	infra, err := a.infra(st.Provider)
	if err != nil {
		return err
	}
	a.hook("running/start")
	if _, err := infra.AwaitRunning(ctx, in.Handle, func(status string) { activity.RecordHeartbeat(ctx, status) }); err != nil {
		return fromInfra(err)
	}
	a.hook("running/seen")
	return fromStore(a.Store.MarkRunning(ctx, in.Server.ServerID, in.Server.Attempt))
}

// AdoptImported checks that an existing server is there, labels it as ours and records
// it.
func (a *Servers) AdoptImported(ctx context.Context, in ServerRef) error {
	st, err := a.current(ctx, in)
	if err != nil {
		return err
	}
	infra, err := a.infra(st.Provider)
	if err != nil {
		return err
	}
	h, err := infra.GetServer(ctx, prego.ServerID(st.ProviderServerID))
	if err != nil {
		return fromInfra(err)
	}
	labels := server.CreateParams{
		Environment: a.Settings.Environment, ServerID: in.ServerID, Role: st.Role, Region: st.Region, Attempt: in.Attempt,
		SpecHash: "imported",
	}.Labels()
	if err := infra.LabelServer(ctx, st.ProviderServerID, labels); err != nil {
		return fromInfra(err)
	}
	return fromStore(a.Store.RecordImported(ctx, in.ServerID, in.Generation, in.Attempt, st.Provider, h))
}

// FinishInput lists the remaining work for a server with a connected agent.
type FinishInput struct {
	Server     ServerRef     `json:"server"`
	Containers bool          `json:"containers"` // start those of its role
	Within     time.Duration `json:"within"`     // how long they may take, repetitions included
}

// FinishServer starts the role's containers over the Docker Remote API, waits until they
// are healthy (direct-provisioning §2, step 8), and makes the server active, with one
// UPDATE (step 9). Only the containers have a time limit: they fail the server, while
// writing that it is active is repeated until the database is back.
//
// A server that this generation made active before is the same success.
func (a *Servers) FinishServer(ctx context.Context, in FinishInput) error {
	st, err := a.Store.ProvisionState(ctx, in.Server.ServerID)
	if err != nil {
		return fromStore(err)
	}
	if st.Status == server.Active && st.Generation == in.Server.Generation {
		a.announce(ctx, in.Server.ServerID)
		return nil
	}
	if err := ofGeneration(st, in.Server); err != nil {
		return err
	}
	if st.PrivateAddress, err = a.attached(ctx, st); err != nil {
		return err
	}
	var done []server.Step
	if in.Containers {
		if err := a.startContainers(ctx, st, in.Within); err != nil {
			return err
		}
		done = append(done, server.StepContainersStarted)
	}
	a.protect(ctx, st)
	return a.activate(ctx, in.Server, st.Role, done...)
}

// protectPatience bounds the wait for the provider, and for its request budget.
const protectPatience = 5 * time.Second

// protect has the provider refuse to delete a server from now on: it may hold data. A provider that does not answer
// delays no server; the reconciliation protects it then.
func (a *Servers) protect(ctx context.Context, st server.ProvisionState) {
	infra, err := a.infra(st.Provider)
	if err == nil {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, protectPatience)
		defer cancel()
		err = protected{a.Store, infra, st.Provider, server.ResourceServer, st.ProviderServerID}.protect(ctx)
	}
	if err != nil {
		a.Log.Warn("not protected from deletion at the provider; the next reconciliation does it",
			zap.String("server_id", string(st.ServerID)), zap.Error(err))
	}
}

// leastTry is how long a repeated step may take whose time is over: it may only have to
// find out that it was done before.
const leastTry = 15 * time.Second

// startContainers gives up permanently when the time since the step was first scheduled is over.
func (a *Servers) startContainers(ctx context.Context, st server.ProvisionState, within time.Duration) error {
	left := max(within-time.Since(activity.GetInfo(ctx).ScheduledTime), leastTry)
	limited, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	a.hook("containers/start")
	err := a.Containers.StartContainers(limited, st.ServerID, st.Host, st.Role)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return permanentError(ErrTypeContainer, fmt.Sprintf("not healthy within %s: %s", within, err), nil)
	}
	if err == nil {
		a.hook("containers/started")
	}
	return fromContainers(err)
}

func (a *Servers) activate(ctx context.Context, in ServerRef, role prego.Role, before ...server.Step) error {
	a.hook("activate/start")
	done, err := a.Store.Activate(ctx, in.ServerID, in.Generation, in.Attempt, before...)
	if err != nil {
		return fromStore(err)
	}
	a.hook("activate/done")
	if done.Seconds > 0 {
		a.Metrics.Outcomes.WithLabelValues(string(role), "active").Inc()
		if in.Generation == 1 {
			a.Metrics.Seconds.WithLabelValues(string(role), done.Location, done.Image).Observe(done.Seconds)
		}
	}
	a.announce(ctx, in.ServerID)
	return nil
}

// announce records that a server is usable.
func (a *Servers) announce(ctx context.Context, serverID prego.ServerID) {
	if a.Capacity != nil {
		a.Capacity(ctx, serverID)
	}
}

// FailInput is the reason why a provisioning failed.
type FailInput struct {
	Server  ServerRef    `json:"server"`
	Role    prego.Role   `json:"role"`
	Reason  prego.Reason `json:"reason"`
	Message string       `json:"message"`
}

// FailServer sets a provisioning to failed.
func (a *Servers) FailServer(ctx context.Context, in FailInput) error {
	if err := a.Store.Fail(ctx, in.Server.ServerID, in.Server.Generation, in.Server.Attempt, in.Reason, in.Message); err != nil {
		return err
	}
	a.Metrics.Outcomes.WithLabelValues(string(in.Role), string(in.Reason)).Inc()
	a.hook("fail/done")
	return nil
}

// NoteInput is a line for the timeline.
type NoteInput struct {
	Server  ServerRef    `json:"server"`
	Reason  prego.Reason `json:"reason"`
	Message string       `json:"message"`
}

// NoteAttemptFailed puts on the timeline why an attempt ended.
func (a *Servers) NoteAttemptFailed(ctx context.Context, in NoteInput) error {
	return a.Store.AddEvent(ctx, server.Event{
		ServerID: in.Server.ServerID, Step: server.StepAttemptFailed, Attempt: in.Server.Attempt, Reason: in.Reason, Message: in.Message,
	}, fmt.Sprintf("%s/%d", server.StepAttemptFailed, in.Server.Attempt))
}

// AwaitProvider records why and until when the server waits for the provider.
func (a *Servers) AwaitProvider(ctx context.Context, in NoteInput) error {
	return fromStore(a.Store.AwaitProvider(ctx, in.Server.ServerID, in.Server.Generation, in.Server.Attempt, in.Message))
}

// AwaitCapacity records that the server waits for stock or quota.
func (a *Servers) AwaitCapacity(ctx context.Context, in NoteInput) error {
	if err := a.Store.AwaitCapacity(ctx, in.Server.ServerID, in.Server.Generation, in.Server.Attempt, in.Message); err != nil {
		return fromStore(err)
	}
	a.Metrics.Awaiting.Inc()
	return nil
}
