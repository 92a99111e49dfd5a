package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/prego/prego"
)

// How soon a failed database host is noticed. A killed process closes its
// connections; a host that lost its power or its network sends nothing.
const (
	dialTimeout      = 5 * time.Second
	dialTimeoutMany  = 2 * time.Second // of each host, where there are several
	dialTimeoutAgain = 200 * time.Millisecond
	silentFor        = 30 * time.Second // for how long a host that did not answer is expected not to
	unacknowledged   = 10 * time.Second
)

// keepAlive finds out about a host that died while it was computing an answer.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// primary keeps a pool's connections on the database's primary. Several hosts may be named;
// a read-only host is passed over, and when a host turns read-only or shuts down all
// connections are renewed.
type primary struct {
	pool atomic.Pointer[pgxpool.Pool]

	mu     sync.Mutex
	silent map[string]time.Time // until when an address is expected not to answer
}

// follow makes a pool's connections follow the primary.
func (p *primary) follow(cfg *pgxpool.Config) {
	c := cfg.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = dialTimeout
		for _, f := range c.Fallbacks {
			if f.Host != c.Host || f.Port != c.Port {
				c.ConnectTimeout = dialTimeoutMany
			}
		}
	}
	c.ValidateConnect = mustBeWritable
	c.DialFunc = p.dial
	before := c.OnPgError
	c.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if movedAway(err.Code) {
			p.reset()
			return false // this connection is closed
		}
		return before(conn, err)
	}
	// Postgres reports these two settings unasked, with the answer to the next statement.
	cfg.AfterRelease = func(conn *pgx.Conn) bool {
		if readOnly(conn.PgConn()) {
			p.reset()
			return false
		}
		return true
	}
}

// reset closes all connections, those in use when they are released.
func (p *primary) reset() {
	if pool := p.pool.Load(); pool != nil {
		go pool.Reset() // it may be called while the pool waits for a connection
	}
}

// dial connects to one address. An address that did not answer is given little time for a while, so
// that it does not delay every connection to the hosts named after it.
func (p *primary) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	if network != "unix" {
		d.Control = giveUpUnacknowledged
	}
	p.mu.Lock()
	if time.Now().Before(p.silent[addr]) {
		d.Timeout = dialTimeoutAgain
	}
	p.mu.Unlock()
	conn, err := d.DialContext(ctx, network, addr)
	var timeout net.Error
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		delete(p.silent, addr)
	case errors.As(err, &timeout) && timeout.Timeout():
		if p.silent == nil {
			p.silent = map[string]time.Time{}
		}
		p.silent[addr] = time.Now().Add(silentFor)
	}
	return conn, err
}

// giveUpUnacknowledged lets the kernel close a connection whose other end acknowledges nothing;
// by itself it would send again for a quarter of an hour.
func giveUpUnacknowledged(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	}); e != nil {
		return e
	}
	return err
}

// mustBeWritable refuses a connection to a standby, and to a primary that was made read-only.
func mustBeWritable(ctx context.Context, conn *pgconn.PgConn) error {
	if readOnly(conn) {
		return pgconn.ErrReadOnlyConnection
	}
	if conn.ParameterStatus("in_hot_standby") != "" && conn.ParameterStatus("default_transaction_read_only") != "" {
		return nil
	}
	return pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn) // before Postgres 14, or behind a pooler
}

func readOnly(conn *pgconn.PgConn) bool {
	return conn.ParameterStatus("in_hot_standby") == "on" || conn.ParameterStatus("default_transaction_read_only") == "on"
}

// movedAway reports whether an error of this SQLSTATE means that the primary is elsewhere now, or
// soon will be.
func movedAway(code string) bool {
	switch code {
	case "25006", // a write on a host that is read-only
		"57P01", "57P02", "57P03": // it shuts down, has crashed, or is starting up
		return true
	}
	return false
}

// Unavailable reports whether an error means that the database cannot be used right now, as in a
// failover: the same may succeed when it is repeated. Whether it had an effect is not known.
func Unavailable(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return movedAway(pg.Code) || strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "58") || pg.Code == "57P05"
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || pgconn.SafeToRetry(err)
}

// A message without a reader: its commit is written, and confirmed by a synchronous standby, as
// that of any change.
const sqlWritable = `
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool,
    CASE WHEN NOT pg_is_in_recovery() THEN pg_logical_emit_message(true, 'prego', '') END IS NULL`

// Writable reports why the database takes no writes right now, in words that every caller may read.
func (s *Store) Writable(ctx context.Context) error {
	var readOnly, none bool
	err := s.pool.QueryRow(ctx, sqlWritable).Scan(&readOnly, &none)
	switch {
	case errors.Is(err, pgconn.ErrReadOnlyConnection), err == nil && readOnly:
		err = prego.Errorf(prego.CodeNotReady, "there is no writable primary: the database is read-only")
	case err != nil && (errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil):
		err = prego.Errorf(prego.CodeNotReady, "the database does not confirm a write in time: it does not answer, or its synchronous standby is gone")
	case err != nil && Unavailable(err):
		err = fmt.Errorf("%w (%w)", prego.Errorf(prego.CodeNotReady, "there is no writable primary: no host of the database takes connections"), err)
	}
	return err
}
