package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// audited passes the caller of a change to the store, and ensures that each accepted request has an audit
// entry.
func (a *API) audited(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		op := a.contract.operation(c)
		if r.Method == http.MethodGet || op == nil || op.changesNothing {
			return next(c)
		}
		source := auditSource(c, op)
		inEach(c, func(ctx context.Context) context.Context { return ops.WithAuditSource(ctx, source) })
		if dryRun(c) {
			return next(c)
		}
		c.Response().Before(func() {
			if c.Response().Status < http.StatusBadRequest {
				a.noteRequest(c, source)
			}
		})
		return next(c)
	}
}

// auditSource is what the audit holds of who sent a request.
func auditSource(c echo.Context, op *operation) ops.AuditSource {
	p := caller(c)
	return ops.AuditSource{
		Actor: p.PrincipalID, ActorName: p.By(), Role: strings.Join(p.Roles(), " "), From: Address(c.Request()), RequestID: requestID(c),
		Operation: op.OperationID,
	}
}

// about is the object in a request's path.
func about(c echo.Context) (kind, id string) {
	if names := c.ParamNames(); len(names) > 0 {
		last := names[len(names)-1]
		return strings.TrimSuffix(last, "_id"), c.Param(last)
	}
	return "request", ""
}

// noteRequest writes an entry for a request that has none. If the database cannot be used at the
// moment, the entry is written later: the change itself is already made.
func (a *API) noteRequest(c echo.Context, source ops.AuditSource) {
	kind, id := about(c)
	org := prego.OrgID(c.Param("org_id"))
	note := func(ctx context.Context) error {
		return a.d.Store.NoteRequest(ops.WithAuditSource(ctx, source), kind, id, org)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), recordWithin)
	defer cancel()
	if err := note(ctx); err != nil {
		a.d.Log.Warn("a request is not in the audit yet", zap.String("request_id", source.RequestID), zap.String("subject", source.Actor),
			zap.String("operation", source.Operation), zap.String("error", prego.Redact(err.Error())))
		a.keys.Keep("audit\x00"+source.RequestID, note)
	}
}

// ListAudit shows a page of the audit.
func (a *API) ListAudit(c echo.Context, _ ListAuditParams) error {
	return list(c, "entries", store.AuditEntries.In(a.d.Store), auditView)
}

// GetAuditEntry shows an entry, with what its hash was computed from.
func (a *API) GetAuditEntry(c echo.Context, id int64) error {
	e, err := a.d.Store.GetAuditEntry(c.Request().Context(), id)
	return answer(c, http.StatusOK, e, err, func(e ops.AuditEntry) AuditEntry {
		v := auditView(e)
		v.Encoding = new(e.Encoding())
		if e.PrevHash != nil {
			v.PrevHash = new(hex.EncodeToString(e.PrevHash))
		}
		return v
	})
}

// GetAuditHead shows the end of the chain.
func (a *API) GetAuditHead(c echo.Context) error {
	h, err := a.d.Store.AuditHead(c.Request().Context())
	return answer(c, http.StatusOK, h, err, auditHeadView)
}

// verifyAtOnce is how many entries are verified when a request sets no limit.
const verifyAtOnce = 10_000

// VerifyAudit verifies part of the chain.
func (a *API) VerifyAudit(c echo.Context, p VerifyAuditParams) error {
	check := ops.AuditCheck{From: deref(p.From), Limit: verifyAtOnce}
	if p.Limit != nil {
		check.Limit = *p.Limit
	}
	if p.Head != nil {
		head, err := ops.ParseAuditHead(*p.Head)
		if err != nil {
			return err
		}
		check.Head = &head
	}
	v, err := a.d.Store.VerifyAudit(c.Request().Context(), check)
	return answer(c, http.StatusOK, v, err, verificationView)
}

func verificationView(v ops.AuditVerification) AuditVerification {
	out := viewOf[AuditVerification](v)
	out.Ok, out.Head = len(v.Problems) == 0, auditHeadView(v.Head)
	return out
}

func auditHeadView(h ops.AuditHead) AuditHead { return AuditHead{Seq: h.Seq, Hash: h.Hash.String()} }

func auditView(e ops.AuditEntry) AuditEntry {
	out := viewOf[AuditEntry](e)
	out.Old, out.New = columns(e.Old), columns(e.New)
	if e.Hash != nil {
		out.Hash = new(hex.EncodeToString(e.Hash))
	}
	return out
}

// columns are a row's columns, nil for none.
func columns(text *string) *map[string]any {
	if text == nil {
		return nil
	}
	out := map[string]any{}
	d := json.NewDecoder(strings.NewReader(*text))
	d.UseNumber()
	_ = d.Decode(&out) // it is an object of Postgres
	return &out
}
