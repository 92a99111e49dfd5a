package devstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Archiving are the settings with which a cluster keeps its write-ahead log in a directory, as
// docs/restore-control-plane.md requires.
func Archiving(archive string) []string {
	return []string{"archive_mode=on", "archive_command=" + archiveCommand(archive), "archive_timeout=60s"}
}

// archiveCommand keeps a segment: never half of one, and never in place of another.
func archiveCommand(archive string) string {
	return fmt.Sprintf("test ! -f %[1]s/%%f && cp %%p %[1]s/%%f.part && sync %[1]s/%%f.part && mv %[1]s/%%f.part %[1]s/%%f", archive)
}

// BaseBackup copies a running cluster to a new directory.
func (p *Postgres) BaseBackup(ctx context.Context, dir string) error {
	return postgresTool(ctx, "pg_basebackup", "--pgdata="+dir, "--checkpoint=fast", "--wal-method=stream",
		"--host=127.0.0.1", "--port="+strconv.Itoa(p.Port), "--username=prego")
}

// Archived closes the log's current segment, and waits until it is in the archive.
func (p *Postgres) Archived(ctx context.Context) error {
	var segment string
	if err := p.Value(ctx, &segment, "SELECT pg_walfile_name(pg_switch_wal())"); err != nil {
		return fmt.Errorf("switch segments: %w", err)
	}
	for {
		var kept bool
		if err := p.Value(ctx, &kept,
			"SELECT COALESCE(last_archived_wal, '') >= '"+segment+"' FROM pg_stat_archiver"); err != nil || kept {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Recovery is the moment of a cluster's restore.
type Recovery struct {
	Base, Archive string
	// Log is the pg_wal of the lost cluster, "" if that is also lost: its last segments are in no archive.
	Log string
	// Moment is the last one, in Postgres's notation; "" for the end of the log.
	Moment string
}

// RestorePostgres starts a cluster from a base backup and the archived log, in place of the one
// that was lost, and returns when it takes writes.
func RestorePostgres(ctx context.Context, cfg PostgresConfig, r Recovery) (*Postgres, error) {
	if out, err := exec.CommandContext(ctx, "cp", "-a", r.Base, cfg.Dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy the base backup: %w: %s", err, out)
	}
	if r.Log != "" {
		if out, err := exec.CommandContext(ctx, "cp", "-a", r.Log+"/.",
			filepath.Join(cfg.Dir, "pg_wal")).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("copy the log: %w: %s", err, out)
		}
	}
	settings := []string{
		fmt.Sprintf("restore_command = 'cp %s/%%f %%p'", r.Archive),
		"recovery_target_action = 'promote'",
	}
	if r.Moment != "" {
		settings = append(settings, fmt.Sprintf("recovery_target_time = '%s'", r.Moment))
	}
	f, err := os.OpenFile(filepath.Join(cfg.Dir, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("recovery settings: %w", err)
	}
	_, err = f.WriteString(strings.Join(settings, "\n") + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, fmt.Errorf("recovery settings: %w", err)
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, "recovery.signal"), nil, 0o644); err != nil {
		return nil, fmt.Errorf("recovery.signal: %w", err)
	}
	p, err := StartPostgres(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for {
		var recovering bool
		if err := p.Value(ctx, &recovering, "SELECT pg_is_in_recovery()"); err == nil && !recovering {
			return p, nil
		}
		select {
		case <-p.Done():
			return nil, p.Err()
		case <-ctx.Done():
			p.Kill()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
