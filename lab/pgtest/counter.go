package pgtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Counter is a proxy in front of a database that counts its statements: of any kind, including transaction control, as
// the server gets them.
type Counter struct {
	URL string // of the database, through the proxy

	mu    sync.Mutex
	total int
	texts map[string]int
}

// Count starts a proxy in front of the database at a URL, for as long as the test runs.
func Count(t testing.TB, database string) *Counter {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	network, target := "tcp", u.Host
	if dir := u.Query().Get("host"); strings.HasPrefix(dir, "/") {
		port := u.Query().Get("port")
		if port == "" {
			port = "5432"
		}
		network, target = "unix", dir+"/.s.PGSQL."+port
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed when the test ends
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	q := u.Query()
	q.Del("host")
	q.Del("port")
	q.Set("sslmode", "disable") // the proxy reads along
	u.Host, u.RawQuery = l.Addr().String(), q.Encode()
	c := &Counter{URL: u.String(), texts: map[string]int{}}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go c.serve(in, network, target)
		}
	}()
	return c
}

func (c *Counter) serve(in net.Conn, network, target string) {
	defer func() { _ = in.Close() }()
	out, err := net.Dial(network, target) //nolint:noctx // lives as long as the connection in
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	go func() {
		_, _ = io.Copy(in, out)
		_ = in.Close()
	}()
	s := session{counter: c, prepared: map[string]string{}, bound: map[string]string{}}
	r := bufio.NewReaderSize(in, 1<<16)
	for first := true; ; first = false {
		message, err := read(r, first)
		if err != nil {
			return
		}
		if !first {
			s.note(message[0], message[5:])
		}
		if _, err := out.Write(message); err != nil {
			return
		}
	}
}

// read reads one message of a client; the first of a connection has no type.
func read(r io.Reader, first bool) ([]byte, error) {
	head := 5
	if first {
		head = 4
	}
	start := make([]byte, head)
	if _, err := io.ReadFull(r, start); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(start[head-4:])) - 4
	message := make([]byte, head+max(length, 0))
	copy(message, start)
	_, err := io.ReadFull(r, message[head:])
	return message, err
}

// session knows the text of what one connection executes.
type session struct {
	counter         *Counter
	prepared, bound map[string]string
	began           bool
	first           string // statement of its transaction
}

func (s *session) note(kind byte, body []byte) {
	text := func() string {
		t, rest, _ := strings.Cut(string(body), "\x00")
		body = []byte(rest)
		return t
	}
	switch kind {
	case 'P':
		name := text()
		s.prepared[name] = text()
	case 'B':
		portal := text()
		s.bound[portal] = s.prepared[text()]
	case 'E':
		s.add(s.bound[text()])
	case 'Q':
		s.add(text())
	}
}

// ping is what the pool sends on connections that were idle.
const ping = "-- ping"

// add counts a statement. What begins and ends a transaction is known by its first statement.
func (s *session) add(text string) {
	text = strings.Join(strings.Fields(text), " ")
	switch {
	case text == ping || text == ";" || text == "":
		return
	case text == "begin":
		s.began = true
		return
	case s.began:
		s.began, s.first = false, text
		s.counter.add("begin; " + text)
	case text == "commit" || text == "rollback":
		text += "; " + s.first
	case strings.HasPrefix(text, "BEGIN; "):
		s.first = text[len("BEGIN; "):]
	}
	s.counter.add(text)
}

func (c *Counter) add(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total++
	c.texts[text]++
}

// Reset clears the counts.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total, c.texts = 0, map[string]int{}
}

// Statements is how many were executed since the last Reset, and how often each.
func (c *Counter) Statements() (total int, texts map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total, maps.Clone(c.texts)
}
