package activities

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/prego/prego/server"
)

// imageFallbacks bounds how many golden images one create gives up on.
const imageFallbacks = 3

// imageFor returns the image of an attempt's server: the one its spec names, else the
// golden image built from the configured one, else the configured one itself. A
// repeated step keeps the image that its attempt began with, as st has it.
func (a *Servers) imageFor(ctx context.Context, st server.ProvisionState, in candidateAttempt) (string, error) {
	stock := a.Catalog.ImageFor(st.Spec)
	if st.Spec.Image != "" {
		return stock, nil
	}
	if st.Attempt == in.Attempt && st.Image != "" {
		return st.Image, nil
	}
	golden, ok, err := a.Store.CurrentGoldenImage(ctx, st.Provider, stock, in.Machine.Architecture)
	if err != nil || !ok || (in.Machine.DiskGB > 0 && golden.DiskGB > float64(in.Machine.DiskGB)) {
		return stock, err
	}
	return golden.ProviderImageID, nil
}

// Machine is what an image must fit, and where it is.
type Machine struct {
	Architecture string `json:"architecture"`      // x86 or arm
	DiskGB       int    `json:"disk_gb,omitempty"` // 0: not known
	Zone         string `json:"zone,omitempty"`    // network zone of the location
	// Dedicated is set if its cores are, of which the account has a separate limit.
	Dedicated bool `json:"dedicated,omitempty"`
}

// machineOf is a candidate's entry in the catalog.
func machineOf(offer server.CatalogState, c server.Candidate) Machine {
	if typ, ok := offer.Type(c.ServerType); ok {
		return Machine{
			Architecture: typ.Architecture, DiskGB: typ.DiskGB, Zone: offer.ZoneOf(c.Location),
			Dedicated: typ.CPU == "dedicated",
		}
	}
	// The provider calls its types with dedicated cores ccx….
	return Machine{Architecture: "x86", Zone: offer.ZoneOf(c.Location), Dedicated: strings.HasPrefix(c.ServerType, "ccx")}
}

// withoutImage marks a golden image as missing after the provider reported it missing. It reports
// whether there is another image to use.
func (a *Servers) withoutImage(ctx context.Context, st server.ProvisionState, in candidateAttempt, image string, cause error) (bool, error) {
	var ie *server.InfraError
	if st.Spec.Image != "" || image == a.Catalog.ImageFor(st.Spec) || !errors.As(cause, &ie) || ie.Code != server.InfraImageGone {
		return false, nil
	}
	a.Log.Error("the provider does not have a golden image; another one is used", zap.String("provider_image_id", image), zap.String("server_id", string(in.ServerID)))
	if a.Metrics.ImageFallbacks != nil {
		a.Metrics.ImageFallbacks.Inc()
	}
	if err := a.Store.ImageLost(ctx, st.Provider, image, ie.Message); err != nil {
		return false, err
	}
	if err := a.Store.ForgetAttemptImage(ctx, in.ServerID, in.Attempt); err != nil {
		return false, err
	}
	return true, a.Store.AddEvent(ctx, server.Event{
		ServerID: in.ServerID, Step: server.StepImageGone, Attempt: in.Attempt, Message: fmt.Sprintf("the provider does not have image %s (%s); made from another one", image, ie.Message),
	}, fmt.Sprintf("%s/%d/%s", server.StepImageGone, in.Attempt, image))
}
