// Package exec is the process that runs commands, as a user of its own: it has the passwords of
// databases and caches, and no way to the network. It listens on a local socket, to the process
// that faces the network only, and what takes root it asks processes for that have it.
package exec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// keepAlive is how often a quiet stream sends a comment.
const keepAlive = 15 * time.Second

// Executor is the process that runs commands. It listens to one user on a local socket,
// and decides by itself what may run: the process that faces the network has no other
// access to commands, or to what they work on.
type Executor struct {
	host *workplace
	cmds *commands
	uid  uint32 // the only allowed caller
	log  *slog.Logger
	// pieces of sealed backups that are on their way
	pieces chan struct{}
}

// New accepts requests from the named user only; "" is its own. asRoot does what takes
// root; nil asks the host's processes that may.
func New(h *host.Host, agentUser string, asRoot AsRoot, log *slog.Logger) (*Executor, error) {
	uid, err := host.UIDOf(agentUser)
	if err != nil {
		return nil, fmt.Errorf("the agent's user: %w", err)
	}
	if asRoot == nil {
		asRoot = rootProcesses{h}
	}
	work := &workplace{Host: h, asRoot: asRoot}
	cmds, err := newCommands(work)
	if err != nil {
		return nil, err
	}
	return &Executor{host: work, cmds: cmds, uid: uid, log: log, pieces: make(chan struct{}, maxPieces)}, nil
}

// Run serves until ctx ends, and then kills what runs.
func (e *Executor) Run(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: http.HandlerFunc(e.handle), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 4 << 10, ErrorLog: slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
	go e.cmds.endLeases(e.log)
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		e.cmds.stop() // so that waiting callers are answered
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(drain)
	}()
	e.log.Info("running commands", "server_id", e.host.Config.ServerID, "for_uid", e.uid)
	err := srv.Serve(&host.PeerListener{Listener: l, UID: e.uid, Log: e.log})
	if errors.Is(err, http.ErrServerClosed) {
		<-done
		return nil
	}
	e.cmds.stop()
	return fmt.Errorf("socket: %w", err)
}

func (e *Executor) handle(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == host.PathMeasures && r.Method == http.MethodGet {
		e.serveMeasures(w, r)
		return
	}
	if r.URL.Path == host.PathPatches && r.Method == http.MethodGet {
		e.servePatches(w, r)
		return
	}
	if r.URL.Path == host.PathSpool {
		if p := e.spool(w, r); p != nil {
			// Who still writes when the connection is closed reads no answer, and does not learn that the disk is full.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(host.PieceTime))
			_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, wire.MaxPiece))
			p.Write(w)
		}
		return
	}
	if p := e.exec(w, r); p != nil {
		p.Write(w)
	}
}

// exec runs a command. Only the command's own timeout limits it.
func (e *Executor) exec(w http.ResponseWriter, r *http.Request) *policy.Problem {
	if refused := policy.NotAnEndpoint(w, r); refused != nil {
		return refused
	}
	body, refused := policy.ReadBody(w, r)
	if refused != nil {
		return refused
	}
	in, refused := policy.Parse(e.host.Config.ServerID, body)
	if refused != nil {
		return refused
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	c, refused := e.cmds.submit(in, e.log)
	if refused != nil {
		return refused
	}
	if r.URL.Path == wire.PathExecStream {
		streamProgress(w, r, c)
		return nil
	}
	select {
	case <-c.ended:
	case <-r.Context().Done():
		return nil // the caller is gone; the command goes on, and can be asked for again
	}
	if c.failed != nil {
		return c.failed
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(c.result)
	return nil
}

// streamProgress streams a command. A slow or vanished reader delays only itself: it
// reads the kept lines at its own pace.
func streamProgress(w http.ResponseWriter, r *http.Request, c *call) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	next := 0
	// send writes what is new.
	send := func() (wake <-chan struct{}, err error) {
		_ = control.SetWriteDeadline(time.Now().Add(host.WriteTime))
		var lines []wire.ExecProgress
		if c.progress != nil {
			lines, next, wake = c.progress.from(next)
		}
		for _, l := range lines {
			if err := wire.WriteEvent(w, wire.EventProgress, l); err != nil {
				return nil, err
			}
		}
		return wake, control.Flush()
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		wake, err := send()
		if err != nil {
			return
		}
		select {
		case <-wake:
		case <-tick.C:
			if wire.WriteKeepAlive(w) != nil {
				return
			}
		case <-r.Context().Done():
			return // the command goes on
		case <-c.ended:
			if _, err := send(); err != nil {
				return
			}
			if c.failed != nil {
				_ = wire.WriteEvent(w, wire.EventError, c.failed.Document())
			} else {
				_ = wire.WriteEvent(w, wire.EventResult, c.result)
			}
			return
		}
	}
}
