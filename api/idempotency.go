package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
)

// KeyStore keeps requests that were sent with an Idempotency-Key.
type KeyStore interface {
	BeginRequest(ctx context.Context, subject, key string, hash []byte, lease time.Duration) (*prego.KeptAnswer, error)
	AnswerRequest(ctx context.Context, subject, key string, a prego.KeptAnswer) error
	EndRequest(ctx context.Context, subject, key string, refused bool) error
}

// How a repeated request is treated (x-idempotency).
const (
	replayed   = ""      // answered as before
	keptByRow  = "row"   // the key is kept in the transaction that makes the row
	runsAgain  = "again" // repeating it is harmless, and its answer is not kept
	answerOnce = "once"  // refused: the answer is a stream, or holds a secret
)

const (
	// keyLease is longer than any request but those that run commands takes.
	keyLease = time.Minute
	// keyPatience is how long a repeated request waits for the first one.
	keyPatience = 10 * time.Second
)

// once has requests with an Idempotency-Key run once. A key is given back when its
// request is refused.
func (a *API) once(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		op, key := a.contract.operation(c), r.Header.Get("Idempotency-Key")
		if op == nil || key == "" || r.Method != http.MethodPost || op.idempotency == keptByRow {
			return next(c)
		}
		body, _ := c.Get(bodyKey).([]byte)
		hash := sha256.Sum256(append([]byte(r.URL.RequestURI()+"\x00"), body...))
		lease := keyLease
		if op.idempotency == answerOnce {
			lease += longest
		}
		subject := caller(c).Subject
		kept, err := a.beginRequest(r.Context(), subject, key, hash[:], lease)
		switch {
		case err != nil:
			return err
		case kept != nil && kept.Body == nil:
			return &prego.Error{Code: prego.CodeIdempotencyConflict, Field: "Idempotency-Key", Message: "was sent before; this request's answer is not told twice"}
		case kept != nil:
			return c.JSONBlob(kept.Status, kept.Body)
		}
		answer := &recorder{ResponseWriter: c.Response().Writer, keep: op.idempotency == replayed}
		c.Response().Writer = answer
		ended := false
		defer func() {
			c.Response().Writer = answer.ResponseWriter
			if !ended {
				a.endRequest(c, subject, key, op, nil)
			}
		}()
		if err = next(c); err == nil || c.Response().Header().Get(auditHeader) != "" {
			ended = true
			a.endRequest(c, subject, key, op, answer)
		}
		return err
	}
}

// beginRequest waits for the first request of a key.
func (a *API) beginRequest(ctx context.Context, subject, key string, hash []byte, lease time.Duration) (*prego.KeptAnswer, error) {
	for deadline, wait := time.Now().Add(keyPatience), 20*time.Millisecond; ; wait *= 2 {
		kept, err := a.d.Keys.BeginRequest(ctx, subject, key, hash, lease)
		if prego.CodeOf(err) != prego.CodeRequestUnderWay || time.Now().Add(wait).After(deadline) {
			return kept, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// endRequest keeps what a request was answered, or, with no answer, gives its key back.
func (a *API) endRequest(c echo.Context, subject, key string, op *operation, answer *recorder) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), recordWithin)
	defer cancel()
	var err error
	switch {
	case answer == nil:
		err = a.d.Keys.EndRequest(ctx, subject, key, true)
	case op.idempotency == runsAgain:
		err = a.d.Keys.EndRequest(ctx, subject, key, false)
	case op.idempotency == answerOnce:
		err = a.d.Keys.AnswerRequest(ctx, subject, key, prego.KeptAnswer{Status: http.StatusOK})
	default:
		err = a.d.Keys.AnswerRequest(ctx, subject, key, prego.KeptAnswer{Status: c.Response().Status, Body: answer.body.Bytes()})
	}
	if err != nil {
		a.d.Log.Warn("what was answered to a key is not kept", zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
	}
}

// recorder keeps what is written through it.
type recorder struct {
	http.ResponseWriter
	keep bool
	body bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.keep {
		r.body.Write(b)
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
