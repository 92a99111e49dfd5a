package world

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// bridge connects a bubble of testing/synctest with Postgres. Its goroutines are outside the bubble, where time is
// real: one for each session, which reads ahead, and one that looks for statements that wait for a lock. A goroutine of
// the bubble that waits for an answer stops the bubble's clock; if its statement waits for a lock of another, it does
// not.
//
// Sessions outlive connections and plays: what Postgres has learned of the schema, and what
// it has prepared, it has not to learn again.
type bridge struct {
	url    string
	dials  chan dial
	pauses chan nap
	leaves chan leave
	// Channels that are made in a bubble must not be used outside: answers come by these.
	answers chan chan dialed
	ends    chan chan struct{}

	steps   atomic.Int64 // of all plays
	waiting atomic.Int32 // goroutines of the bubble that wait for an answer
	mu      sync.Mutex
	conns   map[*conn]struct{}
	free    []*session // the last used session is last
	watcher *session   // never free
	made    int

	writing sync.Mutex
	wrote   map[int]bool // invariants that commits may have broken
}

type dial struct {
	made    chan<- dialed
	watches bool
}

type dialed struct {
	c   *conn
	err error
}

// leave requests a notification when Postgres has ended these sessions' transactions.
type leave struct {
	sessions []*session
	over     chan<- struct{}
}

type nap struct {
	d    time.Duration
	over chan<- struct{}
}

// newBridge starts a bridge to a database outside of any bubble; it ends with ctx.
func newBridge(ctx context.Context, url string) (*bridge, error) {
	b := &bridge{
		url: url, dials: make(chan dial), pauses: make(chan nap), leaves: make(chan leave),
		answers: make(chan chan dialed), ends: make(chan chan struct{}), conns: map[*conn]struct{}{},
		wrote: map[int]bool{},
	}
	looker, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	ender, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	go func() {
		answer, end := make(chan dialed, 1), make(chan struct{})
		for {
			select {
			case b.answers <- answer:
				answer = make(chan dialed, 1)
			case b.ends <- end:
				end = make(chan struct{})
			case d := <-b.dials:
				c, err := b.connect(ctx, d.watches)
				d.made <- dialed{c: c, err: err}
			case p := <-b.pauses:
				time.AfterFunc(p.d, func() { close(p.over) })
			case l := <-b.leaves:
				b.clean(ctx, ender, l.sessions)
				close(l.over)
			case <-ctx.Done():
				_ = ender.Close(context.WithoutCancel(ctx))
				return
			}
		}
	}()
	go b.lookForLocks(ctx, looker)
	return b, nil
}

// connect takes a free session, or starts one. Watchers have a separate session, which has planned the invariants.
func (b *bridge) connect(ctx context.Context, watches bool) (*conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.watcher
	if !watches || s == nil || s.ended() || s.taken() {
		s = nil
	}
	for n := len(b.free); !watches && s == nil && n > 0; n-- {
		if s, b.free = b.free[n-1], b.free[:n-1]; s.ended() {
			s = nil
		}
	}
	if s == nil {
		var err error
		if s, err = newSession(ctx, b); err != nil {
			return nil, err
		}
		b.made++
		if watches {
			b.watcher = s
		}
	}
	// a new channel: waiters of an old connection must not take its news
	c := &conn{b: b, s: s, news: make(chan struct{}, 1), waits: -1}
	s.mu.Lock()
	s.owner = c
	s.mu.Unlock()
	b.conns[c] = struct{}{}
	return c, nil
}

// patience is the maximal wait for an answer without a reader.
const patience = 20 * time.Millisecond

// clean ends the transactions of sessions whose connections were cut or closed, so that others can use them. A session
// that still waits is ended altogether.
func (b *bridge) clean(ctx context.Context, ender *pgx.Conn, sessions []*session) {
	var gone []uint32
	for _, s := range sessions {
		if s.settle(patience) && s.reset() {
			b.mu.Lock()
			if s != b.watcher {
				b.free = append(b.free, s)
			}
			b.mu.Unlock()
			continue
		}
		_ = s.raw.Close()
		gone = append(gone, s.pid)
	}
	// a session that waits for a lock does not notice by itself
	for n := 1; n > 0 && len(gone) > 0; time.Sleep(500 * time.Microsecond) {
		if err := ender.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid = ANY ($1)`, gone).Scan(&n); err != nil {
			return
		}
	}
}

// dial connects, from within a bubble.
func (b *bridge) dial(watches bool) (*conn, error) {
	answer := <-b.answers
	b.dials <- dial{made: answer, watches: watches}
	d := <-answer
	return d.c, d.err
}

// pause waits in real time, and stops the bubble's clock meanwhile.
func (b *bridge) pause(d time.Duration) {
	over := <-b.ends
	b.pauses <- nap{d: d, over: over}
	<-over
}

// left waits until Postgres has ended the transactions of connections that were cut.
func (b *bridge) left(conns ...*conn) {
	var sessions []*session
	for _, c := range conns {
		if s := c.detach(); s != nil {
			sessions = append(sessions, s)
		}
	}
	if len(sessions) == 0 {
		return
	}
	over := <-b.ends
	b.leaves <- leave{sessions: sessions, over: over}
	<-over
}

// lookEvery is how often statements are looked at that have no answer yet.
const lookEvery = 2 * time.Millisecond

// lookForLocks notifies connections whose statement waits for a lock.
func (b *bridge) lookForLocks(ctx context.Context, looker *pgx.Conn) {
	defer func() { _ = looker.Close(context.WithoutCancel(ctx)) }()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if b.waiting.Load() == 0 {
			continue
		}
		type waiter struct {
			c    *conn
			wait int
		}
		late, pids := map[uint32]waiter{}, []uint32{}
		b.mu.Lock()
		for c := range b.conns {
			if pid, wait, ok := c.late(); ok {
				late[pid] = waiter{c, wait}
				pids = append(pids, pid)
			}
		}
		b.mu.Unlock()
		if len(late) == 0 {
			continue
		}
		// The session's wait state is no proof: it stays until the session runs again, which on a busy machine is long
		// after it got the lock.
		rows, err := looker.Query(ctx, `SELECT p FROM unnest($1::int[]) p WHERE cardinality(pg_blocking_pids(p)) > 0`,
			pids)
		if err != nil {
			continue
		}
		locked, _ := pgx.CollectRows(rows, pgx.RowTo[uint32])
		for _, pid := range locked {
			if w, ok := late[pid]; ok {
				w.c.tell(func() { w.c.locked = w.c.wait == w.wait }) // not if it was woken since
			}
		}
	}
}

// conn is one connection, as the bubble sees it.
type conn struct {
	b    *bridge
	news chan struct{} // created outside: waiting for it stops the clock

	mu      sync.Mutex
	s       *session // nil when it has none any more
	started bool
	buf     []byte
	err     error // of reading
	waits   int   // looks since the goroutine of the bubble began to wait; -1: it does not
	wait    int   // number of the wait for an answer
	locked  bool
	waited  bool // this statement, for a lock
	overdue bool // its deadline has passed
	cut     error
	lose    bool   // the next answer gets lost
	clock   string // a statement that comes before the next one
	onLock  func(c *conn) (wake <-chan struct{})
	onClose func()
}

// tell changes the connection and wakes its waiters.
func (c *conn) tell(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// late reports whether the answer was already missing at the last look, and which wait it is.
func (c *conn) late() (pid uint32, wait int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waits < 0 || len(c.buf) > 0 || c.s == nil {
		return 0, 0, false
	}
	c.waits++
	return c.s.pid, c.wait, c.waits > 1
}

// detach takes the session from the connection.
func (c *conn) detach() *session {
	c.mu.Lock()
	s := c.s
	c.s = nil
	c.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		s.owner = nil
		s.mu.Unlock()
	}
	return s
}

// Read is called in the bubble.
func (c *conn) Read(p []byte) (int, error) {
	c.b.waiting.Add(1)
	defer c.b.waiting.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits, c.wait, c.locked = 0, c.wait+1, false
	defer func() { c.waits = -1 }()
	for {
		switch {
		case c.cut != nil:
			return 0, c.cut
		case len(c.buf) > 0 && c.lose:
			c.cutNow(errLost)
			return 0, errLost
		case len(c.buf) > 0:
			n := copy(p, c.buf)
			c.buf, c.waited = c.buf[n:], false
			return n, nil
		case c.err != nil:
			return 0, c.err
		case c.overdue:
			return 0, os.ErrDeadlineExceeded
		case c.locked && c.onLock != nil:
			c.locked = false
			wake := c.onLock(c)
			c.waits = -1
			c.mu.Unlock()
			<-wake // made in the bubble
			c.mu.Lock()
			c.waits, c.wait, c.locked = 0, c.wait+1, false
			continue
		}
		c.mu.Unlock()
		<-c.news
		c.mu.Lock()
	}
}

// broken is an error of a network, as a real connection has it.
type broken string

func (b broken) Error() string { return "world: " + string(b) }
func (broken) Timeout() bool   { return false }
func (broken) Temporary() bool { return false }

var _ net.Error = broken("")

const (
	errCut  = broken("the connection was cut")
	errLost = broken("the connection was cut before the answer came")
	errAway = broken("connection refused: a standby takes over")
	errDead = broken("this process is dead")
)

// cutNow ends the connection; call it with the lock held.
func (c *conn) cutNow(why error) {
	if c.cut == nil {
		c.cut = why
	}
}

func (c *conn) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut != nil
}

func (c *conn) cutFor(why error) { c.tell(func() { c.cutNow(why) }) }

// The client's first message.
const (
	startup = 3 << 16
	cancels = 80877102
)

func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	cut, s, clock, started := c.cut, c.s, c.clock, c.started
	c.clock, c.started = "", true
	c.mu.Unlock()
	switch {
	case cut != nil:
		return 0, cut
	case s == nil:
		return 0, io.ErrClosedPipe
	case started:
		err := s.ask(clock, p)
		if bytes.HasSuffix(p, []byte{'X', 0, 0, 0, 4}) { // this message makes a server end the connection
			c.tell(func() { c.err = io.EOF })
		}
		return len(p), err
	}
	if len(p) < 8 {
		return 0, errors.New("world: not the beginning of a connection")
	}
	switch binary.BigEndian.Uint32(p[4:]) {
	case startup:
		c.tell(func() { c.buf = append(c.buf, s.hello...) })
		return len(p), nil
	case cancels:
		raw, err := net.Dial(s.raw.RemoteAddr().Network(), s.raw.RemoteAddr().String()) //nolint:noctx // Postgres answers immediately
		if err != nil {
			return 0, err
		}
		defer func() { _ = raw.Close() }()
		if _, err := raw.Write(p); err != nil {
			return 0, err
		}
		_, _ = io.Copy(io.Discard, raw)
		c.tell(func() { c.err = io.EOF })
		return len(p), nil
	}
	return 0, errors.New("world: a connection begins with something unknown")
}

func (c *conn) Close() error {
	c.b.mu.Lock()
	delete(c.b.conns, c)
	c.b.mu.Unlock()
	c.b.left(c)
	if c.onClose != nil {
		c.onClose()
	}
	c.tell(func() {
		if c.cut == nil {
			c.cut = io.ErrClosedPipe
		}
	})
	return nil
}

type nowhere struct{}

func (nowhere) Network() string { return "tcp" }
func (nowhere) String() string  { return "postgres" }

// LocalAddr is nowhere.
func (*conn) LocalAddr() net.Addr { return nowhere{} }

// RemoteAddr is nowhere.
func (*conn) RemoteAddr() net.Addr { return nowhere{} }

// SetDeadline knows only deadlines that have passed, as the driver sets them when a context
// ends, and none.
func (c *conn) SetDeadline(t time.Time) error {
	c.tell(func() { c.overdue = !t.IsZero() && !t.After(time.Now()) })
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error  { return c.SetDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }
