package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// sites opens the directory of the sites. What is reached through it stays in it,
// whatever links a site's own code left there.
func (h *Host) sites() (*os.Root, error) {
	return os.OpenRoot(h.path(wire.BenchDir + "/sites"))
}

// owned refuses a command of a tenant that names a site of another. A site that
// nobody owns yet may be taken into use, and one that is not there has no owner.
func (h *Host) owned(k *call) *problem {
	if k.in.TenantID == "" {
		return nil
	}
	notOwned := &problem{status: http.StatusForbidden, code: "site_not_owned", field: "args", detail: "the site belongs to another tenant"}
	if k.givesTo() != k.in.TenantID && k.givesTo() != "" {
		return notOwned
	}
	for _, site := range k.sites {
		owner, err := h.owner(site)
		switch {
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

// owner is the tenant that a site belongs to, "" for none.
func (h *Host) owner(site string) (string, error) {
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

// givesTo is the tenant that the command makes the owner of its site, "" for none.
func (k *call) givesTo() string {
	if k.verb == "set-config" && k.in.Args[3] == wire.SiteOwnerFile {
		return k.in.Args[4]
	}
	return ""
}

// recordOwner keeps what the site's configuration now says of its owner.
func (h *Host) recordOwner(k *call) *problem {
	if k.givesTo() == "" {
		return nil
	}
	root, err := h.sites()
	if err != nil {
		return ownerUnknown(err)
	}
	defer func() { _ = root.Close() }()
	name := k.sites[0] + "/" + wire.SiteOwnerFile
	err = root.WriteFile(name+".new", []byte(k.givesTo()+"\n"), 0o600)
	if err == nil {
		err = root.Rename(name+".new", name)
	}
	if err != nil {
		return ownerUnknown(err)
	}
	return nil
}
