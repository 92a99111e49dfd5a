package dockerhost

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// Pull fetches an image of the stack. Failures during the pull are reported only in the answer's stream.
func (h *Host) Pull(ctx context.Context, image string) error {
	return classify(image, h.pull(ctx, "", image))
}

// pull has the engine ask an image's registry for its manifest, with the credentials of an org alone, and fetch what
// the host lacks of it.
func (h *Host) pull(ctx context.Context, org prego.OrgID, image string) error {
	if _, err := server.ParseImage(image); err != nil { // the client refuses it, without a type
		return &server.ContainerError{Container: image, Message: "image " + err.Error()}
	}
	auth, err := h.auth(ctx, org, image)
	if err != nil {
		return err
	}
	by := ""
	if org != "" && auth == "" {
		by = fmt.Sprintf(" (org %s has no credentials for %s)", org, server.RegistryOf(image))
	}
	if org != "" && strings.Contains(image, "@") { // the engine asks no registry for a digest that it has
		_, err = h.c.DistributionInspect(ctx, image, client.DistributionInspectOptions{EncodedRegistryAuth: auth})
	}
	if err == nil {
		err = h.fetch(ctx, image, auth)
	}
	if err != nil {
		return fmt.Errorf("%w %s%s: %w", errPull, image, by, err)
	}
	return nil
}

func (h *Host) fetch(ctx context.Context, image, auth string) error {
	pull, err := h.c.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	defer func() { _ = pull.Close() }()
	return pull.Wait(ctx)
}

// admit checks, before an instance gets a container, that its org may have the image now: another org's pull, or the
// stack's, may have left it on the host. If the registry can't be asked, an image that the instance's group has a
// container of on this host is enough. An image that was loaded by hand is in no registry, and no secret of an org.
func (h *Host) admit(ctx context.Context, org prego.OrgID, spec server.ContainerSpec) error {
	there, err := h.c.ImageInspect(ctx, spec.Image)
	if err == nil && len(there.RepoDigests) == 0 {
		return nil
	}
	if err != nil && !cerrdefs.IsNotFound(err) {
		return classifyError("image", err)
	}
	refused := classify(spec.Name, h.pull(ctx, org, spec.Image))
	var permanent *server.ContainerError
	if refused == nil || errors.As(refused, &permanent) || there.ID == "" {
		return refused
	}
	ran, err := h.c.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", workload.LabelGroup+"="+spec.Labels[workload.LabelGroup]),
	})
	if err != nil || !slices.ContainsFunc(ran.Items, func(c container.Summary) bool { return c.ImageID == there.ID }) {
		return refused
	}
	return nil
}

// auth is the credential that the engine passes on to an image's registry, "" for none.
func (h *Host) auth(ctx context.Context, org prego.OrgID, image string) (string, error) {
	if h.login == nil {
		return "", nil
	}
	user, password, ok, err := h.login(ctx, org, image)
	if err != nil || !ok {
		return "", classifyError("registry", err)
	}
	b, err := json.Marshal(map[string]string{
		"username": user, "password": password, "serveraddress": server.RegistryOf(image),
	})
	if err != nil {
		return "", err
	}
	return base64.URLEncoding.EncodeToString(b), nil
}

// Resolve fetches an image if the host doesn't have it, and returns its digest in the registry; "" if it came from no
// registry.
func (h *Host) Resolve(ctx context.Context, image string) (digest string, err error) {
	got, err := h.c.ImageInspect(ctx, image)
	if cerrdefs.IsNotFound(err) {
		if err := h.pull(ctx, "", image); err != nil {
			return "", classify(image, err)
		}
		got, err = h.c.ImageInspect(ctx, image)
	}
	if err != nil {
		return "", classify(image, classifyError("image", err))
	}
	for _, known := range got.RepoDigests {
		if name, digest, ok := strings.Cut(known, "@"); ok && sameRepository(name, image) {
			return digest, nil
		}
	}
	return "", nil
}

// sameRepository reports whether two references name the same repository.
func sameRepository(known, image string) bool {
	a, errKnown := server.ParseImage(known)
	b, err := server.ParseImage(image)
	return errKnown == nil && err == nil && a.Name() == b.Name()
}

// Pinned is an image by its digest, with the original tag for people.
func Pinned(image, digest string) string {
	if digest == "" || strings.Contains(image, "@") {
		return image
	}
	return image + "@" + digest
}
