package app

import (
	"context"
	"os"
	"os/user"
	"time"

	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// NoteToken writes to the audit that a token was made, where there is a database: who has the keys can make
// tokens without one.
func NoteToken(ctx context.Context, cfg config.Config, subject string) error {
	if cfg.DatabaseURL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pool, err := store.Open(ctx, cfg.DatabaseURL, 1, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	by := ops.AuditSource{Actor: "unknown", Role: "host", Operation: "prego token create"}
	if u, err := user.Current(); err == nil {
		by.Actor = u.Username
	}
	by.From, _ = os.Hostname()
	return store.New(pool).NoteRequest(ops.WithAuditSource(ctx, by), "token", subject, "")
}
