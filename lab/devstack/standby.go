package devstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// StartStandby copies a running cluster with pg_basebackup and starts the copy as its
// standby, without which the cluster then confirms no commit. It must not be Volatile.
func StartStandby(ctx context.Context, cfg PostgresConfig, of *Postgres) (*Postgres, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("standby's directory: %w", err)
	}
	if err := postgresTool(ctx, "pg_basebackup", "-D", dir, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-h",
		"127.0.0.1", "-p", strconv.Itoa(of.Port), "-U", "prego"); err != nil {
		return nil, err
	}
	cfg.Dir = dir
	p, err := StartPostgres(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err = of.Execute(ctx, "ALTER SYSTEM SET synchronous_standby_names = '*'",
		"SELECT pg_reload_conf()"); err == nil {
		err = of.awaitStandby(ctx)
	}
	if err != nil {
		p.Stop(5 * time.Second)
		return nil, err
	}
	return p, nil
}

// Promote makes a standby the primary.
func (p *Postgres) Promote(ctx context.Context) error {
	return p.Execute(ctx, "SELECT pg_promote(true, 60)")
}

// Execute runs statements as the cluster's superuser, each by itself.
func (p *Postgres) Execute(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to postgres: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Value reads one value as the cluster's superuser.
func (p *Postgres) Value(ctx context.Context, into any, sql string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to postgres: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.QueryRow(ctx, sql).Scan(into)
}

// awaitStandby waits until a standby confirms commits.
func (p *Postgres) awaitStandby(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to postgres: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for {
		var there bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')").Scan(&there); err != nil || there {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// toolPath finds a program of Postgres: beside the server, at the target of its link, or among Debian's.
func toolPath(name string) (string, error) {
	bin, err := postgresBin()
	if err != nil {
		return "", err
	}
	tried := []string{filepath.Join(bin, name)}
	if postgres, err := filepath.EvalSymlinks(filepath.Join(bin, "postgres")); err == nil {
		tried = append(tried, filepath.Join(filepath.Dir(postgres), name))
	}
	debians, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	for _, path := range append(tried, debians...) {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not among Postgres's programs", name)
}

// postgresTool runs a program of Postgres as the clusters' user.
func postgresTool(ctx context.Context, name string, args ...string) error {
	path, err := toolPath(name)
	if err != nil {
		return err
	}
	uid, gid, err := postgresUser()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "HOME=/")
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
