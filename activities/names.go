package activities

import (
	"context"

	"github.com/prego/prego/server"
)

// DNS is where the records of this installation's zone are kept. Every error that it
// returns is a *server.InfraError.
type DNS interface {
	// EnsureRecordSet makes a record set, or corrects it, and waits until it is
	// published at the zone's name servers. One that is not ours is
	// InfraForeign, and is left alone.
	EnsureRecordSet(ctx context.Context, r server.RecordSet, known server.RecordWrite) error
	// DeleteRecordSet deletes a record set of ours; a missing one is success.
	DeleteRecordSet(ctx context.Context, zone, name string, typ server.RecordType) error
	// ListRecordSets lists ours, normalized.
	ListRecordSets(ctx context.Context, zone string) ([]server.RecordSet, error)
}

// Resolver asks the public DNS.
type Resolver interface {
	// TXT are the texts of a name, asked of its own name servers, so that no cache
	// answers. No such name is none.
	TXT(ctx context.Context, name string) ([]string, error)
	// Addresses are the addresses that a name leads to, aliases followed.
	Addresses(ctx context.Context, name string) ([]string, error)
}

// Challenges publishes what a certificate authority asks to see in the DNS. Several values
// may stand at one name. AddTXT returns once the provider has it; TXTVisible tells whether
// the zone's own name servers say it yet.
type Challenges interface {
	AddTXT(ctx context.Context, fqdn, value string) error
	RemoveTXT(ctx context.Context, fqdn, value string) error
	TXTVisible(ctx context.Context, fqdn, value string) (bool, error)
}
