package store

import (
	"bytes"
	"context"
	"time"

	"github.com/prego/prego"
)

const sqlBeginRequest = `
WITH begun AS (
    INSERT INTO request_keys AS k (subject, key, request_hash, leased_until) VALUES ($1, $2, $3, now() + $4)
    ON CONFLICT (subject, key) DO UPDATE SET leased_until = EXCLUDED.leased_until
    WHERE k.status IS NULL AND k.leased_until < now() AND k.request_hash = EXCLUDED.request_hash RETURNING 1
)
SELECT EXISTS (SELECT FROM begun)`

const sqlKeptRequest = `SELECT request_hash, status, body FROM request_keys WHERE subject = $1 AND key = $2`

// BeginRequest takes a key for a request. It answers what the same request was answered
// before, nil where it is to run now; CodeIdempotencyConflict where another request has
// the key, and CodeRequestUnderWay while the same one runs.
func (s *Store) BeginRequest(ctx context.Context, subject, key string, hash []byte, lease time.Duration) (*prego.KeptAnswer, error) {
	begun, err := value[bool](ctx, s.pool, sqlBeginRequest, subject, key, hash, lease)
	if err != nil || begun {
		return nil, failed("request key", err)
	}
	underWay := &prego.Error{Code: prego.CodeRequestUnderWay, Field: "Idempotency-Key", Message: "belongs to a request that is not answered yet; ask again"}
	type request struct {
		RequestHash []byte
		Status      *int
		Body        []byte
	}
	met, err := get[request](ctx, s.pool, underWay, sqlKeptRequest, subject, key) // one that was refused meanwhile gave the key back
	switch {
	case err != nil:
		return nil, err
	case !bytes.Equal(met.RequestHash, hash):
		return nil, &prego.Error{Code: prego.CodeIdempotencyConflict, Field: "Idempotency-Key", Message: "was sent with another request"}
	case met.Status == nil:
		return nil, underWay
	}
	return &prego.KeptAnswer{Status: *met.Status, Body: met.Body}, nil
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
