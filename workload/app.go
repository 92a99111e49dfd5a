package workload

import (
	"time"

	"github.com/prego/prego"
)

// App is what an org groups its environments under.
type App struct {
	AppID     prego.AppID
	OrgID     prego.OrgID
	Name      string
	CreatedBy string
	CreatedAt time.Time
}

// Env is a place of an app in a region; process groups and routes are in one.
type Env struct {
	EnvID     prego.EnvID
	AppID     prego.AppID
	OrgID     prego.OrgID
	Name      string
	Region    prego.Region
	CreatedBy string
	CreatedAt time.Time
}
