package dockerhost

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/prego/prego/server"
)

// Pull fetches an image. Failures during the pull are reported only in the answer's stream.
func (h *Host) Pull(ctx context.Context, image string) error {
	return classify(image, h.pull(ctx, image))
}

func (h *Host) pull(ctx context.Context, image string) error {
	if _, err := server.ParseImage(image); err != nil { // the client refuses it, without a type
		return &server.ContainerError{Container: image, Message: "image " + err.Error()}
	}
	auth, err := h.auth(ctx, image)
	if err != nil {
		return err
	}
	pull, err := h.c.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: auth})
	if err == nil {
		err = pull.Wait(ctx)
		_ = pull.Close()
	}
	if err != nil {
		return fmt.Errorf("%w %s: %w", errPull, image, err)
	}
	return nil
}

// auth is the credential that the engine passes on to an image's registry, "" for none.
func (h *Host) auth(ctx context.Context, image string) (string, error) {
	if h.login == nil {
		return "", nil
	}
	user, password, ok, err := h.login(ctx, image)
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
		if err := h.pull(ctx, image); err != nil {
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
