package devstack

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego/lab/child"
)

// Postgres is a private cluster.
type Postgres struct {
	*Process
	Port int
	Dir  string // its data directory
}

// PostgresConfig configures a cluster.
type PostgresConfig struct {
	Dir     string
	Port    int    // 0 for any free one
	LogFile string // "" for <Dir>.log
	// Volatile trades durability for speed, for tests.
	Volatile bool
	// Settings are further ones, as name=value.
	Settings []string
}

// ErrNoPostgres names the missing packages.
var ErrNoPostgres = errors.New("no Postgres server binaries found: install Debian's package postgresql, or set DATABASE_URL")

// postgresBin finds the directory of initdb and postgres: on PATH, or the newest of
// Debian's.
func postgresBin() (string, error) {
	if p, err := exec.LookPath("postgres"); err == nil {
		if _, err := exec.LookPath("initdb"); err == nil {
			return filepath.Dir(p), nil
		}
	}
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(dirs) == 0 {
		return "", ErrNoPostgres
	}
	version := func(p string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(p))))
		return n
	}
	sort.Slice(dirs, func(i, j int) bool { return version(dirs[i]) > version(dirs[j]) })
	return filepath.Dir(dirs[0]), nil
}

// StartPostgres starts a cluster, initializing it the first time.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	uid, gid, err := postgresUser()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("postgres directory: %w", err)
	}
	dir = placeFor(dir, uid)
	if cfg.LogFile == "" {
		cfg.LogFile = dir + ".log"
	}
	if err := initialize(ctx, bin, dir, uid, gid); err != nil {
		return nil, err
	}
	if cfg.Port == 0 {
		if cfg.Port, err = child.FreePort(); err != nil {
			return nil, err
		}
	}
	args := []string{
		"-D", dir, "-p", strconv.Itoa(cfg.Port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "max_connections=300", "-c", "shared_buffers=128MB", "-c", "log_min_messages=warning", "-c",
		"timezone=UTC",
	}
	if cfg.Volatile {
		args = append(args, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c",
			"wal_level=minimal", "-c", "max_wal_senders=0", "-c", "max_wal_size=1GB")
	}
	for _, s := range cfg.Settings {
		args = append(args, "-c", s)
	}
	spec := Spec{
		Name: "postgres", Path: filepath.Join(bin, "postgres"), Args: args, Dir: "/", LogFile: cfg.LogFile,
		UID: uid, GID: gid, Stop: syscall.SIGINT, // fast shutdown
	}
	ready, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		p, err := Start(spec)
		if err != nil {
			return nil, err
		}
		pg := &Postgres{Process: p, Port: cfg.Port, Dir: dir}
		err = p.await(ready, pg.ping)
		if err == nil {
			return pg, nil
		}
		p.Stop(5 * time.Second)
		// The children of a killed one keep its memory a moment longer.
		if !strings.Contains(err.Error(), "pre-existing shared memory block") || ready.Err() != nil {
			return nil, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// URL is the connection string of a database of the cluster.
func (p *Postgres) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User("prego"), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// EnsureDatabase creates a database unless it exists.
func (p *Postgres) EnsureDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to postgres: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var there bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)",
		name).Scan(&there); err != nil {
		return fmt.Errorf("look for database %s: %w", name, err)
	}
	if there {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func (p *Postgres) ping(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// postgresUser is the user to run as: the caller or, since postgres refuses to run as
// root, an unprivileged user.
func postgresUser() (uid, gid uint32, err error) {
	if os.Geteuid() != 0 {
		return 0, 0, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return uint32(uid), uint32(gid), nil
		}
	}
	return 0, 0, errors.New("postgres can't run as root, and there is neither a user postgres nor nobody")
}

// reachable reports whether a user could reach a new directory: every existing parent
// must be searchable.
func reachable(dir string, uid uint32) bool {
	for d := filepath.Dir(dir); ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err == nil {
			st, ok := info.Sys().(*syscall.Stat_t)
			if !ok || (info.Mode().Perm()&0o001 == 0 && st.Uid != uid) {
				return false
			}
		}
		if d == "/" {
			return true
		}
	}
}

// placeFor is the place for a cluster. Postgres refuses to run as root; if its user can't reach the directory (below a
// home of mode 0700, say), it is put below /var/tmp.
func placeFor(dir string, uid uint32) string {
	if uid == 0 || reachable(dir, uid) {
		return dir
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(dir))
	return filepath.Join("/var/tmp", fmt.Sprintf("prego-postgres-%x", h.Sum64()))
}

// RemovePostgres deletes a cluster's files, wherever they are.
func RemovePostgres(dir string) error {
	uid, _, err := postgresUser()
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("postgres directory: %w", err)
	}
	return os.RemoveAll(placeFor(abs, uid))
}

func initialize(ctx context.Context, bin, dir string, uid, gid uint32) error {
	if _, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("postgres directory: %w", err)
	}
	// A half-initialized cluster is initialized again.
	tmp := dir + ".init"
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o700)); err != nil {
		return fmt.Errorf("postgres directory: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", tmp, "-U", "prego", "--auth=trust",
		"--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
	cmd.Dir = "/"
	if uid != 0 {
		if err := os.Chown(tmp, int(uid), int(gid)); err != nil {
			return fmt.Errorf("postgres directory: %w", err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("postgres directory: %w", err)
	}
	return nil
}
