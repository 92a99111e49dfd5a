package console

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
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
	changes, err := c.d.Feed(r.Context(), prego.EventQuery{EventFilter: prego.EventFilter{Kinds: names(ec.QueryParam("kinds")), IDs: names(ec.QueryParam("ids"))}})
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
		return nil // the browser went away
	}
	keep, end := time.NewTicker(alive), time.NewTimer(streamLife)
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
		case _, ok := <-changes.C:
			if !ok { // some were lost, or the process ends
				_ = send("event: change\ndata: 1\n\n")
				return nil
			}
			if tell == nil {
				tell = time.After(together)
			}
		}
		if err != nil {
			return nil // the browser went away
		}
	}
}

// Stream is the URL at which a page is told of changes, "" for none.
func (p *page) Stream() string {
	switch {
	case len(p.IDs) > 0:
		return "/console/events?" + url.Values{"ids": {strings.Join(p.IDs, ",")}}.Encode()
	case len(p.Kinds) > 0:
		return "/console/events?" + url.Values{"kinds": {strings.Join(p.Kinds, ",")}}.Encode()
	}
	return ""
}
