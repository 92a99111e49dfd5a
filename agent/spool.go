package agent

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/wire"
)

// Sealed backups lie beside their sites, where the process that faces the network can't look.
// It gets at them through the process that runs commands, piece by piece, and at nothing else:
// a piece is read or written by a verb of a table of its own, which no command can name.
const (
	kindSpool wire.CommandKind = "spool"

	pathSpool       = "/spool"
	verbReadSealed  = "read-sealed"
	verbWriteSealed = "write-sealed"

	// maxPieces is how many pieces are read or written at once.
	maxPieces = 2
	pieceTime = 5 * time.Minute
)

// feedFlag makes a supervisor pass its input on, see feedTo.
const feedFlag = "--feed"

func inputFlag(input io.Reader) string {
	if input != nil {
		return feedFlag
	}
	return "--input"
}

// feedChunk is how many bytes a line of feedTo has.
const feedChunk = 32 << 10

// endOfFeed is the line after the last one: the supervisor's own input stays open, since its
// end means something else.
const endOfFeed = "."

// feedTo writes a command's input for its supervisor, as lines of base64; between them there
// may be empty ones, which say that the caller lives.
func feedTo(w io.Writer, from io.Reader) error {
	buf, line := make([]byte, feedChunk), make([]byte, 0, base64.StdEncoding.EncodedLen(feedChunk)+1)
	for {
		n, err := io.ReadFull(from, buf)
		if n > 0 {
			line = append(base64.StdEncoding.AppendEncode(line[:0], buf[:n]), '\n')
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			_, err = io.WriteString(w, endOfFeed+"\n")
			return err
		}
		if err != nil {
			return err
		}
	}
}

// copyLines passes whole lines on, so that others can write lines between them, until there
// are no more.
func copyLines(to io.Writer, from io.Reader) {
	in := bufio.NewReaderSize(from, 2*feedChunk)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if _, err := to.Write(line); err != nil {
			return
		}
	}
}

// passOn is the other end of feedTo: it writes to a command until the feed ends, and reads on
// until there is nothing more. What a command does not want is thrown away.
func passOn(from io.Reader, to io.WriteCloser, heard func()) {
	defer func() { _ = to.Close() }()
	in, buf := bufio.NewReaderSize(from, 2*feedChunk), make([]byte, feedChunk+3)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		heard()
		switch text := line[:len(line)-1]; {
		case len(text) == 0:
		case string(text) == endOfFeed:
			_ = to.Close()
		default:
			n, err := base64.StdEncoding.Decode(buf, text)
			if err != nil {
				return // nobody sends this; the command is killed
			}
			_, _ = to.Write(buf[:n])
			heard()
		}
	}
}

// spoolURL names a piece for the process that runs commands.
func spoolURL(site, volume, backup string, offset, length int64) string {
	q := url.Values{"site": {site}, "volume": {volume}, "backup": {backup}, "offset": {strconv.FormatInt(offset, 10)}, "length": {strconv.FormatInt(length, 10)}}
	return "http://exec" + pathSpool + "?" + q.Encode()
}

// spool reads or writes a piece of a sealed backup.
func (e *Executor) spool(w http.ResponseWriter, r *http.Request) *problem {
	verb := map[string]string{http.MethodGet: verbReadSealed, http.MethodPut: verbWriteSealed}[r.Method]
	if verb == "" {
		return &problem{status: http.StatusMethodNotAllowed, code: "method_not_allowed", detail: "this path takes GET and PUT"}
	}
	q := r.URL.Query()
	of, name := "--site", q.Get("site")
	if v := q.Get("volume"); v != "" {
		of, name = "--volume", v
	}
	k, refused := e.host.check(wire.ExecRequest{Kind: kindSpool, Args: []string{of, name, verb, q.Get("backup"), q.Get("offset"), q.Get("length")}})
	if refused != nil {
		return refused
	}
	length, err := strconv.ParseInt(q.Get("length"), 10, 64)
	if err != nil || length > wire.MaxPiece {
		return invalid("length", fmt.Sprintf("must be at most %d", wire.MaxPiece))
	}
	select {
	case e.pieces <- struct{}{}:
		defer func() { <-e.pieces }()
	case <-r.Context().Done():
		return nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(pieceTime))
	_ = control.SetWriteDeadline(time.Now().Add(pieceTime))
	ctx, cancel := context.WithTimeout(r.Context(), pieceTime)
	defer cancel()
	defer context.AfterFunc(e.cmds.ctx, cancel)()
	out := &pieceWriter{w: w, length: length}
	var stdout io.Writer = out
	var input io.Reader
	if verb == verbWriteSealed {
		stdout, input = io.Discard, io.LimitReader(r.Body, length+1)
	}
	var stderr tail
	var status int
	if of == "--volume" {
		if err = e.host.askPiece(ctx, k.in.Args, input, stdout); err != nil && !errors.Is(err, errUnavailable) {
			_, _ = io.WriteString(&stderr, err.Error())
			status, err = 1, nil
		}
	} else {
		status, err = e.host.bench(ctx, k, input, stdout, &stderr)
	}
	switch {
	case err == nil && status == 0:
		if verb == verbWriteSealed {
			w.WriteHeader(http.StatusNoContent)
		}
		return nil
	case out.begun:
		panic(http.ErrAbortHandler) // the reader sees that it is too short
	case err != nil:
		return &problem{status: http.StatusServiceUnavailable, code: wire.FailedHost, detail: err.Error(), retryAfter: 1}
	}
	code, text := failedAs(stderr.String())
	return &problem{status: http.StatusConflict, code: code, detail: text}
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
		return code, printable(rest)
	}
	return wire.FailedHost, printable(last)
}
