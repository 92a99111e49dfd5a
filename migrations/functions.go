package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// functionFiles are the files of functions/ by name, in the order of their application. Each file is named for its
// one function.
func functionFiles() []string {
	names, err := fs.Glob(files, "functions/*.sql")
	if err != nil {
		panic("migrations: embedded files: " + err.Error())
	}
	return names
}

// replaceFunctions gives every function its current text, all of them or none. It locks no table and waits for no
// transaction: running calls end with their text, and prepared statements are planned again. Bodies are checked when
// they are first planned, so that a function may call a later one.
func replaceFunctions(ctx context.Context, conn *sql.Conn) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "SET LOCAL check_function_bodies = off"); err != nil {
		return err
	}
	for _, name := range functionFiles() {
		text, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return tx.Commit()
}

// missingFunctions are the functions that the database lacks.
func missingFunctions(ctx context.Context, db *sql.DB) ([]string, error) {
	var names []string
	for _, name := range functionFiles() {
		names = append(names, strings.TrimSuffix(path.Base(name), ".sql"))
	}
	var missing string
	err := db.QueryRowContext(ctx, `SELECT COALESCE(string_agg(f, ' ' ORDER BY f), '') FROM unnest($1::text[]) f
		WHERE NOT EXISTS (SELECT FROM pg_proc WHERE proname = f AND pronamespace = current_schema()::regnamespace)`, names).Scan(&missing)
	if err != nil {
		return nil, fmt.Errorf("functions: %w", err)
	}
	return strings.Fields(missing), nil
}
