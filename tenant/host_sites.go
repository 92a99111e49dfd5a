package tenant

import "github.com/prego/prego"

// HostSites are the sites that the database knows of an active server with a bench.
type HostSites struct {
	ServerID prego.ServerID
	Host     string // its address
	Sites    []HostSite
}

// HostSite is a site that is, or may be, on a server.
type HostSite struct {
	Site     string         `json:"site"`
	TenantID prego.TenantID `json:"tenant_id"` // "" for a site built ahead
	State    State          `json:"state"`     // of the tenant
	Finished bool           `json:"finished"`  // it must be there; others may be
}
