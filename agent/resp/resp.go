// Package resp speaks Redis's protocol, version 2, as a client. A command is a vector of strings of known lengths, so
// that nothing in an argument can become another command, and replies are bounded.
package resp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Bounds of a reply.
const (
	maxReply      = 4 << 20
	maxReplyDepth = 8
)

// Error is what the server answers instead of a reply.
type Error string

func (e Error) Error() string { return string(e) }

// Conn is a connection.
type Conn struct {
	w    io.Writer
	r    *bufio.Reader
	left int // bytes that the reply may still have
}

// New speaks over a connection, which stays the caller's to close.
func New(rw io.ReadWriter) *Conn { return &Conn{w: rw, r: bufio.NewReader(rw)} }

// Do sends a command and returns the reply: a string, an int64, nil or a []any of
// these. What the server refuses is an Error.
func (c *Conn) Do(args ...string) (any, error) {
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

// Scan passes the names of all keys that match a pattern to f, some at a time.
func Scan(do func(args ...string) (any, error), pattern string, f func(keys []string) error) error {
	for cursor := "0"; ; {
		reply, err := do("SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
		if err != nil {
			return err
		}
		page, _ := reply.([]any)
		if len(page) != 2 {
			return errors.New("the keys can't be read")
		}
		found, _ := page[1].([]any)
		keys := make([]string, len(found))
		for i, key := range found {
			keys[i] = fmt.Sprint(key)
		}
		if len(keys) > 0 {
			if err := f(keys); err != nil {
				return err
			}
		}
		if cursor = fmt.Sprint(page[0]); cursor == "0" {
			return nil
		}
	}
}

var errReply = errors.New("the server's reply can't be read")

func (c *Conn) reply(depth int) (any, error) {
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
		return nil, Error(text)
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

func (c *Conn) line() (string, error) {
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
