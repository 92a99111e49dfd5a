package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"unicode"

	"github.com/prego/prego/agent/wire"
)

// Bounds of a reply.
const (
	maxReply      = 4 << 20
	maxReplyDepth = 8
)

// redisError is what the server answers instead of a reply.
type redisError string

func (e redisError) Error() string { return string(e) }

// redis asks the local server. A command is a vector of strings of known lengths,
// so that nothing in an argument can become another command.
func (h *Host) redis(ctx context.Context, s wire.Service, k *call, out io.Writer) error {
	r, err := h.openRedis(ctx, s)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	defer r.close()
	reply, err := r.do(redisCommand(k.in.Args)...)
	var refused redisError
	switch {
	case errors.As(err, &refused):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	if k.verb == "slowlog" {
		return slowlog(out, reply)
	}
	printReply(out, reply)
	return nil
}

// openRedis connects as the configured user. When ctx ends, so does the connection.
func (h *Host) openRedis(ctx context.Context, s wire.Service) (*respConn, error) {
	conn, err := h.dialRedis(ctx, s)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r := &respConn{w: conn, r: bufio.NewReader(conn), close: func() { stop(); _ = conn.Close() }}
	if s.User == "" && s.Password == "" {
		return r, nil
	}
	if s.User == "" {
		s.User = wire.DefaultServiceUser
	}
	if _, err := r.do("AUTH", s.User, s.Password); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (h *Host) dialRedis(ctx context.Context, s wire.Service) (net.Conn, error) {
	if s.Addr != "" {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
	}
	return dialSocket(ctx, h.path(s.Socket))
}

// redisCommand is what a verb says to the server.
func redisCommand(args []string) []string {
	switch args[0] {
	case "memory-usage":
		return []string{"MEMORY", "USAGE", args[1]}
	case "slowlog":
		return []string{"SLOWLOG", "GET", args[1]}
	case "client-list":
		return []string{"CLIENT", "LIST"}
	default: // ping, info, dbsize
		return append([]string{strings.ToUpper(args[0])}, args[1:]...)
	}
}

// slowlog prints entries without the arguments of their commands: they hold data
// of tenants.
func slowlog(out io.Writer, reply any) error {
	entries, ok := reply.([]any)
	if !ok {
		return errors.New("the server's slow log can't be read")
	}
	for _, e := range entries {
		fields, ok := e.([]any)
		if !ok || len(fields) < 4 {
			return errors.New("the server's slow log can't be read")
		}
		name := ""
		if command, ok := fields[3].([]any); ok && len(command) > 0 {
			name = fmt.Sprint(command[0])
		}
		fmt.Fprintf(out, "%v\t%v\t%v µs\t%s\n", fields[0], fields[1], fields[2], printable(name))
	}
	return nil
}

func printReply(out io.Writer, reply any) {
	switch v := reply.(type) {
	case nil:
		fmt.Fprintln(out, "(nil)")
	case []any:
		for _, e := range v {
			printReply(out, e)
		}
	case string: // INFO and CLIENT LIST are lines
		for line := range strings.Lines(v) {
			fmt.Fprintln(out, printable(strings.TrimRight(line, "\r\n")))
		}
	default:
		fmt.Fprintln(out, v)
	}
}

// printable replaces what could move a terminal's cursor, or end a line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// respConn speaks Redis's protocol, version 2.
type respConn struct {
	w     io.Writer
	r     *bufio.Reader
	left  int // bytes that the reply may still have
	close func()
}

func (c *respConn) do(args ...string) (any, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c.w, b.String()); err != nil {
		return nil, err
	}
	c.left = maxReply
	return c.reply(0)
}

var errReply = errors.New("the server's reply can't be read")

func (c *respConn) reply(depth int) (any, error) {
	line, err := c.line()
	if err != nil {
		return nil, err
	}
	if line == "" || depth > maxReplyDepth {
		return nil, errReply
	}
	switch kind, text := line[0], line[1:]; kind {
	case '+':
		return text, nil
	case '-':
		return nil, redisError(printable(text))
	case ':':
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, errReply
		}
		return n, nil
	case '$':
		n, err := strconv.Atoi(text)
		if err == nil && n == -1 {
			return nil, nil
		}
		if err != nil || n < 0 || n > c.left {
			return nil, errReply
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, b); err != nil {
			return nil, err
		}
		c.left -= n
		if string(b[n:]) != "\r\n" {
			return nil, errReply
		}
		return string(b[:n]), nil
	case '*':
		n, err := strconv.Atoi(text)
		if err == nil && n == -1 {
			return nil, nil
		}
		if err != nil || n < 0 || n > c.left {
			return nil, errReply
		}
		var out []any
		for range n {
			e, err := c.reply(depth + 1)
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		return out, nil
	}
	return nil, errReply
}

func (c *respConn) line() (string, error) {
	line, err := c.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", errReply
	}
	if err != nil {
		return "", err
	}
	if c.left -= len(line); c.left < 0 || len(line) < 2 || line[len(line)-2] != '\r' {
		return "", errReply
	}
	return string(line[:len(line)-2]), nil
}
