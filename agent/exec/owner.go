package exec

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// sites opens the directory of the sites. Access through it can't leave it, whatever
// links a site's code left there.
func (h *workplace) sites() (*os.Root, error) {
	return os.OpenRoot(h.Path(wire.BenchDir + "/sites"))
}

// owned refuses a tenant's command that names another tenant's site. A site without an
// owner may be taken into use, and one that does not exist has no owner.
func (h *workplace) owned(ctx context.Context, k *policy.Command) *policy.Problem {
	if k.In.TenantID == "" {
		return nil
	}
	notOwned := &policy.Problem{Status: http.StatusForbidden, Code: "site_not_owned", Field: "args", Detail: "the site belongs to another tenant"}
	if k.Gives != k.In.TenantID && k.Gives != "" {
		return notOwned
	}
	for _, site := range k.Sites {
		owner, err := h.siteOwner(ctx, site, "")
		switch {
		case errors.Is(err, host.ErrUnavailable):
			return &policy.Problem{Status: http.StatusServiceUnavailable, Code: "service_unavailable", Detail: "bench: " + err.Error(), RetryAfter: 5}
		case err != nil:
			return ownerUnknown(err)
		case owner != "" && owner != k.In.TenantID:
			return notOwned
		}
	}
	return nil
}

func ownerUnknown(err error) *policy.Problem {
	return &policy.Problem{Status: http.StatusInternalServerError, Code: "site_owner_unknown", Detail: "the owner of the site can't be read or kept: " + err.Error()}
}

// siteOwner is the tenant that a site belongs to, read where the site is. If tenant is not "", it first becomes the
// owner.
func (h *workplace) siteOwner(ctx context.Context, site, tenant string) (string, error) {
	s, err := h.Services()
	if err != nil {
		return "", err
	}
	if s.Bench.Socket == "" {
		return SiteOwner(h.Root, site, tenant)
	}
	ctx, cancel := context.WithTimeout(ctx, host.OwnerTime)
	defer cancel()
	return h.askOwner(ctx, s.Bench.Socket, site, tenant)
}

// SiteOwner returns the tenant that a site of the host, or of the container, at root belongs
// to. If tenant is not "", it first becomes the owner.
func SiteOwner(root, site, tenant string) (string, error) {
	if !policy.Is("SITE", site) || (tenant != "" && !policy.TenantPattern.MatchString(tenant)) {
		return "", errors.New("there must be a site's name, and at most a tenant's id")
	}
	h := &workplace{Host: &host.Host{Root: root}}
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
func (h *workplace) recordOwner(ctx context.Context, k *policy.Command) *policy.Problem {
	if k.Gives == "" {
		return nil
	}
	if _, err := h.siteOwner(ctx, k.Sites[0], k.Gives); err != nil {
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
