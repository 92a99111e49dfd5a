package workload

import (
	"time"

	"github.com/prego/prego"
)

// App groups an org's environments.
type App struct {
	AppID     prego.AppID
	OrgID     prego.OrgID
	Name      string
	CreatedBy string
	CreatedAt time.Time
	DeletedAt *time.Time
}

// Env is an environment of an app in a region; process groups and routes belong to one.
type Env struct {
	EnvID     prego.EnvID
	AppID     prego.AppID
	OrgID     prego.OrgID
	Name      string
	Region    prego.Region
	CreatedBy string
	CreatedAt time.Time
	DeletedAt *time.Time
}
