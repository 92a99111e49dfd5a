package tenant

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// BackupKind is why a backup was made.
type BackupKind string

// The kinds of backups.
const (
	BackupScheduled BackupKind = "scheduled"
	BackupManual    BackupKind = "manual"
	BackupFinal     BackupKind = "final"      // before a tenant's data is deleted
	BackupPreMove   BackupKind = "pre_move"   // before a move to another server
	BackupPreUpdate BackupKind = "pre_update" // before an update of the stack or of apps
)

// BackupKinds lists them.
func BackupKinds() []BackupKind {
	return []BackupKind{BackupScheduled, BackupManual, BackupFinal, BackupPreMove, BackupPreUpdate}
}

// BackupState is how far a backup is. Every state but the last may be followed by deleting.
type BackupState string

// The states of a backup.
const (
	BackupQueued    BackupState = "queued"
	BackupMaking    BackupState = "making"    // on the host: dumped, compressed and encrypted
	BackupUploading BackupState = "uploading" // the storage gets its parts
	BackupStored    BackupState = "stored"    // it can be restored: its manifest was written and read back
	BackupFailed    BackupState = "failed"
	BackupDeleting  BackupState = "deleting"
	BackupDeleted   BackupState = "deleted" // the storage confirmed its deletion
)

// UnderWay reports whether a backup in this state is being made.
func (s BackupState) UnderWay() bool {
	return s == BackupQueued || s == BackupMaking || s == BackupUploading
}

// Backup is a tenant's database and files, or the files of a volume, in object storage,
// encrypted to an identity that is its own.
type Backup struct {
	BackupID prego.BackupID
	OrgID    prego.OrgID
	TenantID prego.TenantID // "" for a volume's
	VolumeID prego.VolumeID // "" for a tenant's
	ServerID prego.ServerID // where it was made
	Site     string
	Kind     BackupKind
	State    BackupState
	// Reason and Message explain why it failed, or why it is not deleted yet.
	Reason  prego.Reason
	Message string
	// TakenAt is when the dump started: it lacks later writes.
	TakenAt    *time.Time
	FinishedAt *time.Time
	Object     string // key of the encrypted content
	Manifest   string // key of its description
	// PlainBytes and PlainSHA256 (hex) describe the archive before compression
	// and encryption, Bytes and SHA256 the object.
	PlainBytes  int64
	PlainSHA256 string
	Bytes       int64
	SHA256      string
	Parts       int
	// Entries counts the files, directories and links of a volume in it, FrozenMS is for how long
	// the volume was not writable.
	Entries  int64
	FrozenMS *int64
	// VerifiedAt is when it was last restored and found good; VerifyMessage is why the last
	// attempt failed.
	VerifiedAt    *time.Time
	VerifyMessage string
	ExpiresAt     *time.Time // nil: as long as retention wants
	HeldAt        *time.Time // while it is held nothing deletes it
	HeldBy        string
	HoldReason    string
	CreatedBy     string
	CreatedAt     time.Time
	DeletedAt     *time.Time
	KeptUntil     *time.Time // until then its deletion can be undone; nil if it can't
}

// WorkflowID is the id of its run.
func (b Backup) WorkflowID() string { return BackupWorkflowID(b.BackupID) }

// Verified reports whether it was found good the last time that it was restored.
func (b Backup) Verified() bool { return b.VerifiedAt != nil && b.VerifyMessage == "" }

// SealedIdentity is a backup's private key, encrypted for the control plane.
type SealedIdentity struct {
	Sealed []byte
	KeyID  string
}

// BackupAsked is a requested backup.
type BackupAsked struct {
	ID       prego.BackupID
	TenantID prego.TenantID // or
	VolumeID prego.VolumeID
	Kind     BackupKind
	By       string
	// AtOnce starts it even if other work is under way: a workflow waits for it.
	AtOnce bool
	Keep   time.Duration // 0: as long as retention wants
}

// BackupLeft is a backup that may have no run.
type BackupLeft struct {
	BackupID prego.BackupID
	TenantID prego.TenantID
	VolumeID prego.VolumeID
	State    BackupState
}

// BackupSchedule is a tenant or a volume whose next backup must be planned.
type BackupSchedule struct {
	TenantID prego.TenantID
	VolumeID prego.VolumeID
	Policy   BackupPolicy
	Now      time.Time // the database's
	DueAt    time.Time // when it became due; zero for a new plan
}

// BackupObject is where a backup's objects are.
type BackupObject struct {
	BackupID prego.BackupID
	State    BackupState
	Object   string
	Manifest string
	Bytes    int64
}

// BackupRecord is a backup with what its run needs.
type BackupRecord struct {
	Backup
	Recipient string // the public half of its identity; "" before there is one
	SealedIdentity
	UploadID  string // of the upload that is under way
	PartBytes int64
}

// BackupKeyFor is what a backup's identity is sealed for: it opens for no other backup.
func BackupKeyFor(id prego.BackupID) string { return "backup/" + string(id) }

// Reasons why backups fail, and why restores refuse one.
const (
	ReasonDiskFull         prego.Reason = "disk_full"         // no room on the host
	ReasonUnreadable       prego.Reason = "backup_unreadable" // truncated, changed, or of another key
	ReasonDigest           prego.Reason = "digest_mismatch"
	ReasonIncomplete       prego.Reason = "restore_incomplete" // the restore lacks a part of the backup
	ReasonURLExpired       prego.Reason = "url_expired"        // or a clock is wrong
	ReasonStorageRefused   prego.Reason = "storage_refused"
	ReasonStorageAway      prego.Reason = "storage_unreachable"
	ReasonNoStorage        prego.Reason = "no_backup_storage"
	ReasonSealedElsewhere  prego.Reason = "sealed" // no key here opens its identity
	ReasonNothingToBackUp  prego.Reason = "no_site"
	ReasonBackupSuperseded prego.Reason = "superseded" // the site or the volume is elsewhere meanwhile
	ReasonNoHost           prego.Reason = "no_server"  // none at the volume's location can have it
)

const (
	backupDirectory  = "/tenants/"
	volumesDirectory = "/volumes/"
)

// BackupWorkflowID is the id of the run that makes a backup.
func BackupWorkflowID(id prego.BackupID) string { return "backup/" + string(id) }

// BackupDeleteWorkflowID is the id of the run that deletes one.
func BackupDeleteWorkflowID(id prego.BackupID) string { return "backup-delete/" + string(id) }

// BackupFolder is where an environment's backups of a tenant are in the bucket.
func BackupFolder(environment string, tenantID prego.TenantID) string {
	return environment + backupDirectory + string(tenantID) + "/"
}

// BackupKeys are the keys of a backup's objects.
func BackupKeys(environment string, tenantID prego.TenantID, id prego.BackupID) (object, manifest string) {
	base := BackupFolder(environment, tenantID) + string(id)
	return base + "/site.age", base + "/manifest.json"
}

// VolumeBackupKeys are the keys of the objects of a volume's backup.
func VolumeBackupKeys(environment string, volumeID prego.VolumeID, id prego.BackupID) (object, manifest string) {
	base := environment + volumesDirectory + string(volumeID) + "/" + string(id)
	return base + "/volume.age", base + "/manifest.json"
}

// VolumeBackupOfKey is the volume's backup that an object belongs to; ok is false for other objects.
func VolumeBackupOfKey(environment, key string) (volumeID prego.VolumeID, id prego.BackupID, ok bool) {
	return ofKey[prego.VolumeID](environment+volumesDirectory, "volume.age", key)
}

// BackupOfKey is the backup that an object belongs to; ok is false for foreign objects.
func BackupOfKey(environment, key string) (tenantID prego.TenantID, id prego.BackupID, ok bool) {
	return ofKey[prego.TenantID](environment+backupDirectory, "site.age", key)
}

func ofKey[Owner ~string](directory, archive, key string) (owner Owner, id prego.BackupID, ok bool) {
	rest, ours := strings.CutPrefix(key, directory)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) != 3 || parts[0] == "" || parts[1] == "" || (parts[2] != archive && parts[2] != "manifest.json") {
		return "", "", false
	}
	return Owner(parts[0]), prego.BackupID(parts[1]), true
}

// Manifest describes a backup beside it in the bucket. With the keys of the control plane it
// is enough to restore the backup, also when the database is lost.
type Manifest struct {
	Format      int            `json:"format"` // 1
	Environment string         `json:"environment"`
	BackupID    prego.BackupID `json:"backup_id"`
	OrgID       prego.OrgID    `json:"org_id"`
	TenantID    prego.TenantID `json:"tenant_id"` // "" for a volume's
	Slug        string         `json:"slug"`
	Plan        prego.Plan     `json:"plan"`
	// Volume describes the volume. Manifests of tenants don't have it.
	Volume      *VolumeManifest `json:"volume,omitempty"`
	Region      prego.Region    `json:"region"`
	ServerID    prego.ServerID  `json:"server_id"`
	Site        string          `json:"site"`
	Apps        []string        `json:"apps,omitempty"`
	Kind        BackupKind      `json:"kind"`
	TakenAt     time.Time       `json:"taken_at"`
	Object      string          `json:"object"`
	Bytes       int64           `json:"bytes"`
	SHA256      string          `json:"sha256"`
	PlainBytes  int64           `json:"plain_bytes"`
	PlainSHA256 string          `json:"plain_sha256"`
	Files       []HostFile      `json:"files"` // in the archive, with their sizes
	PartBytes   int64           `json:"part_bytes"`
	Parts       []ObjectPart    `json:"parts"`
	Encryption  string          `json:"encryption"` // "tar, zstd, age"
	Recipient   string          `json:"recipient"`
	// SealedIdentity (base64 in JSON) opens with the key KeyID of the keyset, as token.Sealing
	// does, for BackupKeyFor.
	SealedIdentity []byte `json:"sealed_identity"`
	KeyID          string `json:"key_id"`
	// MAC is over the document without it: who can write to the bucket can't make one up.
	MAC []byte `json:"mac,omitempty"`
}

// VolumeManifest is the part of a manifest about a volume.
type VolumeManifest struct {
	VolumeID  prego.VolumeID `json:"volume_id"`
	Name      string         `json:"name"`
	Location  string         `json:"location"`
	SizeBytes int64          `json:"size_bytes"`
	Entries   int64          `json:"entries"`
}

// SealedBackup is a host's report of a backup that it encrypted.
type SealedBackup struct {
	Name        string     `json:"name"`
	Recipient   string     `json:"recipient"`
	PlainBytes  int64      `json:"plain_bytes"`
	PlainSHA256 string     `json:"plain_sha256"`
	Bytes       int64      `json:"bytes"`
	SHA256      string     `json:"sha256"`
	Files       []HostFile `json:"files"`
	TakenAt     time.Time  `json:"taken_at"`
	// Of a volume.
	Entries  int64 `json:"entries"`
	Frozen   bool  `json:"frozen"`
	FrozenMS int64 `json:"frozen_ms"`
}

// PartBytes is how large the parts of an upload are: the smallest multiple of least with
// which they are at most maxParts.
func PartBytes(total, least int64, maxParts int) int64 {
	n := (total + least*int64(maxParts) - 1) / (least * int64(maxParts))
	return least * max(1, n)
}

// PartCount is how many parts an object has; an empty one has one.
func PartCount(total, part int64) int { return int(max(1, (total+part-1)/part)) }

// Restorable is a tenant's newest backup that can be restored.
type Restorable struct {
	BackupID   prego.BackupID
	TakenAt    time.Time `json:"at"`
	VerifiedAt *time.Time
}

// Retention is how many backups are kept. The newest of each of that many days, weeks and
// months that have one stays; 0 keeps none for it.
type Retention struct {
	Daily   int
	Weekly  int
	Monthly int
}

// Validate refuses what would keep nothing, or more than anyone pays for.
func (r Retention) Validate() error {
	for _, f := range []struct {
		name   string
		n, top int
	}{{"keep_daily", r.Daily, 366}, {"keep_weekly", r.Weekly, 260}, {"keep_monthly", r.Monthly, 120}} {
		if f.n < 0 || f.n > f.top {
			return prego.Invalid(f.name, fmt.Sprintf("must be 0 to %d", f.top))
		}
	}
	if r.Daily+r.Weekly+r.Monthly == 0 {
		return prego.Invalid("keep_daily", "something must be kept")
	}
	return nil
}

// Retained is what retention looks at of a backup.
type Retained struct {
	BackupID  prego.BackupID
	Kind      BackupKind
	TakenAt   time.Time
	Unusable  bool // missing, or found unreadable
	Verified  bool
	Held      bool
	ExpiresAt *time.Time // its own end; nil: the rule decides
}

// Surplus is what may be deleted of a tenant's stored backups, the oldest first. Days, weeks
// (from Monday) and months are UTC's. Under every rule these stay: held backups, the
// newest backup, and the newest verified one. Backups with their own end stay
// until then, and are no reason to delete others. Neither are unusable ones: what would stay
// without them stays.
//
// Deleting early loses nothing: every earlier call also keeps what a later one would.
func Surplus(all []Retained, r Retention, now time.Time) []prego.BackupID {
	byAge := slices.Clone(all)
	slices.SortFunc(byAge, func(a, b Retained) int {
		return cmp.Or(b.TakenAt.Compare(a.TakenAt), cmp.Compare(b.BackupID, a.BackupID))
	})
	keep := make(map[prego.BackupID]bool)
	for _, of := range [][]Retained{byAge, usable(byAge)} {
		keepBy(keep, of, r, now)
	}
	var out []prego.BackupID
	for _, b := range slices.Backward(byAge) {
		if !keep[b.BackupID] {
			out = append(out, b.BackupID)
		}
	}
	return out
}

func usable(all []Retained) []Retained {
	return slices.DeleteFunc(slices.Clone(all), func(b Retained) bool { return b.Unusable })
}

// keepBy adds what a rule keeps of backups, the newest first.
func keepBy(keep map[prego.BackupID]bool, byAge []Retained, r Retention, now time.Time) {
	firstOf := func(n int, period func(time.Time) string) {
		seen := make(map[string]bool)
		for _, b := range byAge {
			if p := period(b.TakenAt.UTC()); b.ExpiresAt == nil && !seen[p] && len(seen) < n {
				seen[p], keep[b.BackupID] = true, true
			}
		}
	}
	firstOf(r.Daily, func(t time.Time) string { return t.Format(time.DateOnly) })
	firstOf(r.Weekly, func(t time.Time) string {
		year, week := t.ISOWeek()
		return fmt.Sprintf("%d-%d", year, week)
	})
	firstOf(r.Monthly, func(t time.Time) string { return t.Format("2006-01") })
	verified := false
	for i, b := range byAge {
		if i == 0 || b.Held || (b.Verified && !verified) || (b.ExpiresAt != nil && now.Before(*b.ExpiresAt)) {
			keep[b.BackupID] = true
		}
		verified = verified || b.Verified
	}
}
