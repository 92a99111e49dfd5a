package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

const (
	// followEvery is how often a process with subscribers reads new events, once for all of
	// them.
	followEvery = 250 * time.Millisecond
	// feedPage is how many events are read at a time.
	feedPage = 200
	// feedBuffer is how many events wait for a subscriber who is slow.
	feedBuffer = 1000
	// feedKeepAlive is the interval of comments on a stream of events.
	feedKeepAlive = 15 * time.Second
)

// ErrSlowReader ends a subscription whose subscriber took too long: it can be
// resumed from the last event that was taken.
var ErrSlowReader = prego.Errorf(prego.CodeBusy, "events were not taken fast enough; read on from the last one")

// eventFeed reads the feed once for all of a process's subscribers, and only while there are any.
type eventFeed struct {
	read    func(context.Context, ops.EventQuery) (ops.EventPage, error)
	log     *zap.Logger
	every   time.Duration
	buffer  int
	ending  context.Context // the process's
	mu      sync.Mutex
	subs    map[*EventSubscription]bool
	running bool
	at      ops.EventCursor // all subscribers have been given everything up to here
}

// EventSubscription is what a subscriber of the feed of events gets.
type EventSubscription struct {
	// C has the events, in the order of the feed. It is closed when the subscription has ended: Err returns the reason.
	C <-chan ops.Event

	out    chan ops.Event
	filter ops.EventFilter
	watch  *watch         // what its caller may see now; nil for everything
	queue  chan ops.Event // events after the place where it was added
	mu     sync.Mutex
	err    error
	at     ops.EventCursor // nothing is left for it up to here
	cause  error           // why it was dropped, once queue is closed
}

// Err returns why a subscription with a closed channel ended: the context's error, ErrSlowReader, or CodeEventsGone.
func (s *EventSubscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Cursor is a place in the feed. Every selected event up to it was taken from the channel. It may
// be the place of the last event but one.
func (s *EventSubscription) Cursor() string { return s.place().String() }

func (s *EventSubscription) place() ops.EventCursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *EventSubscription) passed(p ops.EventCursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.Compare(p) < 0 {
		s.at = p
	}
}

// Subscribe follows the feed of events from a cursor, from so many of the newest, or from its end,
// until ctx ends. All subscribers of a process cost one query per quarter of a second.
func (a *API) Subscribe(ctx context.Context, q ops.EventQuery) (*EventSubscription, error) {
	return a.feed.subscribe(ctx, q)
}

func (f *eventFeed) subscribe(ctx context.Context, q ops.EventQuery) (*EventSubscription, error) {
	q.Limit = feedPage
	first, err := f.read(ctx, q)
	if err != nil {
		return nil, err
	}
	next, err := ops.ParseEventCursor(first.Next)
	if err != nil {
		return nil, err
	}
	out := make(chan ops.Event)
	s := &EventSubscription{C: out, out: out, filter: q.EventFilter, watch: watchOf(ctx), queue: make(chan ops.Event, f.buffer)}
	switch {
	case q.Since != "":
		s.at, _ = ops.ParseEventCursor(q.Since)
	case len(first.Events) == 0:
		s.at = next
	}
	joined := f.join(s, next)
	go func() {
		err := f.run(ctx, s, q, first, joined)
		f.leave(s)
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(out)
	}()
	return s, nil
}

// join adds a subscriber, which receives the events after the returned place. The first subscriber
// starts the reading, from its own place.
func (f *eventFeed) join(s *EventSubscription, next ops.EventCursor) ops.EventCursor {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs[s] = true
	if !f.running {
		f.running, f.at = true, next
		go f.follow()
	}
	return f.at
}

func (f *eventFeed) leave(s *EventSubscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(s, nil)
}

func (f *eventFeed) drop(s *EventSubscription, cause error) {
	if f.subs[s] {
		delete(f.subs, s)
		s.cause = cause
		close(s.queue)
	}
}

// follow reads on until no subscriber is left.
func (f *eventFeed) follow() {
	failing := false
	for {
		f.mu.Lock()
		if len(f.subs) == 0 || f.ending.Err() != nil {
			f.running = false
			f.mu.Unlock()
			return
		}
		since := f.at.String()
		f.mu.Unlock()
		ctx, cancel := context.WithTimeout(f.ending, patience)
		page, err := f.read(ctx, ops.EventQuery{Since: since, Limit: feedPage})
		cancel()
		crowded := false
		if err == nil {
			crowded, err = f.tell(page)
		}
		switch {
		case err == nil:
			failing = false
		case prego.CodeOf(err) == prego.CodeEventsGone:
			f.dropAll(err)
			continue
		case !failing:
			failing = true
			f.log.Warn("the feed of events cannot be read", zap.String("error", prego.Redact(err.Error())))
		}
		if page.More && !crowded {
			continue
		}
		select {
		case <-time.After(f.every):
		case <-f.ending.Done():
		}
	}
}

// tell gives a page to all subscribers, and reports whether one of them falls behind and is given a little time. A
// subscriber that still has too many events waiting is dropped.
func (f *eventFeed) tell(page ops.EventPage) (crowded bool, err error) {
	at, err := ops.ParseEventCursor(page.Next)
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = at
	for s := range f.subs {
		for _, e := range page.Events {
			if !s.filter.Matches(e) || !s.watch.sees(e.OrgID) {
				continue
			}
			select {
			case s.queue <- e:
				continue
			default:
			}
			f.drop(s, ErrSlowReader)
			break
		}
		if f.subs[s] && len(page.Events) > 0 && len(s.queue) == 0 && (!s.filter.Empty() || s.watch != nil) {
			s.queue <- ops.Event{Cursor: page.Next} // only here something is added
		}
		crowded = crowded || len(s.queue) > f.buffer/2
	}
	return crowded, nil
}

func (f *eventFeed) dropAll(cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subs {
		f.drop(s, cause)
	}
}

// run gives a subscriber the events from before it joined, and then the new ones.
func (f *eventFeed) run(ctx context.Context, s *EventSubscription, q ops.EventQuery, page ops.EventPage, joined ops.EventCursor) error {
	give := func(e ops.Event) error {
		place, err := ops.ParseEventCursor(e.Cursor)
		if err != nil {
			return err
		}
		if !s.watch.sees(e.OrgID) { // it may have been queued before that changed
			s.passed(place)
			return nil
		}
		select {
		case s.out <- e:
			s.passed(place)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-f.ending.Done():
			return f.ending.Err()
		}
	}
	// Another process may have given it more than this one has read yet, and this one may have read on
	// before it joined: then what it missed is read now.
	read, err := ops.ParseEventCursor(page.Next)
	for since := false; ; since = true {
		for _, e := range page.Events {
			if err := give(e); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		s.passed(read)
		if !page.More && (since || read.Compare(joined) >= 0) {
			break
		}
		q.Since = page.Next
		if page, err = f.read(ctx, q); err != nil {
			return err
		}
		read, err = ops.ParseEventCursor(page.Next)
	}
	for {
		select {
		case e, ok := <-s.queue:
			if !ok {
				return s.cause
			}
			place, err := ops.ParseEventCursor(e.Cursor)
			switch {
			case err != nil:
				return err
			case place.Compare(read) <= 0:
			case e.Kind == "": // nothing for it up to there
				s.passed(place)
			default:
				if err := give(e); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-f.ending.Done():
			return f.ending.Err()
		}
	}
}

// ListEvents shows a page of the feed of events, or streams it.
func (a *API) ListEvents(c echo.Context, p ListEventsParams) error {
	q := ops.EventQuery{Limit: defaultLimit, Since: deref(p.Since), Tail: deref(p.Tail), EventFilter: ops.EventFilter{Kinds: deref(p.Kind), IDs: deref(p.Id), Orgs: prego.Strings(deref(p.OrgId))}}
	if p.Limit != nil {
		q.Limit = *p.Limit
	}
	if p.LastEventID != nil {
		q.Since, q.Tail = *p.LastEventID, 0
	}
	if q.Since != "" && q.Tail != 0 {
		return prego.Invalid("tail", "can't be combined with since")
	}
	if wantsStream(c.Request()) {
		return a.streamEvents(c, q)
	}
	page, err := a.d.Store.Events(c.Request().Context(), q)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, FeedEventPage{Events: views(page.Events, viewOf[FeedEvent]), NextCursor: page.Next, More: page.More})
}

// wantsStream reports whether a caller accepts server-sent events. HEAD has no stream.
func wantsStream(r *http.Request) bool {
	if r.Context().Value(headKey{}) != nil {
		return false
	}
	for part := range strings.SplitSeq(r.Header.Get(echo.HeaderAccept), ",") {
		if mt, _, err := mime.ParseMediaType(part); err == nil && mt == "text/event-stream" {
			return true
		}
	}
	return false
}

// streamEvents sends the feed as server-sent events until the caller leaves, the process ends, or the time of a
// stream is over.
func (a *API) streamEvents(c echo.Context, q ops.EventQuery) error {
	ctx, done, err := a.stream(c, false)
	if err != nil {
		return err
	}
	defer done()
	sub, err := a.Subscribe(ctx, q)
	if err != nil {
		return err
	}
	w, control := c.Response(), http.NewResponseController(c.Response())
	w.Header().Set(echo.HeaderContentType, "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	at := sub.place()
	send := func(format string, args ...any) error {
		_ = control.SetWriteDeadline(time.Now().Add(sendWithin))
		if _, err := fmt.Fprintf(w, format, args...); err != nil {
			return err
		}
		return control.Flush()
	}
	// The place is sent immediately, so that a reader that loses the connection before the first event misses nothing.
	line := fmt.Sprintf("retry: 1000\nid: %s\n\n", at)
	if q.Tail > 0 { // it is that of the first event
		line = "retry: 1000\n\n"
	}
	if err := send("%s", line); err != nil {
		return nil // the caller left
	}
	quiet := time.NewTicker(feedKeepAlive)
	defer quiet.Stop()
	for {
		select {
		case e, ok := <-sub.C:
			if !ok {
				var coded *prego.Error // it was too slow, or the feed was pruned
				if errors.As(cmp.Or(context.Cause(ctx), sub.Err()), &coded) {
					_ = send("event: resume\ndata: {\"code\":%q}\n\n", coded.Code)
				}
				return nil
			}
			data, err := json.Marshal(viewOf[FeedEvent](e))
			if err == nil {
				at, err = ops.ParseEventCursor(e.Cursor)
			}
			if err == nil {
				err = send("id: %s\nevent: %s\ndata: %s\n\n", e.Cursor, e.Kind, data)
			}
			if err != nil {
				return nil // the caller left
			}
		case <-quiet.C:
			// A place without an event moves the reader's on.
			if p := sub.place(); at.Compare(p) < 0 {
				at = p
			}
			line = ": keep-alive\n\n"
			if at != (ops.EventCursor{}) {
				line = fmt.Sprintf(": keep-alive\nid: %s\n\n", at)
			}
			if err := send("%s", line); err != nil {
				return nil // the caller left
			}
		}
	}
}
