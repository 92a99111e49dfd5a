package server

import (
	"slices"
	"time"

	"github.com/prego/prego"
)

// Egress is where the control plane calls hosts from.
type Egress struct {
	// Epoch grows whenever CIDRs changes.
	Epoch int64
	// CIDRs are all that hosts let in, in order.
	CIDRs []string
	// Leaving are the CIDRs that are no longer set.
	Leaving []string
}

// Next returns the state that follows when set are the current addresses. New addresses are added
// immediately, with an epoch; addresses that are no longer set leave with another epoch, if they may: they
// were leaving before, and nothing depends on them.
func (e Egress) Next(set []string, mayLeave bool) Egress {
	set = sorted(set)
	if len(set) == 0 { // no host would be reachable
		return e
	}
	missing := func(from, in []string) []string {
		return slices.DeleteFunc(slices.Clone(from), func(c string) bool { return slices.Contains(in, c) })
	}
	next := Egress{Epoch: e.Epoch, CIDRs: sorted(slices.Concat(e.CIDRs, set))}
	next.Leaving = missing(next.CIDRs, set)
	if mayLeave && len(next.CIDRs) == len(e.CIDRs) && slices.Equal(next.Leaving, e.Leaving) {
		next.CIDRs, next.Leaving = set, nil
	}
	if !slices.Equal(next.CIDRs, e.CIDRs) {
		next.Epoch++
	}
	if next.Leaving == nil {
		next.Leaving = []string{}
	}
	return next
}

// Equal reports whether two are the same.
func (e Egress) Equal(o Egress) bool {
	return e.Epoch == o.Epoch && slices.Equal(e.CIDRs, o.CIDRs) && slices.Equal(e.Leaving, o.Leaving)
}

// PeersWanted is the document that a host should apply.
type PeersWanted struct {
	Version int64 // 0 if there is nothing yet
	Rule    PeersRule
}

// PeersVersion is the version of one server's rule.
type PeersVersion struct {
	ServerID prego.ServerID
	Version  int64
}

// PeersVersions are versions as of a cursor; Full means that there are no others.
type PeersVersions struct {
	Since    string
	Full     bool
	Versions []PeersVersion
}

// PeersState is how far a server has applied its document.
type PeersState struct {
	ServerID       prego.ServerID
	Role           prego.Role
	Host           string
	Status         Status
	AgentStatus    AgentStatus
	Version        int64 // 0 if there is no rule yet
	AppliedVersion int64 // 0 if the host has reported none
	AppliedEpoch   int64
	ChangedAt      *time.Time
	AppliedAt      *time.Time
	Refused        string // why the host does not apply its document
}
