package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
)

// expectedWithin is for how long the expectations of waiting tenants are shared by those who follow them.
const expectedWithin = 5 * time.Second

// expectations are when waiting tenants may have their places, read once for all who follow them.
type expectations struct {
	mu   sync.Mutex
	read time.Time
	of   map[prego.TenantID]*time.Time
}

func (e *expectations) get(ctx context.Context, id prego.TenantID, read func(context.Context) (map[prego.TenantID]*time.Time, error)) (*time.Time, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.read) >= expectedWithin {
		of, err := read(ctx)
		if err != nil {
			return nil, err
		}
		e.read, e.of = time.Now(), of
	}
	return e.of[id], nil
}

// tenantProgress reads how far a tenant is, as its customer's visitors may see it.
func (a *API) tenantProgress(ctx context.Context, id prego.TenantID) (out TenantProgress, err error) {
	t, err := a.d.Store.GetTenant(ctx, string(id))
	if err != nil {
		return out, err
	}
	out.State, out.RequestedAt = t.State, t.CreatedAt
	if out.Message, out.Finished = t.Progress(); t.State.HasSite() {
		out.SiteUrl = siteURL(t)
	}
	if t.WaitingSince != nil {
		out.ExpectedAt, err = a.expectations.get(ctx, t.TenantID, a.d.Store.Expectations)
	}
	return out, err
}

// GetTenantProgress shows how far a tenant is, or streams it.
func (a *API) GetTenantProgress(c echo.Context, id TenantID, p GetTenantProgressParams) error {
	if !wantsStream(c.Request()) {
		return show(c, a.tenantProgress, id, func(t TenantProgress) TenantProgress { return t })
	}
	if deref(p.LastEventID) == finishedEvent {
		return c.NoContent(http.StatusNoContent) // EventSource connects again until it gets this
	}
	return a.followTenant(c, id)
}

// finishedEvent is the id of the last event of a stream.
const finishedEvent = "finished"

// followTenant sends how far a tenant is as server-sent events: now, after each of its events and, because estimates
// change without one, with each keep-alive.
func (a *API) followTenant(c echo.Context, id prego.TenantID) error {
	by := caller(c)
	if by.SharesProgress() { // visitors share an account
		by = access.Principal{PrincipalID: by.CredentialID}
	}
	leave, err := a.visitors.enter(by)
	if err != nil {
		return err
	}
	ctx, done, err := a.streamIn(c, leave, false)
	if err != nil {
		return err
	}
	defer done()
	sub, err := a.Subscribe(ctx, ops.EventQuery{EventFilter: ops.EventFilter{IDs: []string{string(id)}}})
	if err != nil {
		return err
	}
	now, err := a.tenantProgress(ctx, id)
	if err != nil {
		return err
	}
	w, control := c.Response(), http.NewResponseController(c.Response())
	w.Header().Set(echo.HeaderContentType, "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	quiet := time.NewTicker(feedKeepAlive)
	defer quiet.Stop()
	for sent := []byte(nil); ; now, err = a.tenantProgress(ctx, id) {
		data, unsaid := json.Marshal(now)
		line := ": keep-alive\n\n"
		if err == nil && unsaid == nil && !bytes.Equal(data, sent) {
			if line, sent = fmt.Sprintf("retry: 3000\ndata: %s\n\n", data), data; now.Finished {
				line = "id: " + finishedEvent + "\n" + line
			}
		}
		_ = control.SetWriteDeadline(time.Now().Add(sendWithin))
		if _, err := w.Write([]byte(line)); err != nil || control.Flush() != nil || now.Finished {
			return nil // the caller left, or it is over
		}
		select {
		case _, ok := <-sub.C:
			if !ok {
				return nil
			}
		case <-quiet.C:
		}
	}
}
