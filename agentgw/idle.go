package agentgw

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// An agent keeps its connection and uses it for some milliseconds in half a minute. net/http holds two buffers and a
// goroutine with a grown stack for each connection all the while, which is most of the gateway's memory. idleListener
// takes a connection away from net/http once it was silent for a second, keeps only its TLS state and a small
// goroutine that waits for the socket, and accepts it again when something arrives. net/http sees a connection that
// ended and a new one; the agent notices nothing.
type idleListener struct {
	net.Listener

	tls      *tls.Config
	timeouts idleTimeouts
	log      *zap.Logger

	sessions chan net.Conn
	open     context.Context // until it is closed
	shut     context.CancelCauseFunc
	running  sync.WaitGroup // the accept loop, handshakes and idle connections

	mu   sync.Mutex
	idle map[*idleConn]struct{}
}

type idleTimeouts struct {
	handshake time.Duration
	linger    time.Duration // until net/http loses an idle connection
	idle      time.Duration // until an idle connection is closed
}

// newIdleListener starts to accept connections of l.
func newIdleListener(l net.Listener, config *tls.Config, t idleTimeouts, log *zap.Logger) *idleListener {
	il := &idleListener{
		Listener: l, tls: config, timeouts: t, log: log, sessions: make(chan net.Conn), idle: make(map[*idleConn]struct{}),
	}
	il.open, il.shut = context.WithCancelCause(context.Background())
	context.AfterFunc(il.open, func() {
		il.mu.Lock()
		defer il.mu.Unlock()
		for c := range il.idle {
			_ = c.NetConn().Close()
		}
	})
	il.running.Go(il.accept)
	return il
}

// Accept returns connections after their handshake, and idle connections with new data.
func (l *idleListener) Accept() (net.Conn, error) {
	select {
	case s := <-l.sessions:
		return s, nil
	case <-l.open.Done():
		return nil, context.Cause(l.open)
	}
}

// Close stops accepting and closes the idle connections.
func (l *idleListener) Close() error {
	err := l.Listener.Close()
	l.shut(net.ErrClosed)
	l.running.Wait()
	return err
}

func (l *idleListener) accept() {
	for pause := 5 * time.Millisecond; ; {
		raw, err := l.Listener.Accept()
		var temporary interface{ Temporary() bool }
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			l.running.Go(func() { l.handshake(raw) })
		case errors.As(err, &temporary) && temporary.Temporary(): // for instance, out of file descriptors
			l.log.Warn("connection not accepted", zap.Error(err))
			select {
			case <-time.After(pause):
			case <-l.open.Done():
				return
			}
			pause = min(2*pause, time.Second)
		default:
			l.shut(err)
			return
		}
	}
}

func (l *idleListener) handshake(raw net.Conn) {
	ctx, cancel := context.WithTimeout(l.open, l.timeouts.handshake)
	defer cancel()
	c := &idleConn{Conn: tls.Server(raw, l.tls)}
	if err := c.HandshakeContext(ctx); err != nil {
		var header tls.RecordHeaderError
		if errors.As(err, &header) && header.Conn != nil {
			_, _ = io.WriteString(header.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nAgents connect by TLS.\n")
		}
		_ = raw.Close()
		l.log.Debug("TLS handshake failed", zap.Stringer("source", raw.RemoteAddr()), zap.Error(err))
		return
	}
	l.offer(c)
}

// offer gives a connection to net/http.
func (l *idleListener) offer(c *idleConn) {
	select {
	case l.sessions <- &session{idleConn: c, l: l}:
	case <-l.open.Done():
		_ = c.Close()
	}
}

// keep waits until something arrives on an idle connection, or its time is up.
func (l *idleListener) keep(c *idleConn) {
	raw := c.NetConn()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open.Err() != nil {
		_ = c.Close()
		return
	}
	l.idle[c] = struct{}{}
	l.running.Go(func() {
		_ = raw.SetReadDeadline(time.Now().Add(l.timeouts.idle - l.timeouts.linger))
		err := awaitReadable(raw.(syscall.Conn))
		l.mu.Lock()
		delete(l.idle, c)
		l.mu.Unlock()
		if err != nil {
			_ = c.Close()
			return
		}
		_ = raw.SetReadDeadline(time.Time{})
		l.offer(c)
	})
}

// awaitReadable returns once a read of the socket would not block. It consumes nothing and needs little stack.
func awaitReadable(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, failed = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(failed, syscall.EAGAIN) && !errors.Is(failed, syscall.EINTR)
	})
	return errors.Join(err, failed)
}

// followState is the server's ConnState hook.
func followState(c net.Conn, state http.ConnState) {
	if s, ok := c.(*session); ok {
		s.idling.Store(state == http.StateIdle)
	}
}

// idleConn is one agent's connection.
type idleConn struct {
	*tls.Conn

	buffer int // how much net/http reads in one call when nothing is left over
}

// session is a connection while net/http has it: from when something arrives until it has been idle for a while.
type session struct {
	*idleConn

	l      *idleListener
	idling atomic.Bool

	mu     sync.Mutex
	kept   bool // it leaves net/http, but stays open
	closed bool
}

// Read reads like a connection. If nothing arrives while it is idle, it reports the end of the connection to
// net/http, and keeps it.
func (s *session) Read(p []byte) (int, error) {
	if s.buffer == 0 {
		s.buffer = len(p)
	}
	// A partly filled buffer holds the beginning of the next request.
	if !s.idling.Load() || len(p) != s.buffer || len(p) == 1 {
		return s.Conn.Read(p)
	}
	if _, ok := s.NetConn().(syscall.Conn); !ok {
		return s.Conn.Read(p)
	}
	if err := s.SetReadDeadline(time.Now().Add(s.l.timeouts.linger)); err != nil {
		return 0, err
	}
	n, err := s.Conn.Read(p)
	if n > 0 {
		return n, errors.Join(err, s.SetReadDeadline(time.Now().Add(s.l.timeouts.idle)))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.kept = true
	}
	return 0, io.EOF
}

// Close closes the connection, unless the listener keeps it.
func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.kept {
		s.l.keep(s.idleConn)
		return nil
	}
	return s.Conn.Close()
}
