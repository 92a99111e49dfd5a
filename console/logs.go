package console

import (
	"bytes"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/api"
)

// logs shows the newest lines of a container's log, and new ones as they come.
func (c *Console) logs(op *operation) echo.HandlerFunc {
	return func(ec echo.Context) error {
		params := paramsOf(ec)
		name := params["name"]
		if name == "" {
			name = params["instance_id"]
		}
		u := *ec.Request().URL
		section, back := "servers", "servers/"+url.PathEscape(params["server_id"])
		if params["server_id"] == "" {
			section, back = "instances", "instances/"+url.PathEscape(params["instance_id"])
		}
		return c.show(ec, http.StatusOK, &page{
			Title: "Log of " + name, Section: section, Crumbs: []crumb{{Text: section, Href: "/console/" + section}, {Text: back[len(section)+1:], Href: "/console/" + back}}, Template: "logs",
			Body: map[string]any{"Stream": u.EscapedPath() + "/stream"}, Commands: c.readCommands(ec, op, url.Values{"follow": {"true"}}, params),
		})
	}
}

// logTail is how many lines of a log are shown at first.
const logTail = "200"

// follow streams a log to a browser.
func (c *Console) follow(path string) echo.HandlerFunc {
	return func(ec echo.Context) error {
		in := ec.Request()
		v := ec.Get(visitorKey).(*visitor)
		ctx, done, err := c.stream(ec, "") // the API decides on the log
		if err != nil {
			return err
		}
		defer done()
		r, err := http.NewRequestWithContext(api.As(ctx, v.Principal), http.MethodGet, fill(path, from(paramsOf(ec)))+"?follow=true&tail="+logTail, http.NoBody)
		if err != nil {
			return err
		}
		r.RemoteAddr, r.Host, r.RequestURI = in.RemoteAddr, in.Host, r.URL.RequestURI()
		w := &lineEvents{ResponseWriter: ec.Response().Writer, header: http.Header{}}
		ec.Response().Committed = true // it writes by itself
		cut := aborted(c.d.API, w, r)
		w.end(cut)
		return nil
	}
}

// aborted serves a request, and reports whether it was cut off.
func aborted(h http.Handler, w http.ResponseWriter, r *http.Request) (cut bool) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
			cut = true
		} else if p != nil {
			panic(p)
		}
	}()
	h.ServeHTTP(w, r)
	return false
}

// lineEvents is the writer of a log that makes an event of each line.
type lineEvents struct {
	http.ResponseWriter
	header  http.Header // the API's
	begun   bool
	refused bool
	rest    []byte
}

// Unwrap is for the deadlines that the API sets.
func (w *lineEvents) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Header is of the API's answer.
func (w *lineEvents) Header() http.Header { return w.header }

// WriteHeader starts the stream. A refusal is sent as a line: browsers don't show the bodies of
// streams that are refused.
func (w *lineEvents) WriteHeader(status int) {
	if w.begun {
		return
	}
	w.begun, w.refused = true, status != http.StatusOK
	h := w.ResponseWriter.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	w.ResponseWriter.WriteHeader(http.StatusOK)
}

func (w *lineEvents) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.rest = append(w.rest, b...)
	if w.refused {
		return len(b), nil
	}
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		w.rest = rest
		if err := w.tell("line", "", string(line)); err != nil {
			return 0, err
		}
	}
}

// escapes are sequences that colour a terminal or move its cursor.
var escapes = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-Z\\\\^_])")

// tell sends an event. Its text is shown as written. A carriage return, which programs use to overwrite
// a line, would also end the stream's line: the rest could then pass as an event.
func (w *lineEvents) tell(event, class, line string) error {
	if class != "" {
		class = ` class="` + class + `"`
	}
	text := html.EscapeString(escapes.ReplaceAllString(strings.TrimRight(line, "\r"), ""))
	text = strings.NewReplacer("\r", "&#10;", "\n", "&#10;").Replace(text)
	_, err := w.ResponseWriter.Write([]byte("event: " + event + "\ndata: <div" + class + ">" + text + "</div>\n\n"))
	return err
}

// FlushError flushes the written data.
func (w *lineEvents) FlushError() error { return http.NewResponseController(w.ResponseWriter).Flush() }

// end marks the end of the log, so that the browser does not reconnect, and whether it ended
// because the log was cut off.
func (w *lineEvents) end(cut bool) {
	w.WriteHeader(http.StatusOK)
	if w.refused {
		text := "The log can't be read now."
		if o, err := decoded(w.rest); err == nil && o.text("detail") != "" {
			text = o.text("detail")
		}
		_ = w.tell("line", "refused", text)
	} else if len(w.rest) > 0 {
		_ = w.tell("line", "", string(w.rest))
	}
	if cut {
		_ = w.tell("line", "refused", "The log was cut off. Load the page again to read on.")
	}
	_ = w.tell("end", "", "")
	_ = w.FlushError() // the browser may be gone
}
