package relay

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
)

// Server is a worker's side.
type Server struct {
	Keys Keyholder
	Log  *zap.Logger
}

// Serve answers at l until ctx ends. Running commands and repairs then have drain to finish; followed logs end
// immediately, since the API can ask another worker.
func (s *Server) Serve(ctx context.Context, l net.Listener, config *tls.Config, drain time.Duration) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	srv := &http.Server{
		Handler: s.handler(ctx), TLSConfig: config, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: zap.NewStdLog(s.Log), BaseContext: func(net.Listener) context.Context { return base },
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		limit, cancel := context.WithTimeout(base, drain)
		defer cancel()
		if srv.Shutdown(limit) != nil {
			cut()
			_ = srv.Close()
		}
	}()
	err := srv.ServeTLS(l, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		<-done
		return nil
	}
	return fmt.Errorf("relay: %w", err)
}

// handler serves all requests; ending is done when the worker stops.
func (s *Server) handler(ending context.Context) http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, f func(ctx context.Context, in request, out *answer) message) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var in request
			dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
			dec.DisallowUnknownFields() // from an API newer than this worker
			if err := dec.Decode(&in); err != nil {
				http.Error(w, "not a request of the relay", http.StatusBadRequest)
				return
			}
			out := newAnswer(w)
			stop := out.keepAlive()
			end := f(r.Context(), in, out)
			stop()
			end.End = true
			_ = out.send(end)
		})
	}
	handle(pathRun, func(ctx context.Context, in request, out *answer) message {
		if in.Command == nil {
			return message{Failure: failureOf(prego.Invalid("command", "is missing"))}
		}
		outcome, err := s.Keys.Run(ctx, in.Addr, *in.Command, in.Timeout, func(stream, line string) {
			_ = out.send(message{Stream: stream, Line: &line}) // a command continues without its caller
		})
		return message{Outcome: &outcome, Failure: failureOf(err)}
	})
	handle(pathList, func(ctx context.Context, in request, _ *answer) message {
		list, err := s.Keys.ListContainers(ctx, in.ServerID, in.Addr)
		return message{Containers: list, Failure: failureOf(err)}
	})
	handle(pathLogs, func(ctx context.Context, in request, out *answer) message {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(ending, cancel)()
		send := func(line string) error { return out.send(message{Line: &line}) }
		err := s.Keys.ContainerLogs(ctx, in.ServerID, in.Addr, in.Role, in.Name, in.Tail, in.Follow, send)
		return message{Failure: failureOf(err)}
	})
	handle(pathRepair, func(ctx context.Context, in request, _ *answer) message {
		drift, err := s.Keys.RepairContainers(ctx, in.ServerID, in.Addr, in.Role)
		return message{Drift: drift, Failure: failureOf(err)}
	})
	handle(pathImport, func(ctx context.Context, in request, _ *answer) message {
		if in.Server == nil {
			return message{Failure: failureOf(prego.Invalid("server", "is missing"))}
		}
		bootstrap, err := s.Keys.IssueImport(ctx, *in.Server)
		return message{Bootstrap: bootstrap, Failure: failureOf(err)}
	})
	handle(pathSeal, func(ctx context.Context, in request, _ *answer) message {
		sealed, keyID, err := s.Keys.Seal(ctx, in.Box.BelongsTo, in.Box.Secret)
		return message{Box: box{Sealed: sealed, KeyID: keyID}, Failure: failureOf(err)}
	})
	handle(pathReseal, func(ctx context.Context, in request, _ *answer) message {
		sealed, keyID, err := s.Keys.Reseal(ctx, in.Box.BelongsTo, in.Box.KeyID, in.Box.Sealed)
		return message{Box: box{Sealed: sealed, KeyID: keyID}, Failure: failureOf(err)}
	})
	return mux
}

// answer writes messages immediately, until a write fails.
type answer struct {
	w       http.ResponseWriter
	control *http.ResponseController

	mu     sync.Mutex
	broken error
}

func newAnswer(w http.ResponseWriter) *answer {
	w.Header().Set("Content-Type", "application/x-ndjson")
	a := &answer{w: w, control: http.NewResponseController(w)}
	// The request has been read: from here on, deadlines apply to each message.
	_ = a.control.SetReadDeadline(time.Time{})
	return a
}

func (a *answer) send(m message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken == nil {
		_ = a.control.SetWriteDeadline(time.Now().Add(silentFor))
		if a.broken = json.NewEncoder(a.w).Encode(m); a.broken == nil {
			a.broken = a.control.Flush()
		}
	}
	return a.broken
}

func (a *answer) keepAlive() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(keepAlive)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				_ = a.send(message{})
			}
		}
	}()
	return func() { close(quit); <-ended }
}
