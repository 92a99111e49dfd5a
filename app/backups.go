package app

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/workflows"
)

const (
	// backupLate is how long after its time a scheduled backup is late: the hosts of a region take turns meanwhile.
	backupLate = 2 * time.Hour
	// backupURLs is how long a URL that a host gets is valid: a part of a large site takes minutes on a slow line.
	backupURLs = 20 * time.Minute
	// Concurrent backups: one of a host, whose disk each backup reads completely, and as many of a region as storage
	// takes without throttling.
	backupsOfHost, backupsOfRegion = 1, 20
)

// newBackups creates the steps of backups in object storage. Without storage there are none:
// last backups then stay on their hosts.
func newBackups(p *Process, runs *workflows.Client, tenants *activities.Tenants, ca *pki.Authority) (*activities.Backups, error) {
	s := p.cfg.Backups
	out := &activities.Backups{
		Store: p.db, Tenants: tenants, Audit: p.db, Runs: runs, Metrics: activities.NewBackupMetrics(p.reg), Log: p.log.Named("backups"),
		Settings: activities.BackupSettings{
			Environment: p.cfg.Environment, PartBytes: s.PartBytes, MaxParts: objects.MaxParts, URLTTL: backupURLs, UploadFor: s.UploadFor,
			PerHost: backupsOfHost, PerRegion: backupsOfRegion, LateAfter: backupLate, FinalFor: s.FinalFor, Quiet: p.cfg.Pace.Of(time.Minute),
		},
		NewID: func() prego.BackupID {
			return prego.BackupID("bak-" + strings.ReplaceAll(uuid.NewString(), "-", "")[:16])
		},
	}
	// Without storage nothing is sealed; but a key that is missing is found at the start.
	vault, err := token.OpenSealing(p.cfg.KeysDir, token.SealBackups)
	if err != nil {
		return nil, err
	}
	if s.Endpoint == "" {
		return out, nil
	}
	storage, err := newStorage(s, p.storage, p.db.MayDeleteObject)
	if err != nil {
		return nil, err
	}
	agents, err := newAgents(p, ca)
	if err != nil {
		return nil, err
	}
	out.Objects, out.Vault, out.Hosts, tenants.BackupsLeave, tenants.Restorer = storage, vault, agents, true, out
	checking, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := storage.Check(checking); err != nil { // it may be away for now
		p.log.Warn("the storage of backups does not take them", zap.String("where", storage.Where()), zap.Error(err))
	}
	return out, nil
}

// newDrills creates the steps that restore backups to see whether they can be.
func newDrills(p *Process, runs *workflows.Client, backups *activities.Backups) *activities.Drills {
	s := p.cfg.Backups
	return &activities.Drills{
		Store: p.db, Backups: backups, Runs: runs, Metrics: activities.NewDrillMetrics(p.reg),
		Settings: activities.DrillSettings{Every: s.DrillEvery, Retry: s.DrillRetry, AtOnce: s.DrillsAtOnce, Quiet: p.cfg.Pace.Of(time.Second)},
	}
}
