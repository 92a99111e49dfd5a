package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/wire"
)

// redis queries the local server.
func (h *workplace) redis(ctx context.Context, s wire.Service, k *policy.Command, out io.Writer) error {
	r, done, err := h.OpenRedis(ctx, s)
	if err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, host.RedisError(err))
	}
	defer done()
	var reply any
	if slices.Contains(userVerbs, k.Verb) {
		err = redisUser(r.Do, k)
	} else {
		reply, err = r.Do(redisCommand(k.In.Args)...)
	}
	var refused resp.Error
	switch {
	case errors.As(err, &refused):
		return host.RedisError(err)
	case err != nil:
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	switch {
	case k.Verb == "slowlog":
		return printSlowlog(out, reply)
	case slices.Contains(userVerbs, k.Verb):
		return nil
	}
	printReply(out, reply)
	return nil
}

// userVerbs are the verbs of pools that are more than one command, see redisUser.
var userVerbs = []string{"create-user", "erase-user"}

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
		fmt.Fprintf(out, "%v\t%v\t%v µs\t%s\n", fields[0], fields[1], fields[2], host.Printable(name))
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
			fmt.Fprintln(out, host.Printable(strings.TrimRight(line, "\r\n")))
		}
	default:
		fmt.Fprintln(out, v)
	}
}
