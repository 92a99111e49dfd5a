package api

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
)

// How a repeated request is handled (x-idempotency).
const (
	replayed   = ""      // the stored answer is returned
	keptByRow  = "row"   // the key is stored in the transaction that creates the row
	runsAgain  = "again" // repeating it is harmless, and its answer is not stored
	answerOnce = "once"  // the key is rejected: the answer is a stream, or holds a secret
)

const (
	// keyLease is longer than any request, except commands.
	keyLease = time.Minute
	// keyPatience is how long a repeated request waits for the first one.
	keyPatience = 10 * time.Second
	// endAgain is how often it is tried to end requests that could not be ended.
	endAgain = 500 * time.Millisecond
)

// once runs requests with an Idempotency-Key once. If the request is rejected, its key
// is released.
func (a *API) once(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		op, key := a.contract.operation(c), r.Header.Get("Idempotency-Key")
		if op == nil || key == "" || r.Method != http.MethodPost || op.idempotency == keptByRow || dryRun(c) {
			return next(c)
		}
		body, _ := c.Get(bodyKey).([]byte)
		sent := append([]byte(r.URL.RequestURI()+"\x00"), body...)
		lease := keyLease
		if op.long || op.idempotency == answerOnce {
			lease += longest
		}
		subject, until := caller(c).PrincipalID, time.Now().Add(lease)
		kept, err := a.beginRequest(r.Context(), subject, key, sent, lease)
		switch {
		case err != nil:
			return err
		case kept != nil && kept.Body == nil:
			return &prego.Error{Code: prego.CodeIdempotencyConflict, Field: "Idempotency-Key", Message: "was sent before; this request's answer is not returned twice"}
		case kept != nil:
			return c.JSONBlob(kept.Status, kept.Body)
		}
		answer := &recorder{ResponseWriter: c.Response().Writer, keep: op.idempotency == replayed}
		c.Response().Writer = answer
		ended := false
		defer func() {
			c.Response().Writer = answer.ResponseWriter
			if !ended {
				a.endRequest(c, subject, key, op, nil, until)
			}
		}()
		if err = next(c); err == nil || c.Response().Header().Get(auditHeader) != "" {
			ended = true
			a.endRequest(c, subject, key, op, answer, until)
		}
		return err
	}
}

// beginRequest waits for the first request with a key.
func (a *API) beginRequest(ctx context.Context, subject, key string, sent []byte, lease time.Duration) (*prego.KeptAnswer, error) {
	for deadline, wait := time.Now().Add(keyPatience), 20*time.Millisecond; ; wait *= 2 {
		kept, err := a.d.Store.BeginRequest(ctx, subject, key, sent, lease)
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

// endRequest stores a request's answer or, without one, releases its key. If the database
// cannot be used at the moment, that is done when it can, as long as the key is leased: the
// same request would be reported as under way until then.
func (a *API) endRequest(c echo.Context, subject, key string, op *operation, answer *recorder, until time.Time) {
	end := func(ctx context.Context) error { return a.d.Store.EndRequest(ctx, subject, key, true) }
	switch {
	case answer == nil:
	case op.idempotency == runsAgain:
		end = func(ctx context.Context) error { return a.d.Store.EndRequest(ctx, subject, key, false) }
	case op.idempotency == answerOnce:
		end = func(ctx context.Context) error {
			return a.d.Store.AnswerRequest(ctx, subject, key, prego.KeptAnswer{Status: http.StatusOK})
		}
	default:
		told := prego.KeptAnswer{Status: c.Response().Status, Body: answer.body.Bytes()}
		end = func(ctx context.Context) error { return a.d.Store.AnswerRequest(ctx, subject, key, told) }
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), recordWithin)
	defer cancel()
	err := end(ctx)
	if err == nil {
		return
	}
	a.d.Log.Warn("an idempotent answer is not stored yet", zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
	a.keys.Keep(subject+"\x00"+key, func(ctx context.Context) error {
		if time.Now().After(until) {
			return nil // another request may hold the key by now
		}
		return end(ctx)
	})
}

// recorder records everything written through it.
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
