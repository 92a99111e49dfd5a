package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

const (
	sqlCreateConsoleSession = `INSERT INTO console_sessions (session_hash, subject, operator, address, expires_at) VALUES ($1, $2, $3, $4, $5)`
	sqlConsoleSession       = `SELECT subject, operator, address, expires_at FROM console_sessions WHERE session_hash = $1 AND expires_at > now()`
	// A logout also removes expired sessions.
	sqlEndConsoleSession = `DELETE FROM console_sessions WHERE session_hash = $1 OR expires_at < now()`

	sqlCreateConsoleLogin = `
WITH gone AS (DELETE FROM console_logins WHERE expires_at < now())
INSERT INTO console_logins (code_hash, subject, operator, session_expires_at, expires_at) VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5)) RETURNING expires_at`
	sqlUseConsoleLogin = `
WITH used AS (DELETE FROM console_logins WHERE code_hash = $1 RETURNING *)
SELECT subject, operator, '' AS address, session_expires_at AS expires_at FROM used WHERE expires_at > now()`
)

// CreateConsoleSession creates a session. The hash is that of the secret in the cookie.
func (s *Store) CreateConsoleSession(ctx context.Context, hash []byte, c ops.ConsoleSession) error {
	return s.exec(ctx, "console session", sqlCreateConsoleSession, hash, c.Subject, c.Operator, c.Address, c.ExpiresAt)
}

// ConsoleSession reads a session that has not ended, or CodeUnauthenticated.
func (s *Store) ConsoleSession(ctx context.Context, hash []byte) (ops.ConsoleSession, error) {
	return get[ops.ConsoleSession](ctx, s.pool, prego.Errorf(prego.CodeUnauthenticated, "the session has ended"), sqlConsoleSession, hash)
}

// EndConsoleSession ends a session.
func (s *Store) EndConsoleSession(ctx context.Context, hash []byte) error {
	return s.exec(ctx, "end console session", sqlEndConsoleSession, hash)
}

// CreateConsoleLogin writes a code that can start one session of a caller, and returns when the code ends. The
// session ends when c does.
func (s *Store) CreateConsoleLogin(ctx context.Context, hash []byte, c ops.ConsoleSession, within time.Duration) (time.Time, error) {
	at, err := value[time.Time](ctx, s.pool, sqlCreateConsoleLogin, hash, c.Subject, c.Operator, c.ExpiresAt, within.Seconds())
	return at, failed("console login", err)
}

// UseConsoleLogin redeems a code once and returns the session that it starts, or CodeUnauthenticated.
func (s *Store) UseConsoleLogin(ctx context.Context, hash []byte) (ops.ConsoleSession, error) {
	return get[ops.ConsoleSession](ctx, s.pool, prego.Errorf(prego.CodeUnauthenticated, "the link was already used or has expired: request another with prego console"), sqlUseConsoleLogin, hash)
}
