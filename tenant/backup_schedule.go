package tenant

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/prego/prego"
)

// BackupPolicy sets when a tenant is backed up and which backups stay. A tenant's own one goes
// before its plan's.
type BackupPolicy struct {
	Plan     prego.Plan     // of the tenants of a plan
	TenantID prego.TenantID // of one tenant
	OrgID    prego.OrgID    // of the volumes of an org
	VolumeID prego.VolumeID // of one volume
	// Of all these one is set, or none for the policy of all volumes.

	// Schedule is a cron expression of five fields, in UTC; "" for no backups by schedule.
	Schedule string
	// Spread is over how long backups of the same moment are spread: each tenant has its
	// own delay, below it.
	Spread    time.Duration
	Retention Retention
	UpdatedBy string
	UpdatedAt time.Time
}

// BackupHold keeps all backups of a tenant or of a volume, against retention and requests to delete them.
type BackupHold struct {
	Reason string
	HeldBy string
	HeldAt time.Time
}

// BackupOwner is the owner of backups: a tenant or a volume.
type BackupOwner struct {
	TenantID prego.TenantID
	VolumeID prego.VolumeID
}

func (o BackupOwner) String() string { return cmp.Or(string(o.TenantID), string(o.VolumeID)) }

// BackupPolicyChange is a change of a policy.
type BackupPolicyChange struct {
	ChangedAt time.Time
	ChangedBy string
	Policy    *BackupPolicy // nil: the tenant's own one was deleted
}

// AllVolumes is the id of the policy of volumes that neither they nor their orgs have one for.
const AllVolumes = "volumes"

// ID names a policy.
func (p BackupPolicy) ID() string {
	switch {
	case p.Plan != "":
		return "plan/" + string(p.Plan)
	case p.TenantID != "":
		return "tenant/" + string(p.TenantID)
	case p.OrgID != "":
		return "org/" + string(p.OrgID)
	case p.VolumeID != "":
		return "volume/" + string(p.VolumeID)
	}
	return AllVolumes
}

// Default reports whether there is always such a policy.
func (p BackupPolicy) Default() bool { return p.Plan != "" || p.ID() == AllVolumes }

// maxSpread keeps backups of one day apart from the next day's.
const maxSpread = 24 * time.Hour

// leastInterval is the least time between two backups of a schedule.
const leastInterval = 15 * time.Minute

// Validate refuses schedules that can't be read, never come, or come too often.
func (p BackupPolicy) Validate() error {
	if p.Spread < 0 || p.Spread > maxSpread {
		return prego.Invalid("spread_seconds", "must be 0 to 86400")
	}
	if err := p.Retention.Validate(); err != nil || p.Schedule == "" {
		return err
	}
	s, err := prego.ParseCron(p.Schedule)
	if err != nil {
		return prego.Invalid("schedule", "must be a cron expression of five fields, like \"0 2 * * *\" for two o'clock: "+err.Error())
	}
	// As many times as a year of days has.
	at := s.Next(time.Date(2023, 12, 31, 23, 59, 0, 0, time.UTC))
	if at.IsZero() {
		return prego.Invalid("schedule", "names a time that never comes, such as 30 February")
	}
	for range 400 {
		next := s.Next(at)
		if next.IsZero() {
			break
		}
		if next.Sub(at) < leastInterval {
			return prego.Invalid("schedule", fmt.Sprintf("must leave %d minutes between two backups: it comes at %s and %s UTC", int(leastInterval.Minutes()), at.Format("15:04"), next.Format("15:04")))
		}
		at = next
	}
	return nil
}

// Delay is how long after the schedule's moment a tenant or a volume is backed up: always the same
// for the same id.
func (p BackupPolicy) Delay(id string) time.Duration {
	if p.Spread < time.Second {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	return time.Duration(h.Sum64()%uint64(p.Spread/time.Second)) * time.Second //nolint:gosec // the remainder is below a day of seconds
}

// Next is when a tenant or a volume is backed up next after a moment; zero if it isn't by schedule.
func (p BackupPolicy) Next(id string, after time.Time) time.Time {
	if p.Schedule == "" {
		return time.Time{}
	}
	s, err := prego.ParseCron(p.Schedule)
	if err != nil {
		return time.Time{}
	}
	d := p.Delay(id)
	at := s.Next(after.UTC().Add(-d))
	if at.IsZero() {
		return at
	}
	return at.Add(d)
}

// Turns are the next times at which a tenant or a volume is backed up after a moment, at most n.
// Without an id they are the moments that all owners with the policy start from, each after its own
// delay.
func (p BackupPolicy) Turns(id string, after time.Time, n int) []time.Time {
	if id == "" {
		p.Spread = 0
	}
	out := make([]time.Time, 0, n)
	for range n {
		if after = p.Next(id, after); after.IsZero() {
			break
		}
		out = append(out, after)
	}
	return out
}
