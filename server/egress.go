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
	// Leaving are those of CIDRs that are no longer set.
	Leaving []string
}

// Next is what follows when set are the addresses that are set now. What is new comes at
// once, and with it an epoch; what is no longer set leaves with another one, if it may: it
// was leaving before, and nobody depends on it.
func (e Egress) Next(set []string, mayLeave bool) Egress {
	set = sorted(set)
	if len(set) == 0 { // nobody could reach a host
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

// PeersWanted is what should be in force at a host.
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

// PeersState is how far the document of a server is in force.
type PeersState struct {
	ServerID       prego.ServerID
	Role           prego.Role
	Host           string
	Status         Status
	AgentStatus    AgentStatus
	Version        int64 // 0 if there is no rule yet
	AppliedVersion int64 // 0 if the host has said of none
	AppliedEpoch   int64
	ChangedAt      *time.Time
	AppliedAt      *time.Time
	Refused        string // why the host does not apply its document
}
