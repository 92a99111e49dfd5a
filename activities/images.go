package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/activity"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// ImageInfra is a cloud that takes snapshots.
type ImageInfra interface {
	EnsureSnapshot(ctx context.Context, p server.SnapshotParams) (server.SnapshotHandle, error)
	DeleteSnapshots(ctx context.Context, imageID prego.ImageID) error
}

// Images are the steps in the life of a golden image.
type Images struct {
	Store   *store.Store
	Servers *Servers // whose provider, firewall and catalog they share
	Runs    Runs
	// Recipe returns what an image of a stock image is built from now.
	Recipe       func(baseImage string) (server.ImageRecipe, error)
	Keep         int           // verified images to keep, including the current one
	BuildTimeout time.Duration // how long a builder may take
	Poll         time.Duration // how often a builder is checked
	Metrics      *ImageMetrics
	Log          *zap.Logger
}

// ImageMetrics count the outcomes of images.
type ImageMetrics struct {
	Outcomes *prometheus.CounterVec // by outcome
	Fallback prometheus.Counter     // how often the steps of servers used each
}

// NewImageMetrics registers them.
func NewImageMetrics(reg prometheus.Registerer) *ImageMetrics {
	m := &ImageMetrics{
		Outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_image_builds_total", Help: "Builds of golden images ended, by outcome."}, []string{"outcome"}),
		Fallback: prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_image_fallbacks_total", Help: "Golden images that the provider no longer had when a server was made."}),
	}
	reg.MustRegister(m.Outcomes, m.Fallback)
	// A series that starts at 1 has not increased, so the first failure would raise no
	// alert.
	for _, reason := range server.BuildOutcomes() {
		m.Outcomes.WithLabelValues(string(reason))
	}
	return m
}

// ImageRef names an image.
type ImageRef struct {
	ImageID prego.ImageID `json:"image_id"`
}

// ImagePlan is what a build needs to know before its first step.
type ImagePlan struct {
	Status       server.ImageStatus `json:"status"`
	Region       prego.Region       `json:"region"`
	BaseImage    string             `json:"base_image"`
	Candidates   []server.Candidate `json:"candidates"`
	BaseAttempt  int                `json:"base_attempt"`
	Snapshot     bool               `json:"snapshot,omitempty"` // the snapshot exists
	Verifier     string             `json:"verifier"`           // the server booted from it
	BuildTimeout time.Duration      `json:"build_timeout"`
	Poll         time.Duration      `json:"poll"`
}

func (a *Images) infra(id prego.InfraProviderID) (Infra, ImageInfra, error) {
	infra, err := a.Servers.infra(id)
	if err != nil {
		return nil, nil, err
	}
	images, ok := infra.(ImageInfra)
	if !ok {
		return nil, nil, permanentError(ErrTypePermanent, "provider "+string(id)+" takes no snapshots", nil)
	}
	return infra, images, nil
}

// image reads an image's row and returns the cloud that it is built in.
func (a *Images) image(ctx context.Context, id prego.ImageID) (server.GoldenImage, Infra, ImageInfra, error) {
	g, err := a.Store.GetGoldenImage(ctx, id)
	if err != nil {
		return g, nil, nil, fromStore(err)
	}
	infra, images, err := a.infra(g.Provider)
	return g, infra, images, err
}

// PlanImage reads the image's row.
func (a *Images) PlanImage(ctx context.Context, in ImageRef) (ImagePlan, error) {
	g, err := a.Store.GetGoldenImage(ctx, in.ImageID)
	if err != nil {
		return ImagePlan{}, fromStore(err)
	}
	p := ImagePlan{
		Status: g.Status, Region: g.Region, BaseImage: g.BaseImage, BaseAttempt: g.Attempt, Snapshot: g.ProviderImageID != "", Verifier: server.VerifyServerID(g.ImageID),
		BuildTimeout: a.BuildTimeout, Poll: a.Poll,
	}
	offer, err := a.Servers.Store.ProviderCatalog(ctx, g.Provider)
	if err != nil {
		return p, err
	}
	p.Candidates = a.Servers.Catalog.BuilderCandidates(g.Region)
	if offer.Known() {
		p.Candidates, _ = offer.Usable(p.Candidates, g.BaseImage, time.Now())
	}
	return p, nil
}

// BuilderInput names an attempt to create an image's builder.
type BuilderInput struct {
	ImageID   prego.ImageID    `json:"image_id"`
	Attempt   int              `json:"attempt"`
	Candidate server.Candidate `json:"candidate"`
}

// MakeBuilder creates the machine that the image is taken from, or finds the machine of an earlier
// call. It has no row in servers, no token and no agent.
func (a *Images) MakeBuilder(ctx context.Context, in BuilderInput) (server.Handle, error) {
	g, infra, _, err := a.image(ctx, in.ImageID)
	if err != nil {
		return server.Handle{}, err
	}
	recipe, err := a.Recipe(g.BaseImage)
	if err != nil {
		return server.Handle{}, permanentError(ErrTypePermanent, "the recipe: "+err.Error(), nil)
	}
	if g.RecipeHash == "" {
		if err := a.Store.SetRecipe(ctx, in.ImageID, recipe); err != nil {
			return server.Handle{}, err
		}
	} else if recipe.Hash != g.RecipeHash {
		return server.Handle{}, permanentError(ErrTypePermanent, "the recipe has changed since the build began: ask again", nil)
	}
	firewall, err := a.Servers.shared(ctx, infra, server.ResourceFirewall, FirewallName(a.Servers.Settings.Environment), a.Servers.ensureFirewall)
	if err != nil {
		return server.Handle{}, fromInfra(err)
	}
	names := a.builderNames(in.ImageID)
	if err := a.Store.BeginBuilder(ctx, in.ImageID, in.Attempt, in.Candidate, []server.ResourceIntent{
		{Kind: server.ResourceServer, Name: names[0]}, {Kind: server.ResourcePrimaryIP, Name: names[1]}, {Kind: server.ResourcePrimaryIP, Name: names[2]},
	}); err != nil {
		return server.Handle{}, fromStore(err)
	}
	a.Servers.hook("image/builder-intended")
	params := server.CreateParams{
		Environment: a.Servers.Settings.Environment, ServerID: prego.ServerID(server.BuilderServerID(in.ImageID)), ImageID: in.ImageID, Role: prego.RoleNode, Region: g.Region, Attempt: in.Attempt,
		SpecHash: recipe.Hash[:32], Candidate: in.Candidate, Image: g.BaseImage, FirewallID: firewall, UserData: recipe.UserData,
	}
	h, err := infra.CreateServer(ctx, params)
	if err != nil {
		return server.Handle{}, fromInfra(err)
	}
	a.Servers.hook("image/builder-created")
	if err := a.Servers.Store.ConfirmCreated(ctx, g.Provider, "", in.Attempt, server.ResourceServer, names[0], h.ProviderServerID); err != nil {
		return server.Handle{}, err
	}
	for i, id := range h.PrimaryIPIDs {
		if err := a.Servers.Store.ConfirmCreated(ctx, g.Provider, "", in.Attempt, server.ResourcePrimaryIP, server.PrimaryIPName(names[0], i), id); err != nil {
			return server.Handle{}, err
		}
	}
	return h, a.Store.NoteImage(ctx, in.ImageID, fmt.Sprintf("the builder %s, %s, installs and pulls", h.ProviderServerID, in.Candidate))
}

// builderNames are the builder's name at the provider and the ledger's names of its two
// addresses.
func (a *Images) builderNames(imageID prego.ImageID) []string {
	name := server.Name(a.Servers.Settings.Environment, prego.ServerID(server.BuilderServerID(imageID)))
	return []string{name, server.PrimaryIPName(name, 0), server.PrimaryIPName(name, 1)}
}

func (a *Images) snapshotName(imageID prego.ImageID) string {
	return server.Name(a.Servers.Settings.Environment, prego.ServerID(imageID))
}

// BuilderState is the state of a builder.
type BuilderState struct {
	Status string `json:"status"` // the provider's word
	Off    bool   `json:"off"`    // it has finished: it powers itself off then, and only then
}

// statusOff is the provider's status of a powered-off server.
const statusOff = "off"

// AwaitBuilt waits until the builder has powered itself off. The workflow sets the time
// limit.
func (a *Images) AwaitBuilt(ctx context.Context, in BuiltInput) (BuilderState, error) {
	_, infra, _, err := a.image(ctx, in.ImageID)
	if err != nil {
		return BuilderState{}, err
	}
	for {
		h, err := infra.GetServer(ctx, prego.ServerID(in.ProviderServerID))
		if err != nil {
			return BuilderState{}, fromInfra(err)
		}
		activity.RecordHeartbeat(ctx, h.Status)
		if h.Status == statusOff {
			a.Servers.hook("image/built")
			return BuilderState{Status: h.Status, Off: true}, a.Store.NoteImage(ctx, in.ImageID, "the builder has finished; its disk is copied")
		}
		if err := prego.Sleep(ctx, a.Poll); err != nil {
			return BuilderState{}, err
		}
	}
}

// BuiltInput names a builder.
type BuiltInput struct {
	ImageID          prego.ImageID `json:"image_id"`
	ProviderServerID string        `json:"provider_server_id"`
}

// snapshotBroken are the outcomes of a failed copy. Copying again takes a new build:
// the broken snapshot has to be deleted first.
var snapshotBroken = map[string]bool{"action_failed": true, "image_unavailable": true, server.InfraImageGone: true}

// CopyBuilder copies the builder's disk into an image, or finds the copy that an
// earlier call made.
func (a *Images) CopyBuilder(ctx context.Context, in BuiltInput) error {
	g, _, infra, err := a.image(ctx, in.ImageID)
	if err != nil {
		return err
	}
	name := a.snapshotName(in.ImageID)
	if err := a.Servers.Store.Intend(ctx, g.Provider, "", 0, server.ResourceIntent{Kind: server.ResourceImage, Name: name}); err != nil {
		return err
	}
	a.Servers.hook("image/snapshot-intended")
	h, err := infra.EnsureSnapshot(ctx, server.SnapshotParams{
		Environment: a.Servers.Settings.Environment, ImageID: in.ImageID, ProviderServerID: in.ProviderServerID, Description: name, Labels: g.SnapshotLabels(),
	})
	if refused, ok := errors.AsType[*server.InfraError](err); ok && snapshotBroken[refused.Code] {
		return permanentError(ErrTypePermanent, err.Error(), nil)
	}
	if err != nil {
		return fromInfra(err)
	}
	a.Servers.hook("image/snapshot-taken")
	return fromStore(a.Store.SnapshotTaken(ctx, g.Provider, in.ImageID, name, h))
}

// DropBuilder deletes the builder and its addresses. A missing builder is success.
func (a *Images) DropBuilder(ctx context.Context, in ImageRef) error {
	g, infra, _, err := a.image(ctx, in.ImageID)
	if err != nil {
		return err
	}
	found, err := infra.FindServers(ctx, prego.ServerID(server.BuilderServerID(in.ImageID)))
	if err != nil {
		return fromInfra(err)
	}
	for _, h := range found {
		if err := infra.DestroyServer(ctx, prego.ServerID(h.ProviderServerID)); err != nil {
			return destroyError(err)
		}
	}
	a.Servers.hook("image/builder-dropped")
	return a.Store.ReleaseNamed(ctx, g.Provider, a.builderNames(in.ImageID))
}

// PrepareVerification writes the row of the server booted from the image. It is
// provisioned like any other server.
func (a *Images) PrepareVerification(ctx context.Context, in ImageRef) error {
	g, err := a.Store.GetGoldenImage(ctx, in.ImageID)
	if err != nil {
		return fromStore(err)
	}
	a.Servers.hook("image/verify")
	err = a.Store.BeginVerify(ctx, in.ImageID, server.CreateRequest{
		ServerID: prego.ServerID(server.VerifyServerID(in.ImageID)), Role: prego.RoleApp, Region: g.Region, InfraProvider: g.Provider, Spec: server.Spec{Image: g.ProviderImageID},
	})
	if _, ok := errors.AsType[*prego.Error](err); ok {
		return permanentError(ErrTypePermanent, err.Error(), nil)
	}
	return fromStore(err)
}

// VerifierState is the outcome of the server booted from an image.
type VerifierState struct {
	Active  bool   `json:"active"`
	Failed  bool   `json:"failed"`
	Message string `json:"message,omitempty"`
}

// ReadVerifier reads the row of the server booted from the image.
func (a *Images) ReadVerifier(ctx context.Context, in ImageRef) (VerifierState, error) {
	s, err := a.Store.GetServer(ctx, prego.ServerID(server.VerifyServerID(in.ImageID)))
	if err != nil {
		return VerifierState{}, fromStore(err)
	}
	out := VerifierState{Active: s.ActiveAt != nil, Failed: s.ActiveAt == nil && s.Status != server.Provisioning}
	if s.StatusReason != "" {
		out.Message = string(s.StatusReason) + ": " + s.StatusMessage
	}
	return out, nil
}

// GiveUpVerifier marks the verification server for removal; false if it never had a
// row, or is gone.
func (a *Images) GiveUpVerifier(ctx context.Context, in ImageRef) (bool, error) {
	id := server.VerifyServerID(in.ImageID)
	if s, err := a.Store.GetServer(ctx, prego.ServerID(id)); prego.CodeOf(err) == prego.CodeServerNotFound || (err == nil && s.Status == server.Terminated) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	_, err := a.Store.RequestDecommission(ctx, prego.ServerID(id), string("image "+in.ImageID))
	return err == nil, err
}

// PublishImage makes the image current: servers are created from it.
func (a *Images) PublishImage(ctx context.Context, in ImageRef) error {
	if err := a.Store.PublishImage(ctx, in.ImageID); err != nil {
		return fromStore(err)
	}
	a.Servers.hook("image/published")
	a.Metrics.Outcomes.WithLabelValues("ready").Inc()
	return nil
}

// RotateImages retires images beyond the number to keep, and returns them.
func (a *Images) RotateImages(ctx context.Context, in ImageRef) ([]string, error) {
	return a.Store.RotateImages(ctx, in.ImageID, a.Keep)
}

// DiscardSnapshots deletes everything that the provider has of an image, and closes its
// ledger lines.
func (a *Images) DiscardSnapshots(ctx context.Context, in ImageRef) error {
	g, _, infra, err := a.image(ctx, in.ImageID)
	if err != nil {
		return err
	}
	if g.Status == server.ImageReady {
		return permanentError(ErrTypeSuperseded, string("image "+in.ImageID+" is ready and stays"), nil)
	}
	if err := infra.DeleteSnapshots(ctx, in.ImageID); err != nil {
		return destroyError(err)
	}
	a.Servers.hook("image/discarded")
	return a.Store.ReleaseNamed(ctx, g.Provider, []string{a.snapshotName(in.ImageID)})
}

// ImageIsDeleted records that an image was deleted.
func (a *Images) ImageIsDeleted(ctx context.Context, in ImageRef) error {
	return a.Store.ImageIsDeleted(ctx, in.ImageID)
}

// ImageFailure is the reason why a build ended.
type ImageFailure struct {
	ImageID prego.ImageID `json:"image_id"`
	Reason  prego.Reason  `json:"reason"`
	Message string        `json:"message"`
}

// FailImage records that a build failed.
func (a *Images) FailImage(ctx context.Context, in ImageFailure) error {
	if err := a.Store.FailImage(ctx, in.ImageID, in.Reason, in.Message); err != nil {
		return err
	}
	a.Metrics.Outcomes.WithLabelValues(string(in.Reason)).Inc()
	return nil
}

// NoteLeftover reports what a build could not clean up; the reconciler does.
func (a *Images) NoteLeftover(_ context.Context, in ImageFailure) error {
	a.Servers.Metrics.Cleanup.Inc()
	a.Log.Error("a build left something behind for the reconciler", zap.String("image_id", string(in.ImageID)), zap.String("error", prego.Redact(in.Message)))
	return nil
}

// missing marks ready images that the provider no longer lists.
func (a *Images) missing(ctx context.Context, provider prego.InfraProviderID, s Comparison) error {
	there := make(map[string]bool)
	for _, o := range s.Owned {
		there[resourceKey(o.Kind, o.ProviderID)] = true
	}
	for _, g := range s.Images {
		if g.Status != server.ImageReady || there[resourceKey(server.ResourceImage, g.ProviderImageID)] {
			continue
		}
		a.Log.Error("the provider no longer has an image", zap.String("image_id", string(g.ImageID)), zap.String("provider_image_id", g.ProviderImageID))
		if err := a.Store.ImageLost(ctx, provider, g.ProviderImageID, "the provider no longer lists it"); err != nil {
			return err
		}
	}
	return nil
}

// startLost starts the runs of images in progress that have none.
func (a *Images) startLost(ctx context.Context, images []server.GoldenImage) (int, error) {
	n := 0
	var try Attempts
	for g := range Each(&try, images) {
		if g.Idle < idleAfter || g.Status.Rests() {
			continue
		}
		ensure := a.Runs.EnsureImageBuild
		if g.Status == server.ImageDeleting {
			ensure = a.Runs.EnsureImageDelete
		}
		started, err := ensure(ctx, g.ImageID)
		if err != nil {
			err = fmt.Errorf("start the run of image %s: %w", g.ImageID, err)
		}
		if try.OK(err) && started {
			n++
			a.Log.Warn("started the run of an image that had none", zap.String("image_id", string(g.ImageID)), zap.String("status", string(g.Status)))
		}
	}
	return n, try.Err()
}
