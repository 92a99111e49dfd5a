package tenant

import (
	"time"

	"github.com/prego/prego"
)

// Loss is the loss of a tenant's site with its server.
type Loss struct {
	ServerID   prego.ServerID
	State      State     // that the tenant was in
	LostAt     time.Time // when the server was last heard of
	NotedAt    time.Time
	BackupID   prego.BackupID // what the site came back from, "" while it is not back
	TakenAt    *time.Time     `json:"backup_taken_at"` // of that backup
	RestoredAt *time.Time
}

// Minutes is how much of the tenant's work is lost, nil while its site is not back.
func (l Loss) Minutes() *int {
	if l.TakenAt == nil {
		return nil
	}
	n := LostMinutes(*l.TakenAt, l.LostAt)
	return &n
}

// LostMinutes is how much is lost of a site whose newest backup was taken at one time and whose
// server was lost at another: minutes, rounded up.
func LostMinutes(taken, lost time.Time) int {
	return int(max(0, lost.Sub(taken)+time.Minute-1) / time.Minute)
}

// LeftPlace is a place that a tenant lost with one of its servers, whose other servers may still
// have something.
type LeftPlace struct {
	LossID           int64
	Allocation       Allocation
	App, Shard, Pool DataHost
}
