package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/prego/prego/lab/world/frontend"
)

// Life is one process from its start to its death: all its effects on the outside go through here. A dead one has no
// effect any more, even if its goroutines continue.
type Life struct {
	w    *World
	Name string // "worker-2"
	Kind string // "worker"
	Pool *pgxpool.Pool
	// Temporal is its client of the workflow service.
	Temporal client.Client
	// Context ends with the process.
	Context context.Context
	end     context.CancelFunc
	dead    atomic.Bool
	watches bool // it only looks whether everything is right: no fault is for it
	mu      sync.Mutex
	conns   map[*conn]struct{}
	stop    func() // of what runs in it
}

// born starts a process.
func (w *World) born(kind string) (*Life, error) {
	l, err := w.bornWithout(kind)
	if err != nil {
		return nil, err
	}
	l.Temporal, err = client.NewLazyClient(client.Options{
		HostPort: frontend.Target, Namespace: Namespace, Identity: l.Name,
		Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{
			DialOptions:           w.Frontend.Connect(l.call),
			DisableKeepAliveCheck: true,
		},
	})
	w.mu.Lock()
	w.processes = append(w.processes, l)
	w.mu.Unlock()
	if w.over() {
		l.kill()
	}
	return l, err
}

// bornWithout starts a process that has only the database.
func (w *World) bornWithout(kind string) (*Life, error) {
	w.lives[kind]++
	l := &Life{w: w, Kind: kind, Name: fmt.Sprintf("%s-%d", kind, w.lives[kind]), conns: map[*conn]struct{}{}}
	l.Context, l.end = context.WithCancel(context.Background())
	cfg, err := pgxpool.ParseConfig(w.database)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 48 // no caller waits for one: we could not decide their order
	// What the pool does by the clock does nothing here, and the pauses have chance in them.
	cfg.MaxConnLifetime, cfg.MaxConnIdleTime, cfg.HealthCheckPeriod = 1e6*time.Hour, 1e6*time.Hour, 1e5*time.Hour
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// A connection that was cut while idle is never handed out: we could not decide who gets it.
	cfg.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) {
		mine, ok := c.PgConn().Conn().(*conn)
		return !ok || !mine.isCut(), nil
	}
	cfg.ConnConfig.DialFunc = l.dial
	cfg.ConnConfig.ConnectTimeout = 0
	cfg.ConnConfig.Tracer = tracer{l}
	if l.Pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		return nil, err
	}
	return l, err
}

func (l *Life) dial(context.Context, string, string) (net.Conn, error) {
	if l.dead.Load() {
		return nil, errDead
	}
	if !l.watches && l.w.Schedule.postgresAway() {
		l.w.Met("a connection was refused during a failover")
		return nil, errAway
	}
	c, err := l.w.bridge.dial(l.watches)
	if err != nil {
		return nil, err
	}
	c.onLock = l.w.Schedule.onLock
	c.onClose = func() {
		l.w.Schedule.mayRelease()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	return c, nil
}

// failover ends all connections of all processes, in the middle of their work, and accepts none for a while.
func (w *World) failover() {
	w.Schedule.mu.Lock()
	w.Schedule.awayUntil = time.Now().Add(10 * time.Second)
	w.Schedule.mu.Unlock()
	w.mu.Lock()
	all := slices.Clone(w.processes)
	w.mu.Unlock()
	var conns []*conn
	for _, l := range all {
		l.mu.Lock()
		for c := range l.conns {
			conns = append(conns, c)
		}
		l.mu.Unlock()
	}
	for _, c := range conns {
		c.cutFor(errAway)
	}
	w.bridge.left(conns...)
	w.Schedule.mayRelease()
}

// kill ends the process immediately: its connections are cut, and nothing that it does afterwards has an effect.
func (l *Life) kill() {
	if l.dead.Swap(true) {
		return
	}
	l.mu.Lock()
	conns := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		c.cutFor(errDead)
	}
	l.w.bridge.left(conns...)
	l.w.Schedule.mayRelease()
	l.end()
	l.mu.Lock()
	stop := l.stop
	l.stop = nil
	l.mu.Unlock()
	l.w.ending.Add(1)
	go func() {
		defer l.w.ending.Done()
		if stop != nil {
			stop()
		}
		l.Temporal.Close()
		l.Pool.Close()
	}()
}

// runs registers the stop function of a part of the process; it is called immediately if the process died meanwhile.
func (l *Life) runs(stop func()) {
	l.mu.Lock()
	l.stop = stop
	l.mu.Unlock()
	if !l.dead.Load() {
		return
	}
	l.mu.Lock()
	again := l.stop != nil
	l.stop = nil
	l.mu.Unlock()
	if again {
		l.w.ending.Add(1)
		go func() { defer l.w.ending.Done(); stop() }()
	}
}

// step waits for the actor's turn; an error means that the process has died.
func (l *Life) step(ctx context.Context, point string) error {
	return l.stepAs(l.actor(ctx), point)
}

func (l *Life) stepAs(actor, point string) error {
	if !l.dead.Load() {
		l.w.Schedule.yield(l, actor, point)
	}
	if l.dead.Load() {
		return errDead
	}
	return nil
}

type actorKey struct{}

// As names the actor that uses this context.
func As(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

func (l *Life) actor(ctx context.Context) string {
	if name, ok := ctx.Value(actorKey{}).(string); ok {
		return l.Name + " " + name
	}
	if activity.IsActivity(ctx) {
		info := activity.GetInfo(ctx)
		return fmt.Sprintf("%s %s/%s#%s.%d", l.Name, info.WorkflowExecution.ID, info.ActivityType.Name, info.ActivityID,
			info.Attempt)
	}
	return l.Name
}

// tracer makes every statement a yield point, sets the clock of its session, and lets faults
// happen to it.
type tracer struct{ l *Life }

// clock is a connection's known time.
type clock struct{ now, tx time.Time }

const clockKey = "world"

func (t tracer) TraceQueryStart(ctx context.Context, c *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return t.statement(ctx, c, short(d.SQL)+about(d.Args))
}

func (t tracer) TraceBatchStart(ctx context.Context, c *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	first := ""
	if len(d.Batch.QueuedQueries) > 0 {
		first = d.Batch.QueuedQueries[0].SQL
	}
	return t.statement(ctx, c, fmt.Sprintf("batch of %d: %s", len(d.Batch.QueuedQueries), short(first)))
}

func (t tracer) TraceQueryEnd(_ context.Context, c *pgx.Conn, d pgx.TraceQueryEndData) {
	if e := (*pgconn.PgError)(nil); errors.As(d.Err, &e) && e.Code == "40P01" {
		t.l.w.Met("a deadlock")
	}
	t.ended(c)
}

func (t tracer) TraceBatchEnd(_ context.Context, c *pgx.Conn, _ pgx.TraceBatchEndData) { t.ended(c) }
func (tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData)     {}

func (t tracer) ended(c *pgx.Conn) {
	if c.PgConn().TxStatus() == 'I' {
		t.l.w.Schedule.mayRelease()
		t.l.w.committed()
	}
}

// about is the first argument that is a word, which distinguishes statements.
func about(args []any) string {
	for _, a := range args {
		switch v := a.(type) {
		case string:
			if _, err := strconv.ParseUint(v, 10, 64); err == nil {
				continue // numbers of transactions differ from run to run
			}
			return " [" + v[:min(len(v), 40)] + "]"
		case fmt.Stringer:
			return " [" + v.String() + "]"
		default:
			if s := fmt.Sprint(v); reflect.TypeOf(a) != nil && reflect.TypeOf(a).Kind() == reflect.String {
				return " [" + s[:min(len(s), 40)] + "]"
			}
		}
	}
	return ""
}

// short is a statement as the timeline shows it.
func short(sql string) string {
	sql = strings.Join(strings.Fields(sql), " ")
	return sql[:min(len(sql), 90)]
}

func (t tracer) statement(ctx context.Context, c *pgx.Conn, sql string) context.Context {
	mine, ok := c.PgConn().Conn().(*conn)
	if !ok {
		return ctx
	}
	text := sql
	if err := t.l.step(ctx, "sql "+text); err != nil {
		mine.cutFor(err)
		return ctx
	}
	ends := c.PgConn().TxStatus() == 'I' && !strings.HasPrefix(text, "begin") || strings.HasPrefix(text, "commit")
	switch {
	case t.l.w.Faults.hit("postgres_away", t.l.Name+" "+text):
		t.l.w.failover()
		return ctx
	case t.l.w.Faults.hit("sql_cut", t.l.Name+" "+text):
		mine.cutFor(errCut)
		t.l.w.bridge.left(mine)
		return ctx
	case ends && t.l.w.Faults.hit("sql_lost", t.l.Name+" "+text):
		setClock(c, mine)
		mine.tell(func() { mine.lose = true })
		return ctx
	}
	setClock(c, mine)
	return ctx
}

// setClock sets the time, with the next statement.
func setClock(c *pgx.Conn, mine *conn) {
	pg := c.PgConn()
	known, _ := pg.CustomData()[clockKey].(*clock)
	if known == nil {
		known = &clock{}
		pg.CustomData()[clockKey] = known
	}
	now := time.Now().UTC()
	sql := "SET world.now = '" + now.Format("2006-01-02T15:04:05.999999Z") + "'"
	switch pg.TxStatus() {
	case 'I':
		if known.now.Equal(now) && known.tx.Equal(now) {
			return
		}
		sql += "; SET world.tx = '" + now.Format("2006-01-02T15:04:05.999999Z") + "'"
		*known = clock{now: now, tx: now}
	case 'T':
		if known.now.Equal(now) {
			return
		}
		*known = clock{} // a rollback would undo it
	default:
		return
	}
	mine.mu.Lock()
	mine.clock = sql
	mine.mu.Unlock()
}

var _ interface {
	pgx.QueryTracer
	pgx.BatchTracer
} = tracer{}

// call is one request to the workflow service.
func (l *Life) call(ctx context.Context, c frontend.Call, do func(context.Context) error) error {
	if l.dead.Load() {
		if strings.HasPrefix(c.Method, "Poll") {
			<-ctx.Done()
		}
		return status.Error(codes.Canceled, errDead.Error())
	}
	var actor string
	switch r := c.Request.(type) {
	case *workflowservice.PollWorkflowTaskQueueRequest, *workflowservice.PollActivityTaskQueueRequest:
		return l.poll(ctx, do)
	case *workflowservice.RecordActivityTaskHeartbeatRequest, *workflowservice.GetSystemInfoRequest,
		*workflowservice.DescribeNamespaceRequest,
		*workflowservice.GetWorkflowExecutionHistoryRequest, *workflowservice.ShutdownWorkerRequest,
		*workflowservice.RecordWorkerHeartbeatRequest:
		return do(ctx) // the SDK holds locks meanwhile, or it waits
	case *workflowservice.RespondWorkflowTaskCompletedRequest:
		actor = l.Name + " " + l.w.Frontend.Named(r.GetTaskToken())
	case *workflowservice.RespondWorkflowTaskFailedRequest:
		actor = l.Name + " " + l.w.Frontend.Named(r.GetTaskToken())
	case *workflowservice.RespondActivityTaskCompletedRequest:
		actor = l.Name + " " + l.w.Frontend.Named(r.GetTaskToken())
	case *workflowservice.RespondActivityTaskFailedRequest:
		actor = l.Name + " " + l.w.Frontend.Named(r.GetTaskToken())
	case *workflowservice.RespondActivityTaskCanceledRequest:
		actor = l.Name + " " + l.w.Frontend.Named(r.GetTaskToken())
	default:
		actor = l.actor(ctx)
	}
	point := "temporal " + c.Method
	if err := l.stepAs(actor, point); err != nil {
		return status.Error(codes.Canceled, err.Error())
	}
	if l.w.Faults.hit("temporal_away", actor+" "+point) || l.Kind == "api" && strings.Contains(c.Method, "Start") &&
		l.w.Faults.hit("start_away", actor+" "+point) {
		return status.Error(codes.Unavailable, "world: the workflow service is away")
	}
	signal, signals := c.Request.(*workflowservice.SignalWorkflowExecutionRequest)
	if signals && l.w.Faults.hit("signal_late", actor) {
		if err := pause(ctx, 30*time.Second); err != nil {
			return status.FromContextError(err).Err()
		}
	}
	err := do(ctx)
	if signals && err == nil && l.w.Faults.hit("signal_twice", actor) {
		signal.RequestId = "" // the service can't distinguish it from another
		_ = do(ctx)
	}
	if err == nil && l.w.Faults.hit("temporal_lost", actor+" "+point) {
		return status.Error(codes.Unavailable, "world: the answer was lost")
	}
	return err
}

// poll lets a poll end with its process: its task is lost.
func (l *Life) poll(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.Context, cancel)()
	err := do(ctx)
	if l.dead.Load() {
		return status.Error(codes.Canceled, errDead.Error())
	}
	return err
}
