package tenant

import (
	"time"

	"github.com/prego/prego"
)

// StorageLevel compares a tenant's site with its storage quota.
type StorageLevel string

// The levels. At all but the last, the site is writable.
const (
	StorageOK       StorageLevel = "ok"
	StorageWarned   StorageLevel = "warned"    // nearly full
	StorageOver     StorageLevel = "over"      // full, but still within the grace period
	StorageReadOnly StorageLevel = "read_only" // full for too long, or by too much
)

// StorageLevels lists every level, from best to worst.
func StorageLevels() []StorageLevel {
	return []StorageLevel{StorageOK, StorageWarned, StorageOver, StorageReadOnly}
}

// StorageRules decide what happens to a site above its quota.
type StorageRules struct {
	WarnPct float64       // percent of the quota at which a warning starts
	HardPct float64       // percent of the quota at which the site becomes read-only immediately
	Grace   time.Duration // how long it may be above 100 % before it becomes read-only
}

// Level returns the level of a site with this usage that has been above its quota for
// so long.
func (r StorageRules) Level(used, quota int64, overFor time.Duration) StorageLevel {
	pct := 100 * float64(used) / float64(max(quota, 1))
	switch {
	case pct >= r.HardPct, pct >= 100 && overFor >= r.Grace:
		return StorageReadOnly
	case pct >= 100:
		return StorageOver
	case pct >= r.WarnPct:
		return StorageWarned
	}
	return StorageOK
}

// SiteSize is the size of a site on its host, as measured by the agent.
type SiteSize struct {
	DatabaseBytes int64 `json:"database_bytes"`
	FilesBytes    int64 `json:"files_bytes"`   // uploads, without backups
	BackupsBytes  int64 `json:"backups_bytes"` // not counted for the storage quota
	Users         int   `json:"users"`
}

// Used is what counts for the storage quota.
func (s SiteSize) Used() int64 { return s.DatabaseBytes + s.FilesBytes }

// SiteUsage is one row of site_usage.
type SiteUsage struct {
	TenantID prego.TenantID
	SiteSize
	MeasuredAt *time.Time // nil before the first measurement
	TriedAt    time.Time
	Level      StorageLevel
	OverSince  *time.Time
	ReadOnly   bool   // the host was instructed to make it read-only
	QuotaGB    int    // last quota written to the site
	Message    string // why the last measurement failed
}

// BytesPerGB is what a GB of a quota is.
const BytesPerGB = 1_000_000_000

// SiteToMeasure is a site that is due to be measured.
type SiteToMeasure struct {
	TenantID prego.TenantID
	ServerID prego.ServerID
}

// HostBackup is a host's report of a backup that it made.
type HostBackup struct {
	Name  string     `json:"name"`
	Files []HostFile `json:"files"`
	Bytes int64      `json:"bytes"`
}

// HostFile is one file of a backup; its path is relative to the directory of the
// sites.
type HostFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// Paths are the backup's files, the database first.
func (b HostBackup) Paths() []string {
	out := make([]string, 0, len(b.Files))
	for _, f := range b.Files {
		out = append(out, f.Path)
	}
	return out
}
