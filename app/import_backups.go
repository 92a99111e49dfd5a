package app

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/internal/token"
)

// ImportBackups finds what backups are in the bucket, and with apply writes the rows that the database lacks.
func ImportBackups(ctx context.Context, o Options, apply bool) ([]activities.ImportedBackup, error) {
	o.Name = "import-backups"
	p, err := New(ctx, o)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	backups, err := newImport(p)
	if err != nil {
		return nil, err
	}
	return backups.ImportBackups(ctx, p.db, apply)
}

// newImport has what reads the bucket and believes its manifests.
func newImport(p *Process) (*activities.Backups, error) {
	out := &activities.Backups{Settings: activities.BackupSettings{Environment: p.cfg.Environment}, Log: p.log}
	vault, err := token.OpenSealing(p.cfg.KeysDir, token.SealBackups)
	if err != nil || p.cfg.Backups.Endpoint == "" {
		return out, err
	}
	storage, err := newStorage(p.cfg.Backups, nil, p.db.MayDeleteObject)
	out.Objects, out.Vault = storage, vault
	return out, err
}

// newStorage reaches the storage of backups.
func newStorage(
	s config.Backups, over http.RoundTripper, mayDelete func(ctx context.Context, key string) error,
) (*objects.Store, error) {
	storage, err := objects.New(objects.Config{
		Endpoint: s.Endpoint, Bucket: s.Bucket, Region: s.Region, AccessKey: s.AccessKey, SecretKey: s.SecretKey,
		PathStyle: s.PathStyle, Transport: over, MayDelete: mayDelete,
	})
	if err != nil {
		return nil, fmt.Errorf("PREGO_BACKUP_…: %w", err)
	}
	return storage, nil
}
