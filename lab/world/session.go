package world

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// session is a session of Postgres. It serves one connection of a bubble after another, and knows enough of the
// protocol to have statements prepared only once, and to send its own messages in between.
type session struct {
	raw   net.Conn
	pid   uint32
	hello []byte        // what a connection is greeted with
	news  chan struct{} // made outside of the bubble
	b     *bridge

	mu       sync.Mutex
	owner    *conn
	prepared map[string]bool
	asked    []asked      // messages without an answer, in order
	wrote    map[int]bool // invariants that the transaction may break
	err      error
}

// asked is what the server answers in turn: a statement that is prepared, or the end of
// messages that belong together.
type asked struct {
	prepares string
	ends     bool
	ours     bool // and the client does not expect the answer
}

func newSession(ctx context.Context, b *bridge) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	pg, err := pgconn.Connect(ctx, b.url)
	if err != nil {
		return nil, err
	}
	h, err := pg.Hijack()
	if err != nil {
		return nil, err
	}
	s := &session{
		raw: h.Conn, pid: h.PID, news: make(chan struct{}, 1), b: b, prepared: map[string]bool{},
		wrote: map[int]bool{},
	}
	hello := []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}}
	for _, name := range slices.Sorted(maps.Keys(h.ParameterStatuses)) {
		hello = append(hello, &pgproto3.ParameterStatus{Name: name, Value: h.ParameterStatuses[name]})
	}
	hello = append(hello, &pgproto3.BackendKeyData{ProcessID: h.PID, SecretKey: h.SecretKey},
		&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for _, m := range hello {
		if s.hello, err = m.Encode(s.hello); err != nil {
			return nil, err
		}
	}
	go s.readAhead()
	return s, nil
}

// ask sends messages of a connection, after a statement of our own.
func (s *session) ask(first string, messages []byte) error {
	out := make([]byte, 0, len(messages)+len(first)+8)
	s.mu.Lock()
	if first != "" {
		out = s.query(out, first)
	}
	for rest := messages; len(rest) > 0; {
		if len(rest) < 5 || len(rest) < 1+int(binary.BigEndian.Uint32(rest[1:])) {
			s.mu.Unlock()
			return fmt.Errorf("world: a message in parts")
		}
		n := 1 + int(binary.BigEndian.Uint32(rest[1:]))
		message := rest[:n]
		rest = rest[n:]
		switch message[0] {
		case 'P':
			name := word(message[5:])
			if s.prepared[name] { // an empty one, for the answer
				message = []byte{'P', 0, 0, 0, 8, 0, 0, 0, 0}
				name = ""
			}
			s.asked = append(s.asked, asked{prepares: name})
		case 'C':
			if message[5] == 'S' {
				delete(s.prepared, word(message[6:]))
			}
		case 'Q':
			if strings.HasPrefix(strings.ToLower(word(message[5:])), "deallocate") {
				clear(s.prepared) // they are prepared again where they still are: an error would show it
			}
			s.asked = append(s.asked, asked{ends: true})
		case 'S':
			s.asked = append(s.asked, asked{ends: true})
		case 'X':
			continue // the session continues
		}
		out = append(out, message...)
	}
	s.mu.Unlock()
	_, err := s.raw.Write(out)
	return err
}

// query adds a statement of our own; call it with the lock held.
func (s *session) query(out []byte, sql string) []byte {
	s.asked = append(s.asked, asked{ends: true, ours: true})
	out = append(out, 'Q')
	out = binary.BigEndian.AppendUint32(out, uint32(len(sql)+5)) //nolint:gosec // short
	return append(append(out, sql...), 0)
}

func word(b []byte) string {
	w, _, _ := bytes.Cut(b, []byte{0})
	return string(w)
}

func (s *session) readAhead() {
	var in []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := s.raw.Read(buf)
		in = append(in, buf[:n]...)
		s.mu.Lock()
		var theirs []byte
		for len(in) >= 5 && len(in) >= 1+int(binary.BigEndian.Uint32(in[1:])) {
			size := 1 + int(binary.BigEndian.Uint32(in[1:]))
			if !s.answered(in[:size]) {
				theirs = append(theirs, in[:size]...)
			}
			in = in[size:]
		}
		if err != nil {
			s.err = err
		}
		owner := s.owner
		s.mu.Unlock()
		if owner != nil && (len(theirs) > 0 || err != nil) {
			owner.tell(func() {
				owner.buf = append(owner.buf, theirs...)
				if err != nil {
					owner.err = err
				}
			})
		} else {
			select {
			case s.news <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
	}
}

// answered notes a message of the server, and reports whether it is for us; call it with the lock held.
func (s *session) answered(message []byte) (ours bool) {
	kind := message[0]
	switch {
	case kind == 'N' && s.told(message):
		return true
	case kind == 'Z' && message[5] == 'I':
		s.transactionEnded()
	}
	if len(s.asked) == 0 {
		return false
	}
	ours = s.asked[0].ours
	switch kind {
	case '1':
		if name := s.asked[0].prepares; name != "" {
			s.prepared[name] = true
		}
		if !s.asked[0].ends {
			s.asked = s.asked[1:]
		}
	case 'Z': // after an error, earlier messages have no answers
		for !s.asked[0].ends {
			s.asked = s.asked[1:]
		}
		s.asked = s.asked[1:]
	}
	return ours
}

// settle waits, outside of the bubble, until everything that was asked has its answer.
func (s *session) settle(most time.Duration) bool {
	late := time.After(most)
	for {
		s.mu.Lock()
		waiting, err := len(s.asked), s.err
		s.mu.Unlock()
		if err != nil {
			return false
		}
		if waiting == 0 {
			return true
		}
		select {
		case <-s.news:
		case <-late:
			return false
		}
	}
}

// ended reports whether Postgres has ended the session.
func (s *session) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// taken reports whether a connection has the session.
func (s *session) taken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owner != nil
}

// reset makes the session as good as new, but keeps its prepared statements.
func (s *session) reset() bool {
	s.mu.Lock()
	out := s.query(nil, "ROLLBACK; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all()")
	s.mu.Unlock()
	if _, err := s.raw.Write(out); err != nil {
		return false
	}
	return s.settle(5 * time.Second)
}
