package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// sites opens the directory of the sites. Access through it can't leave it, whatever
// links a site's code left there.
func (h *workplace) sites() (*os.Root, error) {
	return os.OpenRoot(h.path(wire.BenchDir + "/sites"))
}

// owned refuses a tenant's command that names another tenant's site. A site without an
// owner may be taken into use, and one that does not exist has no owner.
func (h *workplace) owned(ctx context.Context, k *command) *problem {
	if k.in.TenantID == "" {
		return nil
	}
	notOwned := &problem{status: http.StatusForbidden, code: "site_not_owned", field: "args", detail: "the site belongs to another tenant"}
	if k.gives != k.in.TenantID && k.gives != "" {
		return notOwned
	}
	for _, site := range k.sites {
		owner, err := h.siteOwner(ctx, site)
		switch {
		case errors.Is(err, errUnavailable):
			return &problem{status: http.StatusServiceUnavailable, code: "service_unavailable", detail: "bench: " + err.Error(), retryAfter: 5}
		case err != nil:
			return ownerUnknown(err)
		case owner != "" && owner != k.in.TenantID:
			return notOwned
		}
	}
	return nil
}

func ownerUnknown(err error) *problem {
	return &problem{status: http.StatusInternalServerError, code: "site_owner_unknown", detail: "the owner of the site can't be read or kept: " + err.Error()}
}

// siteOwner is the tenant that a site belongs to, read where the site is.
func (h *workplace) siteOwner(ctx context.Context, site string) (string, error) {
	s, err := h.services()
	if err != nil {
		return "", err
	}
	if s.Bench.Socket == "" {
		return h.owner(site)
	}
	ctx, cancel := context.WithTimeout(ctx, ownerTime)
	defer cancel()
	return h.askOwner(ctx, s.Bench.Socket, site, "")
}

// SiteOwner returns the tenant that a site of the host, or of the container, at root belongs
// to. If tenant is not "", it first becomes the owner.
func SiteOwner(root, site, tenant string) (string, error) {
	if !words()["SITE"].MatchString(site) || (tenant != "" && !tenantPattern.MatchString(tenant)) {
		return "", errors.New("there must be a site's name, and at most a tenant's id")
	}
	h := &workplace{Host: &Host{Root: root}}
	if tenant != "" {
		if err := h.giveSite(site, tenant); err != nil {
			return "", err
		}
	}
	return h.owner(site)
}

// owner is the tenant that a site belongs to, "" for none.
func (h *workplace) owner(site string) (string, error) {
	root, err := h.sites()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(site + "/" + wire.SiteOwnerFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 256)
	n, err := f.Read(b)
	if err != nil || n == len(b) {
		return "", fmt.Errorf("%s of %s is not a tenant's id", wire.SiteOwnerFile, site)
	}
	return strings.TrimSpace(string(b[:n])), nil
}

// recordOwner stores the owner that the site's configuration now names.
func (h *workplace) recordOwner(ctx context.Context, k *command) *problem {
	if k.gives == "" {
		return nil
	}
	s, err := h.services()
	switch {
	case err != nil:
	case s.Bench.Socket == "":
		err = h.giveSite(k.sites[0], k.gives)
	default:
		ctx, cancel := context.WithTimeout(ctx, ownerTime)
		defer cancel()
		_, err = h.askOwner(ctx, s.Bench.Socket, k.sites[0], k.gives)
	}
	if err != nil {
		return ownerUnknown(err)
	}
	return nil
}

func (h *workplace) giveSite(site, tenant string) error {
	root, err := h.sites()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	name := site + "/" + wire.SiteOwnerFile
	if err := root.WriteFile(name+".new", []byte(tenant+"\n"), 0o600); err != nil {
		return err
	}
	return root.Rename(name+".new", name)
}
