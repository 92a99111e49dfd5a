package edge

import (
	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// Change is a change of what edges serve, as of one moment.
type Change struct {
	Since    string // cursor for the next
	Snapshot string // of the database: which transactions are in it
	Full     bool   // everything is listed: missing rows are gone
	// Barriers are written by processes that wait until edges serve what was committed earlier.
	Barriers []string
	// Certificates differs after any change of certificates or challenges.
	Certificates int64

	ServerIDs []prego.ServerID
	Servers   []Server
	TenantIDs []prego.TenantID
	Sites     []Site
	GroupIDs  []prego.GroupID
	Groups    []Group
	Addresses []Address // all
}

// Apply brings the model up to date.
func (m *Model) Apply(c Change) {
	if c.Full {
		*m = *NewModel(m.settings)
	}
	replace(m.servers, c.ServerIDs, c.Servers, func(s Server) prego.ServerID { return s.ServerID })
	m.SetSites(c.TenantIDs, c.Sites)
	replace(m.groups, c.GroupIDs, c.Groups, func(g Group) prego.GroupID { return g.GroupID })
	clear(m.addresses)
	replace(m.addresses, nil, c.Addresses, func(a Address) prego.EnvID { return a.EnvID })
}

// Applied is what an edge has acknowledged.
type Applied struct {
	ServerID       prego.ServerID
	Version        int64
	RefusedVersion int64
	RefusedReason  string
	LeftOut        []wire.EdgeLeftOut // of what it serves; its servers refuse them
	Closed         []string           // tenants whose sites answer, and don't by the document that it serves
}

// Turn is who gets a network's document that not all of its edges may have.
type Turn struct {
	Network  string
	Released int64          // the highest version that all may have
	First    prego.ServerID // the edge that gets the newest; "" without one
	Tried    int64          // the highest version that an edge was given
}

// Probed is what an edge found when it requested its sites.
type Probed struct {
	ServerID prego.ServerID
	wire.EdgeProbes
}
