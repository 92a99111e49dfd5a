package tenant

import (
	"time"

	"github.com/prego/prego"
)

// StorageLevel says how a tenant's site stands to its storage quota.
type StorageLevel string

// The levels. At all but the last the site can be written to.
const (
	StorageOK       StorageLevel = "ok"
	StorageWarned   StorageLevel = "warned"    // nearly full
	StorageOver     StorageLevel = "over"      // full, and within the time to make room
	StorageReadOnly StorageLevel = "read_only" // full for too long, or by too much
)

// StorageLevels lists every level, the best first.
func StorageLevels() []StorageLevel {
	return []StorageLevel{StorageOK, StorageWarned, StorageOver, StorageReadOnly}
}

// StorageRules say what becomes of a site that is above its quota.
type StorageRules struct {
	WarnPct float64       // of the quota, from which on it is warned
	HardPct float64       // of the quota, from which on it is read-only at once
	Grace   time.Duration // how long it may be above 100 % before it is read-only
}

// Level is where a site stands that uses so much and has been above its quota for so
// long.
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

// SiteSize is what a site takes on its host, as the agent measures it.
type SiteSize struct {
	DatabaseBytes int64 `json:"database_bytes"`
	FilesBytes    int64 `json:"files_bytes"`   // uploads, without backups
	BackupsBytes  int64 `json:"backups_bytes"` // snapshots count for no quota of storage
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
	ReadOnly   bool   // the host was told so
	QuotaGB    int    // that the site was told
	Message    string // why the last try failed
}

// BytesPerGB is what a GB of a quota is.
const BytesPerGB = 1_000_000_000

// StorageTurn is a site whose turn it is to be measured.
type StorageTurn struct {
	TenantID prego.TenantID
	ServerID prego.ServerID
}

// Backup is what a host says of a backup that it made.
type Backup struct {
	Name  string       `json:"name"`
	Files []BackupFile `json:"files"`
	Bytes int64        `json:"bytes"`
}

// BackupFile is one file of a backup; its path is relative to the directory of the
// sites.
type BackupFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// Paths are the backup's files, the database first.
func (b Backup) Paths() []string {
	out := make([]string, 0, len(b.Files))
	for _, f := range b.Files {
		out = append(out, f.Path)
	}
	return out
}
