package tenant

import "github.com/prego/prego"

// BackupSpaceFactor is how many bytes of backups an org may have for each byte of its quota of
// storage (max_total_volume_bytes), unless it has its own limit.
const BackupSpaceFactor = 10

// BackupSpace is what an org's backups occupy in object storage.
type BackupSpace struct {
	OrgID      prego.OrgID
	UsedBytes  int64
	LimitBytes int64
	Own        bool              // the limit is the org's own
	Largest    []BackupsOfTenant `db:"-"` // the tenants whose backups occupy most
}

// Over reports whether the limit is reached.
func (s BackupSpace) Over() bool { return s.UsedBytes >= s.LimitBytes }

// BackupsOfTenant are the backups of a tenant or of a volume, counted.
type BackupsOfTenant struct {
	TenantID prego.TenantID
	VolumeID prego.VolumeID
	Backups  int
	Bytes    int64
}
