package activities

import (
	"context"
	"errors"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// protection is what a cloud offers against deletions by mistake.
type protection interface {
	// Protect sets whether the cloud refuses to delete a server or a volume.
	Protect(ctx context.Context, kind server.ResourceKind, providerID string, on bool) error
	DeleteResource(ctx context.Context, kind server.ResourceKind, providerID prego.ServerID) error
}

// protected is a server or a volume at a provider that may hold data. Its protection survives a lost or restored
// database, and stops a second control plane.
type protected struct {
	store    *store.Store
	infra    protection
	provider prego.InfraProviderID
	kind     server.ResourceKind
	id       string // at the provider
}

// protect has the provider refuse its deletion. The ledger notes it first: what is protected and is not noted there was
// protected after the state that this database is in.
func (p protected) protect(ctx context.Context) error {
	noted, err := p.store.NoteProtection(ctx, p.provider, p.kind, p.id)
	if err != nil || !noted {
		return err
	}
	return p.infra.Protect(ctx, p.kind, p.id, true)
}

// destroy deletes what the rows have decided to delete, and lifts its protection if the ledger knows of it. What no row
// knows must not go this way.
func (p protected) destroy(ctx context.Context) error {
	err := p.infra.DeleteResource(ctx, p.kind, prego.ServerID(p.id))
	if !isProtected(err) {
		return err
	}
	noted, err := p.store.NotedProtection(ctx, p.provider, p.kind, p.id)
	if err != nil {
		return err
	}
	if !noted {
		why := fmt.Sprintf("%s %s is protected from deletion at %s, and this database does not know that it was used: "+
			"it may be older than what is there", p.kind, p.id, p.provider)
		return &store.Held{Code: prego.CodeHoldsData, Message: why}
	}
	if err := p.infra.Protect(ctx, p.kind, p.id, false); err != nil {
		return err
	}
	return p.infra.DeleteResource(ctx, p.kind, prego.ServerID(p.id))
}

func isProtected(err error) bool {
	ie, ok := errors.AsType[*server.InfraError](err)
	return ok && ie.Code == server.InfraProtected
}
