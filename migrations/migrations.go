// Package migrations embeds the schema: forward-only SQL files that goose
// applies in order.
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

	_ "github.com/jackc/pgx/v5/stdlib" // goose speaks database/sql
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// Up brings the database to the newest schema. Several processes may call it at
// once: an advisory lock lets one work and the others wait.
func Up(ctx context.Context, url string) error {
	p, db, err := provider(url)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Current reports the schema's version and the newest one that this binary
// knows.
func Current(ctx context.Context, url string) (current, newest int64, err error) {
	p, db, err := provider(url)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = db.Close() }()
	current, newest, err = p.GetVersions(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("schema version: %w", err)
	}
	return current, newest, nil
}

func provider(url string) (*goose.Provider, *sql.DB, error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, nil, errors.New("DATABASE_URL is not a Postgres connection string")
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, nil, fmt.Errorf("migration lock: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		_ = db.Close()
		return nil, nil, fmt.Errorf("migrations: %w", err)
	}
	return p, db, nil
}

// Hash identifies the schema: it changes when any file does.
func Hash() string {
	h := sha256.New()
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		panic("migrations: embedded files: " + err.Error())
	}
	for _, e := range entries {
		b, err := files.ReadFile(e.Name())
		if err != nil {
			panic("migrations: embedded files: " + err.Error())
		}
		fmt.Fprintf(h, "%s %d\n", e.Name(), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}
