package store

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
)

// Keys are kept for a week; each new one takes a few old ones along.
const sqlForgetRequests = `
DELETE FROM request_keys WHERE (subject, key) IN (SELECT subject, key FROM request_keys WHERE created_at < now() - interval '7 days' LIMIT 10)`

const sqlBeginRequest = `
INSERT INTO request_keys AS k (subject, key, request_hash, leased_until) VALUES ($1, $2, $3, now() + $4)
ON CONFLICT (subject, key) DO UPDATE SET leased_until = EXCLUDED.leased_until
WHERE k.status IS NULL AND k.leased_until < now() AND k.request_hash = EXCLUDED.request_hash`

const sqlKeptRequest = `SELECT request_hash, status, body FROM request_keys WHERE subject = $1 AND key = $2`

// BeginRequest takes a key for a request. It answers what the same request was answered
// before, nil where it is to run now; CodeIdempotencyConflict where another request has
// the key, and CodeRequestUnderWay while the same one runs.
func (s *Store) BeginRequest(ctx context.Context, subject, key string, hash []byte, lease time.Duration) (*prego.KeptAnswer, error) {
	if _, err := s.pool.Exec(ctx, sqlForgetRequests); err != nil {
		return nil, fmt.Errorf("forget request keys: %w", err)
	}
	tag, err := s.pool.Exec(ctx, sqlBeginRequest, subject, key, hash, lease)
	if err != nil {
		return nil, fmt.Errorf("request key: %w", err)
	}
	if tag.RowsAffected() == 1 {
		return nil, nil
	}
	var kept []byte
	var status *int
	var out prego.KeptAnswer
	err = s.pool.QueryRow(ctx, sqlKeptRequest, subject, key).Scan(&kept, &status, &out.Body)
	underWay := &prego.Error{Code: prego.CodeRequestUnderWay, Field: "Idempotency-Key", Message: "belongs to a request that is not answered yet; ask again"}
	switch {
	case isNoRows(err): // it was refused meanwhile, and gave the key back
		return nil, underWay
	case err != nil:
		return nil, fmt.Errorf("request key: %w", err)
	case !bytes.Equal(kept, hash):
		return nil, &prego.Error{Code: prego.CodeIdempotencyConflict, Field: "Idempotency-Key", Message: "was sent with another request"}
	case status == nil:
		return nil, underWay
	}
	out.Status = *status
	return &out, nil
}

const sqlAnswerRequest = `UPDATE request_keys SET status = $3, body = $4 WHERE subject = $1 AND key = $2`

// AnswerRequest keeps what a request was answered; a body of nil is not to be told again.
func (s *Store) AnswerRequest(ctx context.Context, subject, key string, a prego.KeptAnswer) error {
	return s.exec(ctx, "answer of request key", sqlAnswerRequest, subject, key, a.Status, a.Body)
}

const (
	sqlRepeatRequest = `UPDATE request_keys SET leased_until = now() WHERE subject = $1 AND key = $2`
	sqlRefuseRequest = `DELETE FROM request_keys WHERE subject = $1 AND key = $2 AND status IS NULL`
)

// EndRequest ends a request whose answer is not kept: the same one may run again, and
// where the request was refused the key is free for another.
func (s *Store) EndRequest(ctx context.Context, subject, key string, refused bool) error {
	sql := sqlRepeatRequest
	if refused {
		sql = sqlRefuseRequest
	}
	return s.exec(ctx, "end of request key", sql, subject, key)
}
