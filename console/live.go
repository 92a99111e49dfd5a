package console

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

const (
	// together is how long changes are gathered before a page is told of them.
	together = 300 * time.Millisecond
	// alive is how often a browser that is told of nothing is told that we are there.
	alive = 15 * time.Second
	// streamLife is how long a stream lasts. Browsers begin another one by themselves.
	streamLife = 10 * time.Minute
)

// events tells a browser that what it shows is out of date. It says no more than that: the page
// is loaded again by its own URL, with the rights of who looks at it.
func (c *Console) events(ec echo.Context) error {
	w, r := ec.Response(), ec.Request()
	select {
	case c.streams <- struct{}{}:
		defer func() { <-c.streams }()
	default:
		return ec.NoContent(http.StatusServiceUnavailable)
	}
	kinds, ids := names(ec.QueryParam("kinds")), names(ec.QueryParam("ids"))
	changes, err := c.d.Feed(r.Context())
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w.Writer)
	send := func(text string) error {
		_ = control.SetWriteDeadline(c.d.Now().Add(2 * alive)) // recorders have none
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		return control.Flush()
	}
	w.WriteHeader(http.StatusOK)
	if err := send("retry: 2000\n: open\n\n"); err != nil {
		return nil //nolint:nilerr // the browser went away
	}
	keep, end := time.NewTicker(alive), time.NewTimer(streamLife) //nolint:forbidigo // a connection's own clock
	defer keep.Stop()
	defer end.Stop()
	var tell <-chan time.Time
	for {
		select {
		case <-r.Context().Done():
			return nil
		case <-end.C:
			return nil
		case <-keep.C:
			err = send(": alive\n\n")
		case <-tell:
			tell, err = nil, send("event: change\ndata: 1\n\n")
		case ch, ok := <-changes:
			if !ok { // some were lost, or the process ends
				_ = send("event: change\ndata: 1\n\n")
				return nil
			}
			if tell == nil && concerns(ch, kinds, ids) {
				tell = time.After(together) //nolint:forbidigo // a connection's own clock
			}
		}
		if err != nil {
			return nil //nolint:nilerr // the browser went away
		}
	}
}

// concerns reports whether a page that shows some kinds of things is out of date.
func concerns(ch Change, kinds, ids []string) bool {
	if len(kinds) > 0 && !slices.Contains(kinds, ch.Kind) {
		return false
	}
	return len(ids) == 0 || slices.Contains(ids, ch.ID)
}

// Stream is the URL at which a page is told of changes, "" for none.
func (p *page) Stream() string {
	if len(p.Kinds) == 0 {
		return ""
	}
	u := fmt.Sprintf("/console/events?kinds=%s", strings.Join(p.Kinds, ","))
	if len(p.IDs) > 0 {
		u += "&ids=" + strings.Join(p.IDs, ",")
	}
	return u
}
