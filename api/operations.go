package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// startPatience is the time limit for starting a run. It does not end with the request:
// even if the caller hangs up, the row was accepted.
const startPatience = 5 * time.Second

func startContext(c echo.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.Request().Context()), startPatience)
}

// notStarted logs that the run of an accepted request could not be started or signalled. The request
// stays accepted: a look, a sweep or the reconciliation starts its run.
func (a *API) notStarted(c echo.Context, workflowID string, err error) {
	a.d.Log.Warn("run not started; the worker will start it", zap.String("request_id", requestID(c)),
		zap.String("workflow_id", workflowID), zap.String("error", prego.Redact(err.Error())))
}

// Reconcile starts a reconciliation now.
func (a *API) Reconcile(c echo.Context, _ ReconcileParams) error {
	return a.startWorkflow(c, "reconciliation not started", a.d.Runs.StartReconcile)
}

// startWorkflow answers with the workflow that start started; failure is what is logged if it did not.
func (a *API) startWorkflow(c echo.Context, failure string, start func(context.Context) (id string, err error)) error {
	ctx, cancel := startContext(c)
	defer cancel()
	id, err := start(ctx)
	if err != nil {
		a.d.Log.Warn(failure, zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
		return prego.Errorf(prego.CodeNotReady, "the workflow engine does not answer; try again")
	}
	return c.JSON(http.StatusAccepted, WorkflowStarted{WorkflowId: id, Operation: a.timedOperation(c, id)})
}

// GetOperation shows the status of an operation.
func (a *API) GetOperation(c echo.Context, id string) error {
	return show(c, a.d.Store.Operation, id, operationView)
}

func operationView(o ops.Operation) Operation {
	out := viewOf[Operation](o)
	out.Href, out.Target.Kind, out.Target.Id = "/v1/operations/"+url.PathEscape(o.ID), o.TargetKind, o.TargetID
	return out
}

// operation is the operation of an accepted request. The request stays accepted even if
// its rows can't be read now.
func (a *API) operation(c echo.Context, id string) *Operation {
	o, err := a.d.Store.Operation(c.Request().Context(), id)
	if err != nil {
		kind, target, _ := strings.Cut(id, "/")
		o = ops.Operation{ID: id, Kind: kind, Status: ops.OperationRunning, TargetKind: kind, TargetID: target}
		a.d.Log.Warn("an operation is not shown", zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
	}
	return new(operationView(o))
}

// timedOperation is an operation of a workflow without a row per request.
func (a *API) timedOperation(c echo.Context, workflowID string) *Operation {
	return a.operation(c, workflowID+"@"+strconv.FormatInt(time.Now().UnixMilli(), 10))
}

// Healthz answers that the process is alive.
func (*API) Healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, Health{Status: "ok"})
}

// checkPatience is the time limit of one readiness probe, for all checks together.
const checkPatience = 3 * time.Second

// Readyz reports what is not ready. The checks run in parallel, so that a hanging check
// neither delays the others nor gets them blamed.
func (a *API) Readyz(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), checkPatience)
	defer cancel()
	results := make([]error, len(a.d.Checks))
	var wg sync.WaitGroup
	for i, check := range a.d.Checks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			results[i] = check.Run(ctx)
		}()
	}
	processes, unread := a.d.Store.Processes(ctx) // which do not decide whether this API is ready
	wg.Wait()
	out, status := Readiness{Ready: true, Checks: map[string]string{}}, http.StatusOK
	if unread == nil {
		out.Processes = &map[string]string{}
	}
	for _, p := range processes {
		(*out.Processes)[p.Process] = running(p)
	}
	for i, check := range a.d.Checks {
		out.Checks[check.Name] = "ok"
		if err := results[i]; err != nil {
			out.Ready, status = false, http.StatusServiceUnavailable
			out.Checks[check.Name] = a.notReady(check.Name, err)
		}
	}
	return c.JSON(status, out)
}

// running is "ok", or why processes of a kind are not. Errors are for those who may read them (prego status).
func running(p ops.ProcessState) string {
	switch {
	case p.SeenAt == nil:
		return "none has run yet"
	case p.Silent:
		return "none runs since " + p.SeenAt.UTC().Format(time.RFC3339)
	case p.Error != "":
		return "is not ready"
	}
	return "ok"
}

func (a *API) notReady(name string, err error) string {
	a.d.Log.Warn("not ready", zap.String("check", name), zap.String("error", prego.Redact(err.Error())))
	var coded *prego.Error
	if errors.As(err, &coded) {
		return coded.Message
	}
	return "does not answer"
}

// Metrics serves the metrics for Prometheus.
