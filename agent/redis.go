package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"unicode"

	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/wire"
)

// redis queries the local server.
func (h *Host) redis(ctx context.Context, s wire.Service, k *call, out io.Writer) error {
	r, done, err := h.openRedis(ctx, s)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, redisError(err))
	}
	defer done()
	var reply any
	if slices.Contains(userVerbs, k.verb) {
		err = redisUser(r.Do, k)
	} else {
		reply, err = r.Do(redisCommand(k.in.Args)...)
	}
	var refused resp.Error
	switch {
	case errors.As(err, &refused):
		return redisError(err)
	case err != nil:
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	switch {
	case k.verb == "slowlog":
		return printSlowlog(out, reply)
	case slices.Contains(userVerbs, k.verb):
		return nil
	}
	printReply(out, reply)
	return nil
}

// userVerbs are the verbs of pools that are more than one command, see redisUser.
var userVerbs = []string{"create-user", "erase-user"}

// openRedis connects as the configured user. The connection ends with ctx.
func (h *Host) openRedis(ctx context.Context, s wire.Service) (r *resp.Conn, done func(), err error) {
	conn, err := h.dialRedis(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r, done = resp.New(conn), func() { stop(); _ = conn.Close() }
	if s.User == "" && s.Password == "" {
		return r, done, nil
	}
	if s.User == "" {
		s.User = wire.DefaultServiceUser
	}
	if _, err := r.Do("AUTH", s.User, s.Password); err != nil {
		done()
		return nil, nil, err
	}
	return r, done, nil
}

// redisError is a server's error, on one line.
func redisError(err error) error {
	var refused resp.Error
	if errors.As(err, &refused) {
		return resp.Error(printable(string(refused)))
	}
	return err
}

func (h *Host) dialRedis(ctx context.Context, s wire.Service) (net.Conn, error) {
	if s.Addr != "" {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
	}
	return dialSocket(ctx, h.path(s.Socket))
}

// redisCommand is the Redis command of a verb.
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

// printSlowlog prints entries without the arguments of their commands: they hold
// tenants' data.
func printSlowlog(out io.Writer, reply any) error {
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

// printable replaces characters that could move a terminal's cursor, or end a line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}
