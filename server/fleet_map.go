package server

import (
	"time"

	"github.com/prego/prego"
)

// FleetMapMost is how many servers of a role of a fleet in a region are shown one by one.
const FleetMapMost = 50

// FleetMapQuery narrows a fleet map.
type FleetMapQuery struct {
	Region prego.Region // "" is every region
	// Expand shows the servers of this fleet in this region however many there are; the zero
	// value is none.
	Expand *FleetInRegion
}

// FleetInRegion is a fleet's part in a region; the fleet "" are servers outside fleets.
type FleetInRegion struct {
	Region  prego.Region
	FleetID prego.FleetID
}

// FleetTile is a server of a fleet map, or several of the same state and fill.
type FleetTile struct {
	Region  prego.Region
	FleetID prego.FleetID // "" outside fleets
	Role    prego.Role
	Total   int // of this role, fleet and region

	ServerID prego.ServerID // "" for several
	Servers  int
	State    string
	Fill     string
	Alarm    string // "" for none

	MemoryMB  int64    // of those whose type the catalog knows
	MemoryPct *float64 // mean of the reported values
	DiskPct   *float64
	Tenants   int
	Instances int

	// Of one server.
	Status                   Status
	AgentStatus              AgentStatus
	Cordoned, Draining, Warm bool
	ServerType, Location     string
	AsOf                     time.Time
}
