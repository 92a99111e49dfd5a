package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
)

const (
	// together is how long changes are gathered before a page is notified.
	together = 300 * time.Millisecond
	// pace is how long a page stays as it is: a busy fleet changes all the time, and each page counts
	// towards the rate of who looks at it.
	pace = time.Second
	// alive is how often an idle stream sends a sign of life.
	alive = 15 * time.Second
	// streamLife is how long a stream lasts. Browsers begin another one by themselves.
	streamLife = 10 * time.Minute

	// maxStreams bounds the streams of one process, and maxStreamsOfOne the streams of one user.
	// Pages without one are as they were when they were loaded.
	maxStreams, maxStreamsOfOne = 200, 40

	sinceKey = "console.since"
)

// streams counts the open streams by reader.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

func (s *streams) begin(subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxStreams || s.of[subject] >= maxStreamsOfOne {
		return false
	}
	s.all++
	s.of[subject]++
	return true
}

func (s *streams) end(subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[subject]--; s.of[subject] == 0 {
		delete(s.of, subject)
	}
}

// stream admits a page that waits for changes; its context ends with the login, and with the capability if there is one.
// done must be called at its end.
func (c *Console) stream(ec echo.Context, of access.Capability) (ctx context.Context, done func(), err error) {
	v := ec.Get(visitorKey).(*visitor)
	if !c.streams.begin(v.PrincipalID) {
		return nil, nil, prego.Errorf(prego.CodeBusy, "too many pages wait for changes; close some")
	}
	ctx, unwatch := c.d.Watch(ec.Request().Context(), v.Principal, of)
	return ctx, func() { unwatch(); c.streams.end(v.PrincipalID) }, nil
}

// live notes where the feed of events ends before a page reads anything, so that nothing is missed until
// its stream is open.
func (c *Console) live(page echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		if o, err := c.get(ec, "/v1/events", nil); err == nil { // otherwise it only sees later events
			ec.Set(sinceKey, o.text("next_cursor"))
		}
		return page(ec)
	}
}

// events notifies a browser that its page is out of date, and nothing more: the page
// is loaded again by its own URL, with the rights of the user.
func (c *Console) events(ec echo.Context) error {
	w := ec.Response()
	ctx, done, err := c.stream(ec, "event:read")
	if err != nil {
		return err
	}
	defer done()
	of := ops.EventFilter{Kinds: names(ec.QueryParam("kinds")), IDs: names(ec.QueryParam("ids"))}
	changes, err := c.d.Feed(ctx, ops.EventQuery{EventFilter: of})
	if err != nil {
		return err
	}
	var tell <-chan time.Time
	if since := ec.QueryParam("since"); since != "" && c.changed(ec, since, of) {
		tell = time.After(0)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
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
	told := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-end.C:
			return nil
		case <-keep.C:
			err = send(": alive\n\n")
		case <-tell:
			tell, told, err = nil, time.Now(), send("event: change\ndata: 1\n\n")
		case _, ok := <-changes.C:
			if !ok { // some were lost, or the process ends
				_ = send("event: change\ndata: 1\n\n")
				return nil
			}
			if tell == nil {
				tell = time.After(max(together, pace-time.Since(told)))
			}
		}
		if err != nil {
			return nil // the browser went away
		}
	}
}

// changed reports whether something happened after a place in the feed. Browsers that come back after a
// while also name the place of the page.
func (c *Console) changed(ec echo.Context, since string, of ops.EventFilter) bool {
	q := url.Values{"since": {since}, "limit": {"1"}}
	for name, filter := range map[string][]string{"kind": of.Kinds, "id": of.IDs} {
		if len(filter) > 0 {
			q.Set(name, strings.Join(filter, ","))
		}
	}
	o, err := c.get(ec, "/v1/events", q)
	return err != nil || len(o.objects("events")) > 0 || o.at("more") == true // if in doubt
}

// Stream is the URL that notifies a page of changes, "" for none.
func (p *page) Stream() string {
	q := url.Values{}
	switch {
	case len(p.IDs) > 0:
		q.Set("ids", strings.Join(p.IDs, ","))
	case len(p.Kinds) > 0:
		q.Set("kinds", strings.Join(p.Kinds, ","))
	default:
		return ""
	}
	if p.Since != "" {
		q.Set("since", p.Since)
	}
	return "/console/events?" + q.Encode()
}
