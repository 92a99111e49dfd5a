package rooted

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// Watcher is the process that reads the engine's events for the process that faces the network. It holds the engine's
// socket, and so could do anything on the host: it takes no request at all. It makes four calls, and these only for
// containers with the labels of this server and of an instance: events, the list of containers, one container's
// state, and the last lines of its output.
type Watcher struct {
	host   *host.Host
	engine *client.Client
	caller string // the only allowed one
	log    *slog.Logger
}

// NewWatcher lets the named user listen; "" is its own. engine is dockerd's address.
func NewWatcher(h *host.Host, caller, engine string, log *slog.Logger) (*Watcher, error) {
	c, err := client.New(client.WithHost(engine))
	if err != nil {
		return nil, fmt.Errorf("docker client: %w", err)
	}
	return &Watcher{host: h, engine: c, caller: caller, log: log}, nil
}

// maxWatching bounds the listeners; there is one.
const maxWatching = 4

// Run serves until ctx ends.
func (w *Watcher) Run(ctx context.Context, l net.Listener) error {
	defer func() { _ = w.engine.Close() }()
	slots := make(chan struct{}, maxWatching)
	return host.Serve(ctx, l, w.caller, w.log, func(conn net.Conn) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			w.serve(ctx, conn)
		default:
		}
	})
}

func (w *Watcher) serve(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the listener sends nothing: any data or error is its end
		_, _ = conn.Read(make([]byte, 1))
		cancel()
	}()
	enc := json.NewEncoder(conn)
	err := w.Stream(ctx, func(f host.WatchFrame) error {
		_ = conn.SetWriteDeadline(time.Now().Add(host.WriteTime))
		return enc.Encode(f)
	})
	if ctx.Err() == nil {
		w.log.Warn("containers are not watched", "error", err.Error())
	}
}

// Stream reports the state of all containers, and then of each that changes, until ctx ends or the engine does.
func (w *Watcher) Stream(ctx context.Context, emit func(host.WatchFrame) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	labels := func() client.Filters {
		return client.Filters{}.Add("label", wire.LabelServer+"="+w.host.Config.ServerID, wire.LabelInstance)
	}
	// Since: the engine answers before it has subscribed, and replays the events in between. A signal that kills
	// shows as die. A health check's own processes cause no event.
	changes := w.engine.Events(ctx, client.EventsListOptions{
		Since: strconv.FormatInt(time.Now().Unix(), 10),
		Filters: labels().Add("type", string(events.ContainerEventType)).
			Add("event", string(events.ActionStart), string(events.ActionDie), string(events.ActionOOM), string(events.ActionHealthStatus), string(events.ActionDestroy)),
	})
	list, err := w.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: labels()})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	all := host.WatchFrame{Full: true, Containers: make([]host.WatchedContainer, 0, len(list.Items))}
	for _, item := range list.Items {
		c, err := w.look(ctx, item.ID, item.Labels[wire.LabelInstance])
		if err != nil {
			return err
		}
		all.Containers = append(all.Containers, c)
	}
	if err := emit(all); err != nil {
		return err
	}
	for {
		select {
		case e := <-changes.Messages:
			c, err := w.look(ctx, e.Actor.ID, e.Actor.Attributes[wire.LabelInstance])
			if err != nil {
				return err
			}
			if err := emit(host.WatchFrame{Containers: []host.WatchedContainer{c}}); err != nil {
				return err
			}
		case err := <-changes.Err:
			if err == nil {
				err = errors.New("the engine ended the stream")
			}
			return fmt.Errorf("events: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look reads a container's present state; a missing container has ended.
func (w *Watcher) look(ctx context.Context, id, instance string) (host.WatchedContainer, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out := host.WatchedContainer{Instance: instance}
	got, err := w.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		out.Detail = "its container is gone"
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("inspect: %w", err)
	}
	c := got.Container
	if c.State == nil {
		return out, errors.New("inspect: the engine reports no state")
	}
	if at, err := time.Parse(time.RFC3339Nano, c.State.StartedAt); err == nil {
		out.StartedAt = at
	}
	if c.Config != nil {
		out.Check = c.Config.Labels[wire.LabelHealth]
	}
	switch s := c.State; {
	case s.Status == container.StateCreated: // to be started
		out.Running, out.Health = true, string(container.Starting)
	case !s.Running:
		out.Detail = fmt.Sprintf("it ended with status %d", s.ExitCode)
		if s.OOMKilled {
			out.Detail += " (out of memory)"
		}
		out.Detail += "; " + w.lastLines(ctx, id)
	default:
		out.Running, out.Address = true, address(c)
		if h := s.Health; h != nil && h.Status != container.NoHealthcheck {
			out.Health = string(h.Status)
			if n := len(h.Log); h.Status == container.Unhealthy {
				out.Detail = "its health check fails"
				if n > 0 {
					out.Detail = fmt.Sprintf("its health check ended with %d: %s", h.Log[n-1].ExitCode, host.Clip(strings.TrimSpace(h.Log[n-1].Output), 200))
				}
				out.Detail += "; " + w.lastLines(ctx, id)
			}
		}
	}
	out.Detail = host.Clip(out.Detail, wire.MaxContainerDetail)
	return out, nil
}

// address is where a container is reached from the host, "" if it isn't.
func address(c container.InspectResponse) string {
	if c.NetworkSettings == nil {
		return ""
	}
	for _, n := range c.NetworkSettings.Networks {
		if n != nil && n.IPAddress.IsValid() {
			return n.IPAddress.String()
		}
	}
	return ""
}

// maxLastLines is how many bytes of a container's output are reported.
const maxLastLines = 700

func (w *Watcher) lastLines(ctx context.Context, id string) string {
	logs, err := w.engine.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "10"})
	if err != nil {
		return "its logs can't be read"
	}
	defer func() { _ = logs.Close() }()
	var out bytes.Buffer
	last := writerFunc(func(p []byte) (int, error) {
		out.Write(p)
		if over := out.Len() - maxLastLines; over > 0 {
			out.Next(over)
		}
		return len(p), nil
	})
	_, _ = stdcopy.StdCopy(last, last, logs)
	text := strings.TrimSpace(strings.ToValidUTF8(out.String(), ""))
	if text == "" {
		return "it wrote nothing"
	}
	return "its last lines: " + text
}
