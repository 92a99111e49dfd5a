package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

const (
	principalKey = "api.principal"
	requestIDKey = "api.request_id"
	callerKey    = "api.caller" // the request's context without the time limit
)

func caller(c echo.Context) access.Principal {
	p, _ := c.Get(principalKey).(access.Principal)
	return p
}

func requestID(c echo.Context) string {
	id, _ := c.Get(requestIDKey).(string)
	return id
}

// open are the paths that need no token.
var open = map[string]bool{
	"/healthz": true, "/readyz": true, "/openapi.yaml": true, "/openapi.json": true, "/docs": true,
	"/docs/operations/:operation": true, "/docs/errors/:code": true,
	"/docs/style.css": true, "/docs/search.js": true, "/v1/login-methods": true, "/v1/token-exchange": true,
}

// authenticate runs before anything in the request is looked at: unauthenticated
// callers must not learn what exists.
func (a *API) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if open[c.Path()] {
			// They have their own rate limit, so that a caller who guesses tokens
			// does not block the probes that share its address.
			if err := a.limit(c, budgetOf("open", r)); err != nil && c.Path() != "/healthz" {
				return err
			}
			return next(c)
		}
		if p, ok := r.Context().Value(insideKey{}).(access.Principal); ok { // counted by who asks for it
			c.Set(principalKey, p)
			return a.permitted(c, p, next)
		}
		shareable(c, a.contract.operation(c))
		p, err := a.principal(c)
		if err != nil {
			if limited := a.limit(c, budgetOf("address", r)); limited != nil {
				return limited
			}
			return err
		}
		c.Set(principalKey, p)
		budgets := budgetsOf(p)
		if p.SharesProgress() { // a visitor, who must not use up what the account may send
			budgets = append(budgets[:1], budgetOf("address", r)...)
		}
		if err := a.limit(c, budgets); err != nil {
			return err
		}
		return a.permitted(c, p, next)
	}
}

// shareable lets pages of other origins read an operation that takes a token in its URL: that token is all that the
// request is allowed by, and no cookie is.
func shareable(c echo.Context, op *operation) {
	if op != nil && op.tokenInURL {
		h := c.Response().Header()
		h.Set(echo.HeaderAccessControlAllowOrigin, "*")
		h.Set(echo.HeaderReferrerPolicy, "no-referrer")
	}
}

// permitted refuses what no grant of the caller includes, and limits the request to the orgs where one does. Nobody may
// change anything while the database is not trusted.
func (a *API) permitted(c echo.Context, p access.Principal, next echo.HandlerFunc) error {
	op := a.contract.operation(c)
	m := c.Request().Method
	changes := m != http.MethodGet && m != http.MethodOptions && (op == nil || !op.changesNothing)
	if op != nil {
		if err := a.limited(c, op, p); err != nil {
			return err
		}
		reach := p.Reach(op.capability)
		if op.decidesItself() {
			reach = access.Reach{Everywhere: true}
		}
		if reach.None() {
			return prego.Errorf(prego.CodeForbidden, "this requires the capability %s, which no grant of yours includes", op.capability)
		}
		if err := fresh(c, op, p); err != nil {
			return err
		}
		reach.ReadOnly = !changes
		inEach(c, func(ctx context.Context) context.Context { return access.WithReach(ctx, reach) })
	}
	if changes && a.d.Trusted != nil {
		if err := a.d.Trusted(); err != nil {
			return err
		}
	}
	return next(c)
}

// tokenInURL is the parameter of operations that take a token in the URL, because EventSource can send no headers.
const tokenInURL = "access_token"

// principal authenticates a request by its header or, if the operation allows that, by a token in its URL. The caveat
// of such a token excludes everything else.
func (a *API) principal(c echo.Context) (access.Principal, error) {
	r, op := c.Request(), a.contract.operation(c)
	scheme, raw, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	bearer := strings.EqualFold(scheme, "bearer") && raw != ""
	inURL, takes := r.URL.Query().Get(tokenInURL), op != nil && op.tokenInURL
	switch {
	case inURL != "" && !takes && !bearer:
		return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated,
			"URLs are logged, so that only the progress of a tenant takes a token there: send it as Authorization: Bearer")
	case inURL != "" && takes && bearer:
		return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the request has two tokens: send one")
	case inURL != "" && takes:
		p, err := a.d.Auth(r.Context(), inURL)
		if err == nil && !p.SharesProgress() {
			err = prego.Errorf(prego.CodeUnauthenticated,
				"URLs are logged, so that only a token with the caveat progress_of may be in one: revoke this token, and narrow another")
		}
		return p, err
	case !bearer:
		return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "a bearer token is required")
	}
	return a.d.Auth(r.Context(), raw)
}

// inEach adds to the contexts of a request: with its time limit, and without.
func inEach(c echo.Context, add func(context.Context) context.Context) {
	c.SetRequest(c.Request().WithContext(add(c.Request().Context())))
	if base, ok := c.Get(callerKey).(context.Context); ok {
		c.Set(callerKey, add(base))
	}
}

// within refuses objects outside of the orgs where the caller may do what the request asks for.
func (a *API) within(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if reach, ok := access.ReachOf(c.Request().Context()); ok {
			if err := a.inReach(c, a.contract.operation(c), reach); err != nil {
				return outOfReach{err}
			}
		}
		return next(c)
	}
}

// headKey marks the context of a HEAD request.
type headKey struct{}

// headAsGet answers HEAD like GET; the server leaves out the body.
func headAsGet(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			r = r.WithContext(context.WithValue(r.Context(), headKey{}, true))
			r.Method = http.MethodGet
		}
		h.ServeHTTP(w, r)
	})
}

// limit counts a request against its budgets, and reports what is left in the answer, as
// draft-ietf-httpapi-ratelimit-headers-11 has it.
func (a *API) limit(c echo.Context, budgets []budget) error {
	left, err := a.limiter.allow(c.Request().Context(), budgets)
	if left.policy == "" { // not counted
		return err
	}
	h := c.Response().Header()
	h.Set("RateLimit-Policy", a.limiter.policies(budgets))
	h.Set("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", left.policy, left.left, int(math.Ceil(left.reset.Seconds()))))
	return err
}

// methods answers OPTIONS, and lists HEAD wherever there is GET.
func methods(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		allow, ok := c.Get(echo.ContextKeyHeaderAllow).(string)
		if !ok || allow == "" {
			return next(c)
		}
		if strings.Contains(allow, http.MethodGet) && !strings.Contains(allow, http.MethodHead) {
			allow += ", " + http.MethodHead
			c.Set(echo.ContextKeyHeaderAllow, allow)
		}
		if c.Request().Method == http.MethodOptions {
			c.Response().Header().Set(echo.HeaderAllow, allow)
			return c.NoContent(http.StatusNoContent)
		}
		return next(c)
	}
}

// patience is the time limit of a request. It is below the listener's write timeout, so
// that the refusal still reaches the caller.
const patience = 20 * time.Second

// observe names, limits, times and logs each request.
func (a *API) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		id := uuid.NewString()
		c.Set(requestIDKey, id)
		of, traced := c.Request().Context(), func(string, string, int) {}
		if path := c.Request().URL.Path; a.d.Trace != nil && !open[path] && !strings.HasPrefix(path, "/docs/") {
			of, traced = a.d.Trace(c.Request())
		}
		c.Set(callerKey, of)
		ctx, cancel := context.WithTimeout(of, patience)
		defer cancel()
		asked := c.Request().Method
		if ctx.Value(headKey{}) != nil {
			asked = http.MethodHead
		}
		c.SetRequest(c.Request().WithContext(ctx))
		h := c.Response().Header()
		h.Set(echo.HeaderXRequestID, id)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		if err := next(c); err != nil {
			c.Error(err)
		}
		route := c.Path()
		if route == "" {
			route = "none"
		}
		status := c.Response().Status
		traced(method(asked), route, status)
		a.seconds.WithLabelValues(route, method(asked), strconv.Itoa(status)).Observe(time.Since(began).Seconds())
		if !open[route] {
			a.d.Log.Info("request", zap.String("request_id", id), zap.String("method", method(asked)), zap.String("route", route),
				zap.Int("status", status), zap.String("principal", caller(c).PrincipalID), zap.String("from", Network(c.Request())), zap.Duration("took", time.Since(began)))
		}
		return nil
	}
}

// method keeps the metric's labels bounded when callers invent methods.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

// panicError is a handler's panic and its location.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func recoverPanics(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if r := recover(); r != nil {
				if r == http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
					panic(r)
				}
				err = &panicError{value: r, stack: debug.Stack()}
			}
		}()
		return next(c)
	}
}
