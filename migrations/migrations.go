// Package migrations embeds the schema: forward-only SQL files that goose applies in
// order, and in functions/ the current text of every SQL function.
package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib" // goose speaks database/sql
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql functions/*.sql
var files embed.FS

// Up brings the database to the newest schema, and its functions to the text in functions/. Several processes may
// call it concurrently: an advisory lock lets one work and the others wait. A schema that is newer than this binary
// is left as it is, functions included.
func Up(ctx context.Context, url string) error {
	return withProvider(url, func(db *sql.DB, p *goose.Provider) error {
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300)) // tries once a second
		if err != nil {
			return fmt.Errorf("migration lock: %w", err)
		}
		conn, err := db.Conn(ctx)
		if err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		defer func() { _ = conn.Close() }()
		if err := locker.SessionLock(ctx, conn); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		defer func() { _ = locker.SessionUnlock(context.WithoutCancel(ctx), conn) }()
		current, newest, err := p.GetVersions(ctx)
		if err == nil && current <= newest {
			if _, err = p.Up(ctx); err == nil {
				err = replaceFunctions(ctx, conn)
			}
		}
		if err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		return nil
	})
}

// Check reports what the database lacks for this binary, "" for nothing: migrations, or functions. A newer schema
// lacks nothing, and the text of functions is not compared: during a rolling update it may be the previous or the
// next version's.
func Check(ctx context.Context, url string) (lacks string, err error) {
	err = withProvider(url, func(db *sql.DB, p *goose.Provider) error {
		current, newest, err := p.GetVersions(ctx)
		if err != nil {
			return fmt.Errorf("schema version: %w", err)
		}
		if current < newest {
			lacks = fmt.Sprintf("the schema is at %d, this binary needs %d", current, newest)
		}
		if current != newest {
			return nil
		}
		missing, err := missingFunctions(ctx, db)
		if len(missing) > 0 {
			lacks = "there are no SQL functions " + strings.Join(missing, ", ")
		}
		return err
	})
	return lacks, err
}

func withProvider(url string, f func(*sql.DB, *goose.Provider) error) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return errors.New("DATABASE_URL is not a Postgres connection string")
	}
	cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // of several hosts the primary
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 2 * time.Second
	}
	db := stdlib.OpenDB(*cfg)
	defer func() { _ = db.Close() }()
	p, err := goose.NewProvider(goose.DialectPostgres, db, files)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	return f(db, p)
}

// Hash identifies the schema: it changes when any file does.
func Hash() string {
	h := sha256.New()
	if err := fs.WalkDir(files, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := files.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n", path, len(b))
		h.Write(b)
		return err
	}); err != nil {
		panic("migrations: embedded files: " + err.Error())
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}
