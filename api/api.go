// Package api is the HTTP side that callers and operators see. openapi.yaml is
// the truth; types and routes are generated from it. Requests are authenticated,
// checked, written in one transaction, and handed to the workflow engine: a
// request that was accepted is done even if everything dies right after.
package api

import (
	"context"
	_ "embed" // the contract and its page
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/prego/prego"
)

//go:embed openapi.yaml
var spec []byte

// Store is the part of Postgres that the API uses.
type Store interface {
	CreateServer(ctx context.Context, r prego.CreateServerRequest, by string) (prego.Server, bool, error)
	ImportServer(ctx context.Context, r prego.ImportServerRequest, by string) (prego.Server, bool, error)
	GetServer(ctx context.Context, id string) (prego.Server, error)
	ServerEvents(ctx context.Context, id string) ([]prego.ServerEvent, error)
	ListServers(ctx context.Context, f prego.ServerFilter) ([]prego.Server, string, error)
	RequestRetry(ctx context.Context, id, by string) (prego.Server, error)
	RequestDecommission(ctx context.Context, id, by string) (prego.Server, error)
}

// Orchestrator starts runs. A start that fails is made up for by the reconciler:
// the row is what counts.
type Orchestrator interface {
	StartProvision(ctx context.Context, s prego.Server) error
	StartDecommission(ctx context.Context, serverID string) error
	StartReconcile(ctx context.Context) (workflowID string, err error)
	RunURL(workflowID string) string
}

// Principal is an authenticated caller.
type Principal struct {
	Subject  string
	Operator bool // may change things; others may look
}

// Authenticator checks bearer tokens; its refusals are coded.
type Authenticator interface {
	Authenticate(ctx context.Context, raw string) (Principal, error)
}

// Importer issues what an existing server is enrolled with.
type Importer interface {
	IssueImport(ctx context.Context, s prego.Server) (bootstrap string, err error)
}

// Check is one condition of readiness.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Deps are what an API is made of.
type Deps struct {
	Store        Store
	Orchestrator Orchestrator
	Auth         Authenticator
	Importer     Importer
	Checks       []Check
	Log          *zap.Logger
	Registry     *prometheus.Registry
	// RatePerSecond and RateBurst bound each caller.
	RatePerSecond float64
	RateBurst     int
}

// API serves callers.
type API struct {
	d       Deps
	echo    *echo.Echo
	limiter *callerLimiter
	seconds *prometheus.HistogramVec
}

// New makes an API.
func New(d Deps) *API {
	a := &API{d: d, limiter: newCallerLimiter(d.RatePerSecond, d.RateBurst)}
	a.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "prego_api_request_seconds", Help: "Seconds per request, by route, method and status.", Buckets: []float64{.002, .01, .05, .2, 1, 5},
	}, []string{"route", "method", "status"})
	d.Registry.MustRegister(a.seconds)
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = a.refuse
	e.Pre(a.observe)
	e.Use(recoverPanics, a.authenticate)
	RegisterHandlers(e, a)
	page, err := renderDocs(spec)
	if err != nil {
		panic("api: the embedded contract renders: " + err.Error())
	}
	e.GET("/openapi.yaml", func(c echo.Context) error { return c.Blob(http.StatusOK, "application/yaml", spec) })
	e.GET("/docs", func(c echo.Context) error { return c.HTMLBlob(http.StatusOK, page) })
	a.echo = e
	return a
}

// Handler serves the API.
func (a *API) Handler() http.Handler { return a.echo }

// Serve serves on a listener until ctx ends, then drains.
func (a *API) Serve(ctx context.Context, l net.Listener, drain time.Duration) error {
	srv := &http.Server{
		Handler: a.echo, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 90 * time.Second, MaxHeaderBytes: 32 << 10, ErrorLog: zap.NewStdLog(a.d.Log.Named("http")),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("api: %w", err)
	case <-ctx.Done():
	}
	shut, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	return srv.Shutdown(shut)
}

const (
	principalKey = "api.principal"
	requestIDKey = "api.request_id"
)

func caller(c echo.Context) Principal {
	p, _ := c.Get(principalKey).(Principal)
	return p
}

// open are the paths that need no token.
var open = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true, "/openapi.yaml": true, "/docs": true}

// authenticate comes before anything of the request is looked at. What there is
// and what not is nobody's business who may not look.
func (a *API) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if open[c.Path()] {
			return next(c)
		}
		from := "address " + remoteIP(r)
		scheme, raw, ok := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
		if !ok || !strings.EqualFold(scheme, "bearer") || raw == "" {
			if err := a.limiter.allow(from); err != nil {
				return err
			}
			return prego.Errorf(prego.CodeUnauthenticated, "a bearer token is required")
		}
		p, err := a.d.Auth.Authenticate(r.Context(), raw)
		if err != nil {
			if limited := a.limiter.allow(from); limited != nil {
				return limited
			}
			return err
		}
		if err := a.limiter.allow("subject " + p.Subject); err != nil {
			return err
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead && !p.Operator {
			return prego.Errorf(prego.CodeForbidden, "this takes the role operator")
		}
		c.Set(principalKey, p)
		return next(c)
	}
}

func remoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// observe names, times and logs each request.
func (a *API) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		id := uuid.NewString()
		c.Set(requestIDKey, id)
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		c.Response().Header().Set("Cache-Control", "no-store")
		c.Response().Header().Set("X-Content-Type-Options", "nosniff")
		if err := next(c); err != nil {
			c.Error(err)
		}
		route := c.Path()
		if route == "" {
			route = "none"
		}
		status := c.Response().Status
		a.seconds.WithLabelValues(route, method(c.Request().Method), strconv.Itoa(status)).Observe(time.Since(began).Seconds())
		if !open[route] {
			a.d.Log.Info("request", zap.String("request_id", id), zap.String("method", c.Request().Method), zap.String("route", route),
				zap.Int("status", status), zap.String("subject", caller(c).Subject), zap.Duration("took", time.Since(began)))
		}
		return nil
	}
}

// method keeps the metric's labels bounded, whatever methods are made up.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

func recoverPanics(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if r := recover(); r != nil {
				if r == http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
					panic(r)
				}
				err = fmt.Errorf("panic: %v", r)
			}
		}()
		return next(c)
	}
}

// statuses maps codes to HTTP, in this one place.
var statuses = map[prego.Code]int{
	prego.CodeInvalidField: http.StatusUnprocessableEntity, prego.CodeInvalidJSON: http.StatusBadRequest,
	prego.CodeUnknownField: http.StatusBadRequest, prego.CodeDuplicateField: http.StatusBadRequest,
	prego.CodeBodyTooLarge: http.StatusRequestEntityTooLarge, prego.CodeUnsupportedMedia: http.StatusUnsupportedMediaType,
	prego.CodeUnauthenticated: http.StatusUnauthorized, prego.CodeTokenExpired: http.StatusUnauthorized, prego.CodeForbidden: http.StatusForbidden,
	prego.CodeNotFound: http.StatusNotFound, prego.CodeServerNotFound: http.StatusNotFound, prego.CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	prego.CodeServerIDConflict: http.StatusConflict, prego.CodeServerTerminated: http.StatusConflict, prego.CodeInvalidTransition: http.StatusConflict,
	prego.CodeProviderUnknown: http.StatusUnprocessableEntity, prego.CodeProviderDisabled: http.StatusUnprocessableEntity, prego.CodeRegionNotServed: http.StatusUnprocessableEntity,
	prego.CodeRateLimited: http.StatusTooManyRequests, prego.CodeNotReady: http.StatusServiceUnavailable, prego.CodeInternal: http.StatusInternalServerError,
}

// refuse writes an error as a problem document.
func (a *API) refuse(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	id, _ := c.Get(requestIDKey).(string)
	var coded *prego.Error
	var routed *echo.HTTPError
	switch {
	case errors.As(err, &coded):
	case errors.As(err, &routed) && routed.Code == http.StatusNotFound:
		coded = prego.Errorf(prego.CodeNotFound, "there is nothing at %s; the contract is at /openapi.yaml", c.Request().URL.Path)
	case errors.As(err, &routed) && routed.Code == http.StatusMethodNotAllowed:
		coded = prego.Errorf(prego.CodeMethodNotAllowed, "this path does not take %s", method(c.Request().Method))
	case errors.As(err, &routed) && routed.Code == http.StatusBadRequest:
		coded = &prego.Error{Code: prego.CodeInvalidField, Field: parameterOf(routed), Message: "is not a valid value for this parameter"}
	default:
		a.d.Log.Error("request failed", zap.String("request_id", id), zap.Error(err))
		coded = prego.Errorf(prego.CodeInternal, "something went wrong here; quote the request_id when you report it")
	}
	status, ok := statuses[coded.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, "application/problem+json")
	switch status {
	case http.StatusUnauthorized:
		h.Set(echo.HeaderWWWAuthenticate, `Bearer realm="prego"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set(echo.HeaderRetryAfter, "1")
	}
	p := Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: string(coded.Code), Detail: optional(coded.Message), Field: optional(coded.Field), RequestId: optional(id)}
	if e := c.JSON(status, p); e != nil {
		a.d.Log.Debug("answer not delivered", zap.Error(e))
	}
}

// parameterOf finds the name in the generated code's message: "Invalid format for
// parameter limit: …".
func parameterOf(e *echo.HTTPError) string {
	text := fmt.Sprint(e.Message)
	if _, rest, ok := strings.Cut(text, "parameter "); ok {
		name, _, _ := strings.Cut(rest, ":")
		name, _, _ = strings.Cut(name, " ")
		return name
	}
	return ""
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Healthz says that the process is alive.
func (a *API) Healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, Health{Status: "ok"})
}

// Readyz names what is not ready.
func (a *API) Readyz(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), 3*time.Second)
	defer cancel()
	out := Readiness{Ready: true, Checks: map[string]string{}}
	for _, check := range a.d.Checks {
		out.Checks[check.Name] = "ok"
		if err := check.Run(ctx); err != nil {
			out.Ready = false
			out.Checks[check.Name] = prego.Redact(err.Error())
		}
	}
	if !out.Ready {
		return c.JSON(http.StatusServiceUnavailable, out)
	}
	return c.JSON(http.StatusOK, out)
}

// Metrics are Prometheus's.
func (a *API) Metrics(c echo.Context) error {
	promhttp.HandlerFor(a.d.Registry, promhttp.HandlerOpts{}).ServeHTTP(c.Response(), c.Request())
	return nil
}
