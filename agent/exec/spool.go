package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// maxPieces is how many pieces are read or written at once.
const maxPieces = 2

// spool reads or writes a piece of a sealed backup.
func (e *Executor) spool(w http.ResponseWriter, r *http.Request) *policy.Problem {
	verb := map[string]string{http.MethodGet: policy.VerbReadSealed, http.MethodPut: policy.VerbWriteSealed}[r.Method]
	if verb == "" {
		return &policy.Problem{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Detail: "this path takes GET and PUT"}
	}
	q := r.URL.Query()
	of, name := "--site", q.Get("site")
	if v := q.Get("volume"); v != "" {
		of, name = "--volume", v
	}
	k, refused := policy.Check(wire.ExecRequest{Kind: policy.KindSpool, Args: []string{of, name, verb, q.Get("backup"), q.Get("offset"), q.Get("length")}})
	if refused != nil {
		return refused
	}
	length, err := strconv.ParseInt(q.Get("length"), 10, 64)
	if err != nil || length > wire.MaxPiece {
		return policy.Invalid("length", fmt.Sprintf("must be at most %d", wire.MaxPiece))
	}
	select {
	case e.pieces <- struct{}{}:
		defer func() { <-e.pieces }()
	case <-r.Context().Done():
		return nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(host.PieceTime))
	_ = control.SetWriteDeadline(time.Now().Add(host.PieceTime))
	ctx, cancel := context.WithTimeout(r.Context(), host.PieceTime)
	defer cancel()
	defer context.AfterFunc(e.cmds.ctx, cancel)()
	out := &pieceWriter{w: w, length: length}
	var stdout io.Writer = out
	var input io.Reader
	if verb == policy.VerbWriteSealed {
		stdout, input = io.Discard, io.LimitReader(r.Body, length+1)
	}
	var stderr tail
	var status int
	if of == "--volume" {
		if err = e.host.asRoot.Do(ctx, host.DeviceRequest{Kind: k.In.Kind, Args: k.In.Args}, input, stdout); err != nil && !errors.Is(err, host.ErrUnavailable) {
			_, _ = io.WriteString(&stderr, err.Error())
			status, err = 1, nil
		}
	} else {
		status, err = e.host.bench(ctx, k, input, stdout, &stderr)
	}
	switch {
	case err == nil && status == 0:
		if verb == policy.VerbWriteSealed {
			w.WriteHeader(http.StatusNoContent)
		}
		return nil
	case out.begun:
		panic(http.ErrAbortHandler) // the reader sees that it is too short
	case err != nil:
		return &policy.Problem{Status: http.StatusServiceUnavailable, Code: wire.FailedHost, Detail: err.Error(), RetryAfter: 1}
	}
	code, text := failedAs(stderr.String())
	return &policy.Problem{Status: http.StatusConflict, Code: code, Detail: text}
}

// pieceWriter begins the answer with the first bytes.
type pieceWriter struct {
	w      http.ResponseWriter
	length int64
	begun  bool
}

func (p *pieceWriter) Write(b []byte) (int, error) {
	if !p.begun {
		p.begun = true
		p.w.Header().Set("Content-Type", "application/octet-stream")
		p.w.Header().Set("Content-Length", strconv.FormatInt(p.length, 10))
	}
	return p.w.Write(b)
}

// failedAs reads a verb's code and reason from the end of what it wrote to stderr.
func failedAs(stderr string) (code, text string) {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "site: ")
	if code, rest, ok := strings.Cut(last, ": "); ok && wire.IsFailure(code) {
		return code, host.Printable(rest)
	}
	return wire.FailedHost, host.Printable(last)
}
