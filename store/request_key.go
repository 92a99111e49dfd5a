package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// Requests are kept as MACs under the caller's own key, and the key as another, so that a stolen database does not
// serve to guess what bodies held, such as passwords: the key is random and only the caller has it. A secret of the
// installation would protect less if it was in the same database, and would have to be given to each API process and
// rotated with the rows if it was not (docs/adr/0018). The label separates the two uses: without it the MAC of a key
// could be the key of the other.
func keyMAC(key, label string, text []byte) []byte {
	m := hmac.New(sha256.New, []byte(key))
	m.Write([]byte(label + "\x00"))
	m.Write(text)
	return m.Sum(nil)
}

// keptKey is a caller's key as it is stored.
func keptKey(subject, key string) string {
	return hex.EncodeToString(keyMAC(key, "key", []byte(subject)))
}

// keptRequest is a request as it is stored.
func keptRequest(key string, request []byte) []byte { return keyMAC(key, "request", request) }

const sqlBeginRequest = `
WITH begun AS (
    INSERT INTO request_keys AS k (subject, key, request_hash, leased_until) VALUES ($1, $2, $3, now() + $4)
    ON CONFLICT (subject, key) DO UPDATE SET leased_until = EXCLUDED.leased_until
    WHERE k.status IS NULL AND k.leased_until < now() AND k.request_hash = EXCLUDED.request_hash RETURNING 1
)
SELECT EXISTS (SELECT FROM begun)`

const sqlKeptRequest = `SELECT request_hash, status, body FROM request_keys WHERE subject = $1 AND key = $2`

// BeginRequest takes a key of a principal for a request. It returns the answer that the same request got
// before, nil where it is to run now; CodeIdempotencyConflict where another request has
// the key, and CodeRequestUnderWay while the same one runs.
func (s *Store) BeginRequest(ctx context.Context, subject, key string, sent []byte, lease time.Duration) (*prego.KeptAnswer, error) {
	hash := keptRequest(key, sent)
	key = keptKey(subject, key)
	begun, err := value[bool](ctx, s.pool, sqlBeginRequest, subject, key, hash, lease)
	if err != nil || begun {
		return nil, failed("request key", err)
	}
	underWay := &prego.Error{Code: prego.CodeRequestUnderWay, Field: "Idempotency-Key", Message: "belongs to a request in progress; retry later"}
	type request struct {
		RequestHash []byte
		Status      *int
		Body        []byte
	}
	met, err := get[request](ctx, s.pool, underWay, sqlKeptRequest, subject, key) // a request refused meanwhile gave the key back
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

// AnswerRequest keeps the answer to a request; a nil body must not be repeated.
func (s *Store) AnswerRequest(ctx context.Context, subject, key string, a prego.KeptAnswer) error {
	return s.exec(ctx, "answer of request key", sqlAnswerRequest, subject, keptKey(subject, key), a.Status, a.Body)
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
	return s.exec(ctx, "end of request key", sql, subject, keptKey(subject, key))
}

const (
	sqlKeepKey = `
INSERT INTO request_keys (subject, key, request_hash, created_id) VALUES ($1, $2, $3, $4) ON CONFLICT (subject, key) DO NOTHING`
	sqlCreatedByKey = `SELECT request_hash, COALESCE(created_id, '') FROM request_keys WHERE subject = $1 AND key = $2`
)

// errKeyKept rolls back a transaction whose key another request has stored first.
var errKeyKept = errors.New("the idempotency key is kept by another request")

// keyed is a request and its idempotency key, if it has one.
type keyed struct {
	by, key string // as they are stored
	kind    string // of the created object
	hash    []byte
}

// keyOwner is the principal whose request it is: keys belong to its id, because names are not unique. Without a request
// it is the one who is named.
func keyOwner(ctx context.Context, by string) string {
	if s, ok := ops.AuditSourceOf(ctx); ok && s.Actor != "" {
		return s.Actor
	}
	return by
}

// keyedRequest is a request to create something of a kind, distinguished by its fields.
func keyedRequest(ctx context.Context, by, key, kind string, fields ...string) keyed {
	if key == "" {
		return keyed{kind: kind}
	}
	by = keyOwner(ctx, by)
	return keyed{by: by, key: keptKey(by, key), kind: kind, hash: keptRequest(key, []byte(kind+"\x00"+strings.Join(fields, "\x00")))}
}

// createdBefore is the id of the object that an earlier request with this key created, "" when there
// was none, CodeIdempotencyConflict when that request was another one.
func (k keyed) createdBefore(ctx context.Context, q querier) (id string, err error) {
	if k.key == "" {
		return "", nil
	}
	var hash []byte
	err = q.QueryRow(ctx, sqlCreatedByKey, k.by, k.key).Scan(&hash, &id)
	switch {
	case isNoRows(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("idempotency key: %w", err)
	case !bytes.Equal(hash, k.hash):
		return "", &prego.Error{Code: prego.CodeIdempotencyConflict, Field: "Idempotency-Key", Message: "was sent with another request"}
	}
	return id, nil
}

// keep stores the key with the id of the created object. On errKeyKept another
// request was first, and the transaction must be rolled back.
func (k keyed) keep(ctx context.Context, tx *txn, id string) error {
	if k.key == "" {
		return nil
	}
	return change(ctx, tx, errKeyKept, sqlKeepKey, k.by, k.key, k.hash, id)
}

// once runs create, which returns the id of what it created, in a transaction, unless an
// earlier request with this key did so already; then it reads the created object. A rejection
// may only mean that the same request has been committed in the meantime, so the key is
// looked up again.
func once[T any](ctx context.Context, s *Store, k keyed, read func(context.Context, string) (T, error), create func(tx *txn) (id string, err error)) (v T, created bool, err error) {
	id, err := k.createdBefore(ctx, s.pool)
	if err == nil && id == "" {
		err = s.inTx(ctx, "create "+k.kind, func(tx *txn) error {
			if id, err = create(tx); err != nil {
				return err
			}
			return k.keep(ctx, tx, id)
		})
		created = err == nil
	}
	if err != nil {
		before, e := k.createdBefore(ctx, s.pool)
		if e != nil || before == "" {
			return v, false, cmp.Or(e, err)
		}
		id = before
	}
	v, err = read(ctx, id)
	return v, created, err
}
