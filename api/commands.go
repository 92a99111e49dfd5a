package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workload"
)

// ServerShell runs commands through the agents on hosts. A failure is a
// *server.CommandError, unless ctx ended.
type ServerShell interface {
	// Run calls onLine with each line as it is printed; stream is stdout or stderr.
	Run(ctx context.Context, addr string, c server.Command, timeout time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error)
}

// ServerContainers reaches the engines of hosts. A permanent error is a
// *server.ContainerError; for a missing container it is container_not_found.
type ServerContainers interface {
	ListContainers(ctx context.Context, serverID prego.ServerID, addr string) ([]server.ContainerInfo, error)
	// ContainerLogs calls line with each line, without the container's own secrets,
	// until line fails; tail is how many lines from the end to begin with.
	ContainerLogs(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role, name string, tail int, follow bool, line func(string) error) error
	RepairContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) ([]server.ContainerDrift, error)
}

const (
	// longest is the time limit of streams and repairs.
	longest = 15 * time.Minute
	// maxStreams bounds the concurrent streams of one process, and maxStreamsOfOne those of one caller. The last
	// streamsForOperators of a process are for operators.
	maxStreams, maxStreamsOfOne, streamsForOperators = 64, 24, 16
	// The same for streams of the progress of a tenant, which cost little, and the streams of one token.
	maxVisitors, maxVisitorsOfOne = 1000, 4
	// maxSimulations bounds the concurrent simulations of one process, and maxSimulationsOfOne those of one caller:
	// each may use a core for as long as a request lasts.
	maxSimulations, maxSimulationsOfOne, simulationsForOperators = 8, 2, 2
	// The same for exports: reports over a month's entries, and lists as CSV.
	maxExports, maxExportsOfOne, exportsForOperators = 8, 2, 2
	// sendWithin is the time for writing one event or line to the caller.
	sendWithin = 15 * time.Second
	// keepAlive is the interval of keep-alives on a quiet stream.
	keepAlive = 10 * time.Second
	// recordWithin is the time for recording an outcome, even if the caller has left.
	recordWithin = 5 * time.Second

	auditHeader = "Prego-Audit-Id"
	defaultTail = 100
)

// ListCommands lists the commands run on a server's host. Their output is shown to callers who may also read logs of
// the host: it has what customers wrote.
func (a *API) ListCommands(c echo.Context, id ServerID, _ ListCommandsParams) error {
	shown := caller(c).Reveals("command:logs")
	return within(c, a.d.Store.ProvisionState, "commands", store.Commands.In(a.d.Store), func(s server.AuditedCommand) Command {
		if !shown {
			s.Stdout, s.Stderr = "", ""
		}
		return viewOf[Command](s)
	}, "server_id", id)
}

// host reads a server whose host can be inspected. That includes a server that failed and was
// kept for debugging (direct-provisioning §3).
func (a *API) host(ctx context.Context, id prego.ServerID, byAgent bool) (server.ProvisionState, error) {
	st, err := a.d.Store.ProvisionState(ctx, id)
	switch {
	case err != nil:
		return st, err
	case st.Status != server.Active && st.Status != server.Failed:
		return st, prego.Errorf(prego.CodeServerNotReachable, "server %s is %s", id, st.Status)
	case st.Host == "":
		return st, prego.Errorf(prego.CodeServerNotReachable, "server %s has no address", id)
	case byAgent && st.AgentStatus != server.AgentConnected:
		return st, prego.Errorf(prego.CodeServerNotReachable, "the agent of server %s is %s", id, st.AgentStatus)
	}
	return st, nil
}

// stream admits a long request: its context ends after longest, with the process, and with the caller and the caller's
// access (watch) unless it is detached. done must be called at its end.
func (a *API) stream(c echo.Context, detached bool) (ctx context.Context, done func(), err error) {
	leave, err := a.streams.enter(caller(c))
	if err != nil {
		return nil, nil, err
	}
	return a.streamIn(c, leave, detached)
}

// streamIn is stream in a place that leave gives back.
func (a *API) streamIn(c echo.Context, leave func(), detached bool) (ctx context.Context, done func(), err error) {
	base, ok := c.Get(callerKey).(context.Context)
	if !ok {
		base = c.Request().Context()
	}
	if detached {
		base = context.WithoutCancel(base)
	}
	w := &watch{}
	if op := a.contract.operation(c); op != nil {
		w.capability, w.narrows = op.capability, slices.Contains(op.orgOf, orgOfReach)
	}
	watched, unwatch := a.watches.add(base, caller(c), w)
	if detached { // it ends as it would have; only the caller gets no more of it
		watched = context.WithValue(base, watchKey{}, w)
	}
	ctx, cancel := context.WithTimeout(watched, longest)
	stop := context.AfterFunc(a.ending, cancel)
	rc := http.NewResponseController(c.Response())
	// When the read deadline passes, the server considers the caller gone.
	_ = rc.SetReadDeadline(time.Now().Add(longest + time.Minute))
	_ = rc.SetWriteDeadline(time.Now().Add(longest + time.Minute))
	return ctx, func() { stop(); cancel(); unwatch(); leave() }, nil
}

// ExecOnServer runs a command on a server's host and streams its output.
func (a *API) ExecOnServer(c echo.Context, id ServerID, _ ExecOnServerParams) error {
	var in Exec
	if err := decode(c, &in); err != nil {
		return err
	}
	st, err := a.host(c.Request().Context(), id, true)
	if err != nil {
		return err
	}
	timeout := time.Minute
	if in.TimeoutSeconds != nil {
		timeout = time.Duration(*in.TimeoutSeconds) * time.Second
	}
	if err := a.d.Store.MayRun(c.Request().Context(), id, wire.CommandKind(in.Kind), in.Args); err != nil {
		if held, ok := errors.AsType[*store.Held](err); ok {
			err = prego.Errorf(held.Code, "%s", held.Message)
		}
		return err
	}
	at := org.SessionAt{ServerID: id, TenantID: deref(in.TenantId)}
	kind := wire.CommandKind(in.Kind)
	permit := policy.Permitted(kind, in.Args) // nil: the host refuses it
	if p := permit; p != nil && kind == wire.KindBench {
		if len(p.Sites) > 0 {
			at.Site = p.Sites[0]
		}
		if p.Verb == "set-config" && policy.Reserved(in.Args[3]) {
			return prego.Invalid("args", in.Args[3]+" is set by prego or the host, not by set-config")
		}
		if p.Verb == "configure" && strings.Contains(in.Args[3], wire.SiteOwnerFile) {
			return prego.Invalid("args", wire.SiteOwnerFile+" is set by prego")
		}
	}
	of, err := a.d.Store.SessionOwner(c.Request().Context(), at)
	if err != nil {
		return err
	}
	if permit != nil && consequence[permit.Effect] != impact.None {
		if err := a.d.Store.MayExec(c.Request().Context(), id, of.TenantID, consequence[permit.Effect]); err != nil {
			return err
		}
	}
	switch {
	case dryRun(c) && policy.Rules[kind] == nil:
		return kindUnknown
	case dryRun(c) && permit == nil:
		return notAllowed
	case dryRun(c): // it counts like the command
		_, err := a.session(c, of, org.SessionExec, string(id))
		return noContent(c, err)
	}
	// The command is waited for, so that its row gets an outcome.
	ctx, done, err := a.stream(c, true)
	if err != nil {
		return err
	}
	defer done()
	end, err := a.session(c, of, org.SessionExec, string(id))
	if err != nil {
		return err
	}
	defer end()
	cmd := server.Command{
		AuditID: "operator-" + uuid.NewString(), ServerID: id, Kind: string(in.Kind), Args: in.Args, Actor: prego.ActorOperator, By: requestedBy(c),
		Within: timeout,
	}
	_, cmd.Private = policy.Recorded(kind, in.Args)
	if kind == wire.KindBench { // no other knows whose data it touches
		cmd.TenantID = of.TenantID
	}
	if err := a.d.Store.BeginCommand(ctx, cmd); err != nil {
		return err
	}
	c.Response().Header().Set(auditHeader, cmd.AuditID)
	events := newEvents(c)
	stop := events.keepAlive()
	defer stop()
	defer a.cutOff(ctx, c, events)()
	masks := map[string]*lineMask{"stdout": {redact: cmd.Redact}, "stderr": {redact: cmd.Redact}}
	began := time.Now()
	outcome, failed := a.d.Shell.Run(ctx, st.Host, cmd, timeout, func(stream, line string) {
		if m := masks[stream]; m != nil {
			events.send(wire.EventProgress, ExecProgress{Stream: ExecProgressStream(stream), Line: m.line(line)})
		}
	})
	if failed != nil {
		outcome = server.UnknownOutcome(failed, time.Since(began))
	}
	outcome.Stdout, outcome.Stderr = cmd.RedactEnd(outcome.Stdout), cmd.RedactEnd(outcome.Stderr)
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	if err := a.d.Store.FinishCommand(record, cmd.AuditID, outcome); err != nil {
		a.d.Log.Error("a command's end is not in the audit", zap.String("audit_id", cmd.AuditID), zap.String("error", prego.Redact(err.Error())))
	}
	if failed != nil {
		refusal := fromHost(failed, cmd)
		if !events.begun() {
			return refusal
		}
		events.send(wire.EventError, a.problem(a.coded(refusal, c), c))
		return nil
	}
	result := ExecResult{AuditId: cmd.AuditID, DurationMs: outcome.Duration.Milliseconds(), Stdout: outcome.Stdout, Stderr: outcome.Stderr}
	if outcome.ExitCode != nil {
		result.ExitCode = *outcome.ExitCode
	}
	events.send(wire.EventResult, result)
	return nil
}

// requestedBy is a command's caller in its audit: the actor there is only a kind of caller, and names are not unique.
func requestedBy(c echo.Context) string {
	p := caller(c)
	if p.Name == p.PrincipalID || p.Name == "" {
		return p.PrincipalID
	}
	return p.Name + " (" + p.PrincipalID + ")"
}

// consequence is the impact of a command by its effect. What erases is decided by the last gate (MayRun).
var consequence = map[policy.Effect]impact.Class{
	policy.Harmless: impact.None, policy.Stops: impact.Interrupts, policy.Writes: impact.Destroys, policy.Erases: impact.None,
}

// What a host refuses, and a dry run as its host would.
var (
	notAllowed  = &prego.Error{Code: prego.CodeCommandNotAllowed, Field: "args", Message: "are not a command that hosts allow for this kind"}
	kindUnknown = &prego.Error{Code: prego.CodeKindUnknown, Field: "kind", Message: "is unknown to this host"}
)

// fromHost translates a host's error for the caller.
func fromHost(err error, cmd server.Command) error {
	var ce *server.CommandError
	if !errors.As(err, &ce) {
		return prego.Errorf(prego.CodeNotReady, "timed out waiting for the command; the audit of server %s records under %s whether it ran", cmd.ServerID, cmd.AuditID)
	}
	says := cmd.Redact(ce.Message)
	switch ce.Code {
	case string(prego.CodeCommandNotAllowed):
		return notAllowed
	case string(prego.CodeKindUnknown):
		return kindUnknown
	case string(prego.CodeInvalidField):
		return &prego.Error{Code: prego.CodeInvalidField, Field: "args", Message: "are refused by the host: " + says}
	case string(prego.CodeBusy):
		return prego.Errorf(prego.CodeBusy, "too many commands wait on this host")
	case server.CommandUnreachable:
		return prego.Errorf(prego.CodeServerNotReachable, "the host does not answer; the command may have run, see %s in the audit", cmd.AuditID)
	case server.CommandMistrusted:
		return prego.Errorf(prego.CodeServerNotReachable, "%s", says)
	}
	return prego.Errorf(prego.CodeServerNotReachable, "the host says %s: %s", ce.Code, says)
}

// events is a stream of server-sent events. It starts with the first event; events for
// a caller who has left are dropped.
type events struct {
	c       echo.Context
	control *http.ResponseController

	mu     sync.Mutex
	begin  bool
	broken bool
}

func newEvents(c echo.Context) *events {
	return &events{c: c, control: http.NewResponseController(c.Response())}
}

func (e *events) begun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begin
}

func (e *events) write(f func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken {
		return
	}
	if !e.begin {
		e.begin = true
		e.c.Response().Header().Set(echo.HeaderContentType, "text/event-stream")
		e.c.Response().Header().Set("X-Accel-Buffering", "no")
		e.c.Response().WriteHeader(http.StatusOK)
	}
	_ = e.control.SetWriteDeadline(time.Now().Add(sendWithin))
	if f() != nil || e.control.Flush() != nil {
		e.broken = true
	}
}

func (e *events) send(name string, v any) {
	e.write(func() error { return wire.WriteEvent(e.c.Response(), name, v) })
}

// last sends an event, and drops later events.
func (e *events) last(name string, v any) {
	e.write(func() error {
		e.broken = true
		return wire.WriteEvent(e.c.Response(), name, v)
	})
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = true
}

// cutOff ends a stream of a detached command when its caller's access ends. The command ends as it would have.
func (a *API) cutOff(ctx context.Context, c echo.Context, e *events) (stop func()) {
	ended := watchOf(ctx).ended
	unregister := context.AfterFunc(ended, func() {
		if context.Cause(ended) == ErrAccessEnded { //nolint:errorlint // the cause is the error itself
			e.last(wire.EventError, a.problem(ErrAccessEnded, c))
		}
	})
	return func() { unregister(); e.close() }
}

// keepAlive sends comments until it is stopped.
func (e *events) keepAlive() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(keepAlive)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				e.write(func() error { return wire.WriteKeepAlive(e.c.Response()) })
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// lineMask redacts a text line by line; a private key spans several.
type lineMask struct {
	redact func(string) string
	inKey  bool
}

func (m *lineMask) line(s string) string {
	if !m.inKey && (!strings.Contains(s, "-----BEGIN ") || !strings.Contains(s, "PRIVATE KEY-----")) {
		return m.redact(s)
	}
	m.inKey = !strings.Contains(s, "-----END ")
	return prego.Redacted
}

// ListContainers lists the containers on a server's host.
func (a *API) ListContainers(c echo.Context, id ServerID) error {
	ctx := c.Request().Context()
	st, err := a.host(ctx, id, false)
	if err != nil {
		return err
	}
	list, err := a.d.Containers.ListContainers(ctx, id, st.Host)
	if err != nil {
		return a.fromEngine(c, err)
	}
	out := ContainerList{Containers: []Container{}}
	for _, v := range list {
		item := viewOf[Container](v)
		item.ExitCode = nil
		if v.State == "exited" || v.State == "dead" {
			item.ExitCode = &v.ExitCode
		}
		out.Containers = append(out.Containers, item)
	}
	return c.JSON(http.StatusOK, out)
}

// fromEngine translates an engine's error for the caller.
func (a *API) fromEngine(c echo.Context, err error) error {
	var coded *prego.Error
	var ce *server.ContainerError
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &ce) && ce.Container != "all":
		return prego.Errorf(prego.CodeContainerFailed, "%s", prego.Redact(ce.Error()))
	case errors.As(err, &ce):
		return prego.Errorf(prego.CodeServerNotReachable, "%s", prego.Redact(ce.Message))
	}
	a.d.Log.Warn("a host's engine does not answer", zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
	return prego.Errorf(prego.CodeServerNotReachable, "the host's engine does not answer")
}

// ContainerLogs streams a container's log.
func (a *API) ContainerLogs(c echo.Context, id ServerID, name ContainerName, p ContainerLogsParams) error {
	if _, err := a.host(c.Request().Context(), id, false); err != nil {
		return err
	}
	at := org.SessionAt{ServerID: id, TenantID: deref(p.TenantId)}
	if workload.ValidateInstanceID(name) == nil { // counted on either path
		at.InstanceID = prego.InstanceID(name)
	}
	of, err := a.d.Store.SessionOwner(c.Request().Context(), at)
	if err != nil {
		return err
	}
	return a.containerLogs(c, id, name, of, p.Tail, p.Follow)
}

// containerLogs streams the log of a container on a server.
func (a *API) containerLogs(c echo.Context, id prego.ServerID, name string, of org.SessionOf, wantTail *int, wantFollow *bool) error {
	tail, follow := defaultTail, wantFollow != nil && *wantFollow
	if wantTail != nil {
		tail = *wantTail
	}
	st, err := a.host(c.Request().Context(), id, false)
	if err != nil {
		return err
	}
	ctx, done, err := a.stream(c, false)
	if err != nil {
		return err
	}
	defer done()
	end, err := a.session(c, of, org.SessionLogs, string(id+"/")+name)
	if err != nil {
		return err
	}
	defer end()
	w, control := c.Response(), http.NewResponseController(c.Response())
	begun := false
	begin := func() {
		if !begun {
			begun = true
			w.Header().Set(echo.HeaderContentType, "text/plain; charset=utf-8")
			w.Header().Set("X-Accel-Buffering", "no")
			w.WriteHeader(http.StatusOK)
		}
	}
	mask := &lineMask{redact: prego.Redact}
	err = a.d.Containers.ContainerLogs(ctx, id, st.Host, st.Role, name, tail, follow, func(line string) error {
		if err := ctx.Err(); err != nil { // which the engine may notice later
			return err
		}
		begin()
		_ = control.SetWriteDeadline(time.Now().Add(sendWithin))
		if _, err := fmt.Fprintln(w, mask.line(line)); err != nil {
			return err
		}
		if follow {
			return control.Flush()
		}
		return nil
	})
	switch {
	case err == nil, ctx.Err() != nil && begun:
		begin()
		return nil
	case begun:
		// The status is already sent; all that is left is to abort the answer.
		a.d.Log.Info("a container's log was cut off", zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
		panic(http.ErrAbortHandler)
	}
	return a.fromEngine(c, err)
}

// RepairContainers restores a server's containers to their declaration.
func (a *API) RepairContainers(c echo.Context, id ServerID, _ RepairContainersParams) error {
	st, err := a.host(c.Request().Context(), id, false)
	switch {
	case err != nil:
		return err
	case st.Status != server.Active:
		return prego.Errorf(prego.CodeInvalidTransition, "server %s is %s: retry it", id, st.Status)
	case st.Purpose == server.PurposeImportExisting:
		return prego.Errorf(prego.CodeInvalidTransition, "server %s was imported with its own containers", id)
	}
	if err := a.d.Store.MayRepair(c.Request().Context(), id); err != nil || dryRun(c) {
		return noContent(c, err)
	}
	ctx, done, err := a.stream(c, true) // an interrupted repair is worse than none
	if err != nil {
		return err
	}
	defer done()
	drift, failed := a.d.Containers.RepairContainers(ctx, id, st.Host, st.Role)
	message := cmp.Or(strings.Join(views(drift, server.ContainerDrift.String), "; "), "nothing to repair")
	message += "; asked for by " + caller(c).By()
	if failed != nil {
		message = "not finished: " + message
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	if err := a.d.Store.AddEvent(record, server.Event{
		ServerID: id, Step: server.StepContainersRepaired, Attempt: st.Attempt, Actor: prego.ActorOperator, Message: prego.Redact(message),
	}, ""); err != nil {
		return err
	}
	if failed != nil {
		return a.fromEngine(c, failed)
	}
	return c.JSON(http.StatusOK, ContainerRepair{Repaired: views(drift, viewOf[ContainerDrift])})
}
