package store

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/prego/prego"
)

// Many rows are written together, and the database rejects all of them for a bad one. The good ones are written without
// it, and prego status names it (look_failing).

// The batches whose rejected parts are reported, as rejected_rows and prego status name them.
const (
	batchHeartbeats       = "heartbeats"
	batchContainers       = "reports of containers"
	batchPeers            = "rules of peers"
	batchDNSRecords       = "DNS records"
	batchCertificateNames = "names of certificates"
)

// rejection is a part of a batch that the database rejects.
type rejection[T any] struct {
	part   T
	reason error
}

// maxSiftTries bounds the statements for one batch: one bad part of 10,000 takes 28.
const maxSiftTries = 64

// sift writes a batch. If the database rejects the content, sift writes halves of it, until what is rejected is alone.
// Any other error ends it.
func sift[T any](parts []T, write func([]T) error) (rejected []rejection[T], err error) {
	tries := 0
	var try func([]T) error
	try = func(parts []T) error {
		if len(parts) == 0 {
			return nil
		}
		err := write(parts)
		if tries++; err == nil || !rejects(err) || tries > maxSiftTries {
			return err
		}
		if len(parts) == 1 {
			rejected = append(rejected, rejection[T]{parts[0], err})
			return nil
		}
		half := len(parts) / 2
		if err := try(parts[:half]); err != nil {
			return err
		}
		return try(parts[half:])
	}
	err = try(parts)
	return rejected, err
}

// rejects reports whether the database rejected what a statement contains or what it leads to: the same would happen
// again, and without that row it would not. It is not the case for deadlocks, timeouts or lost connections.
func rejects(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "21", "22", "23", "54", "P0": // cardinality, data, integrity, a limit of the program, RAISE
		return true
	}
	return false
}

// A part that stays rejected is noted once a minute.
const (
	sqlRejected = `
INSERT INTO rejected_rows AS r (batch, name, reason) SELECT $1, n, e FROM unnest($2::text[], $3::text[]) u (n, e)
ON CONFLICT (batch, name) DO UPDATE SET reason = excluded.reason, seen_at = now(),
    since = CASE WHEN r.seen_at < now() - interval '10 minutes' THEN now() ELSE r.since END
WHERE r.reason <> excluded.reason OR r.seen_at < now() - interval '1 minute'`
	sqlForgetRejected = `DELETE FROM rejected_rows WHERE batch = $1 AND seen_at < now() - interval '1 day'`
)

// siftNoted is sift, and records the rejected parts under their names. It returns them.
func siftNoted[T any](
	ctx context.Context, s *Store, batch string, parts []T, name func(T) string, write func([]T) error,
) (bad []T, err error) {
	rejected, err := sift(parts, write)
	if len(rejected) == 0 {
		return nil, err
	}
	var names, reasons []string
	for _, r := range rejected {
		bad = append(bad, r.part)
		if n := writable(name(r.part)); !slices.Contains(names, n) {
			names, reasons = append(names, n), append(reasons, prego.Redact(writable(r.reason.Error())))
		}
	}
	return bad, errors.Join(err,
		s.exec(ctx, "rejected "+batch, sqlRejected, batch, names, reasons),
		s.exec(ctx, "rejected "+batch, sqlForgetRejected, batch))
}

// writable is a text without what Postgres takes in no text.
func writable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}
