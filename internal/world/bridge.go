package world

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// bridge is how a bubble of testing/synctest reaches Postgres. Its goroutines are outside the
// bubble, where time is real: one for each connection, which reads ahead, and one that looks
// for statements that wait for a lock. A goroutine of the bubble that waits for an answer
// keeps the bubble's clock from going on; one whose statement waits for a lock of another
// does not.
type bridge struct {
	dials  chan dial
	pauses chan nap
	leaves chan leave
	// Channels that are made in a bubble must not be used outside: answers come by these.
	answers chan chan dialed
	ends    chan chan struct{}

	waiting atomic.Int32 // goroutines of the bubble that wait for an answer
	mu      sync.Mutex
	conns   map[*conn]struct{}
}

type dial struct {
	network, address string
	made             chan<- dialed
}

type dialed struct {
	c   *conn
	err error
}

// leave asks to be told when Postgres has ended these sessions.
type leave struct {
	pids []uint32
	over chan<- struct{}
}

type nap struct {
	d    time.Duration
	over chan<- struct{}
}

// newBridge starts a bridge outside of any bubble; it ends with ctx. The URL is of any
// database of the cluster.
func newBridge(ctx context.Context, url string) (*bridge, error) {
	b := &bridge{dials: make(chan dial), pauses: make(chan nap), leaves: make(chan leave), answers: make(chan chan dialed), ends: make(chan chan struct{}), conns: map[*conn]struct{}{}}
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
				raw, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, d.network, d.address)
				if err != nil {
					d.made <- dialed{err: err}
					continue
				}
				c := &conn{b: b, raw: raw, news: make(chan struct{}, 1)}
				b.mu.Lock()
				b.conns[c] = struct{}{}
				b.mu.Unlock()
				go c.readAhead()
				d.made <- dialed{c: c}
			case p := <-b.pauses:
				time.AfterFunc(p.d, func() { close(p.over) })
			case l := <-b.leaves:
				for n := 1; n > 0; time.Sleep(500 * time.Microsecond) {
					if err := ender.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)`, l.pids).Scan(&n); err != nil {
						break
					}
				}
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

// dial connects, from within a bubble.
func (b *bridge) dial(network, address string) (*conn, error) {
	answer := <-b.answers
	b.dials <- dial{network: network, address: address, made: answer}
	d := <-answer
	return d.c, d.err
}

// pause waits in real time, and keeps the bubble's clock from going on meanwhile.
func (b *bridge) pause(d time.Duration) {
	over := <-b.ends
	b.pauses <- nap{d: d, over: over}
	<-over
}

// left waits until Postgres has ended the sessions of connections that were cut, and with
// them their transactions.
func (b *bridge) left(conns ...*conn) {
	pids := []uint32{}
	for _, c := range conns {
		if pid := c.pid.Load(); pid != 0 {
			pids = append(pids, pid)
		}
	}
	over := <-b.ends
	b.leaves <- leave{pids: pids, over: over}
	<-over
}

// lookEvery is how often statements are looked at that have no answer yet.
const lookEvery = 2 * time.Millisecond

// lookForLocks tells connections that their statement waits for a lock.
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
		late := map[uint32]waiter{}
		b.mu.Lock()
		for c := range b.conns {
			if wait, ok := c.late(); ok {
				late[c.pid.Load()] = waiter{c, wait}
			}
		}
		b.mu.Unlock()
		if len(late) == 0 {
			continue
		}
		rows, err := looker.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'`)
		if err != nil {
			continue
		}
		pids, _ := pgx.CollectRows(rows, pgx.RowTo[uint32])
		for _, pid := range pids {
			if w, ok := late[pid]; ok {
				w.c.tell(func() { w.c.locked = w.c.wait == w.wait }) // not if it was woken since
			}
		}
	}
}

// conn is one connection, as the bubble sees it.
type conn struct {
	b    *bridge
	raw  net.Conn
	pid  atomic.Uint32
	news chan struct{} // made outside: who waits for it does not let the clock go on

	mu      sync.Mutex
	buf     []byte
	err     error // of reading
	waits   int   // looks since the goroutine of the bubble began to wait; -1: it does not
	wait    int   // number of the wait for an answer
	locked  bool
	waited  bool // this statement, for a lock
	overdue bool // its deadline has passed
	cut     error
	lose    bool // the next answer gets lost
	onLock  func(c *conn) (wake <-chan struct{})
	onClose func()
}

// tell changes the connection and wakes who waits for it.
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
func (c *conn) late() (wait int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waits < 0 || len(c.buf) > 0 {
		return 0, false
	}
	c.waits++
	return c.wait, c.waits > 1
}

func (c *conn) readAhead() {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.raw.Read(buf)
		c.tell(func() {
			c.buf = append(c.buf, buf[:n]...)
			if err != nil {
				c.err = err
			}
		})
		if err != nil {
			return
		}
	}
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

var (
	errCut  = errors.New("world: the connection was cut")
	errLost = errors.New("world: the connection was cut before the answer came")
	errDead = errors.New("world: this process is dead")
)

// cutNow ends the connection; call it with the lock held.
func (c *conn) cutNow(why error) {
	if c.cut == nil {
		c.cut = why
		_ = c.raw.Close()
	}
}

func (c *conn) cutFor(why error) { c.tell(func() { c.cutNow(why) }) }

func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	cut := c.cut
	c.mu.Unlock()
	if cut != nil {
		return 0, cut
	}
	return c.raw.Write(p)
}

func (c *conn) Close() error {
	c.b.mu.Lock()
	delete(c.b.conns, c)
	c.b.mu.Unlock()
	if c.onClose != nil {
		c.onClose()
	}
	err := c.raw.Close()
	c.tell(func() {
		if c.cut == nil {
			c.cut = io.ErrClosedPipe
		}
	})
	return err
}

func (c *conn) LocalAddr() net.Addr  { return c.raw.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

// SetDeadline knows only deadlines that have passed, as the driver sets them when a context
// ends, and none.
func (c *conn) SetDeadline(t time.Time) error {
	c.tell(func() { c.overdue = !t.IsZero() && !t.After(time.Now()) })
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error  { return c.SetDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }
