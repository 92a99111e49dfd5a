package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/ops"
)

// memoryFeed is a feed of events in memory, which counts how often it is read.
type memoryFeed struct {
	mu     sync.Mutex
	events []ops.Event
	reads  atomic.Int64
	fail   error
}

func (f *memoryFeed) add(kinds ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, kind := range kinds {
		n := len(f.events) + 1
		f.events = append(f.events, ops.Event{Cursor: ops.EventCursor{Xid: uint64(100 + n/3), Seq: int64(n)}.String(), At: time.Unix(int64(n), 0), Kind: kind, ID: fmt.Sprintf("%s-%d", kind, n), Step: "x"})
	}
}

func (f *memoryFeed) Events(_ context.Context, q ops.EventQuery) (out ops.EventPage, err error) {
	f.reads.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return out, f.fail
	}
	out.Next = ops.EventCursor{}.String()
	if n := len(f.events); n > 0 {
		out.Next = f.events[n-1].Cursor
	}
	if q.Since == "" {
		for _, e := range f.events {
			if q.Matches(e) {
				out.Events = append(out.Events, e)
			}
		}
		out.Events = out.Events[len(out.Events)-min(q.Tail, len(out.Events)):]
		return out, nil
	}
	since, err := ops.ParseEventCursor(q.Since)
	if err != nil {
		return out, err
	}
	out.Next = q.Since
	for _, e := range f.events {
		place, _ := ops.ParseEventCursor(e.Cursor)
		if place.Compare(since) <= 0 {
			continue
		}
		if len(out.Events) == q.Limit {
			out.More = true
			break
		}
		out.Next = e.Cursor
		if q.Matches(e) {
			out.Events = append(out.Events, e)
		}
	}
	return out, nil
}

func feedOf(t *testing.T, f *memoryFeed) *api.API {
	t.Helper()
	a := api.New(api.Deps{Log: zap.NewNop(), Registry: prometheus.NewRegistry(), RatePerSecond: 1, RateBurst: 1})
	a.ReadFeed(f.Events)
	return a
}

// take receives n events and returns their ids.
func take(t *testing.T, s *api.EventSubscription, n int) (ids []string) {
	t.Helper()
	for range n {
		select {
		case e, ok := <-s.C:
			require.True(t, ok, "it has ended: %v", s.Err())
			ids = append(ids, e.ID)
		case <-time.After(30 * time.Second):
			require.FailNow(t, "no event came", "after %v", ids)
		}
	}
	return ids
}

// TestSubscribersShareTheReading: however many follow, each tick reads once.
func TestSubscribersShareTheReading(t *testing.T) {
	t.Parallel()
	f := &memoryFeed{}
	f.add("old", "old")
	a := feedOf(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	var subs []*api.EventSubscription
	for i := range 100 {
		q := ops.EventQuery{Tail: i % 2 * 2} // half of them begin with what there was
		if i%5 == 4 {
			q.Kinds = []string{"new"}
		}
		s, err := a.Subscribe(ctx, q)
		require.NoError(t, err)
		subs = append(subs, s)
	}
	for i := range 4 {
		if i%2 == 1 {
			require.Equal(t, []string{"old-1", "old-2"}, take(t, subs[i], 2))
		}
	}
	f.add("new", "other", "new")
	for i, s := range subs {
		switch {
		case i%5 == 4:
			require.Equal(t, []string{"new-3", "new-5"}, take(t, s, 2))
		case i%2 == 1 && i >= 4:
			require.Equal(t, []string{"old-1", "old-2", "new-3", "other-4", "new-5"}, take(t, s, 5))
		default:
			require.Equal(t, []string{"new-3", "other-4", "new-5"}, take(t, s, 3))
		}
	}
	// Reads happen one at a time: more subscribers are not more of them.
	before := f.reads.Load()
	began := time.Now()
	require.Eventually(t, func() bool { return f.reads.Load() >= before+3 }, 30*time.Second, time.Millisecond)
	require.LessOrEqual(t, f.reads.Load()-before, int64(time.Since(began)/api.FollowEvery)+2)

	cancel()
	for _, s := range subs {
		for range s.C { // to its end
		}
		require.ErrorIs(t, s.Err(), context.Canceled)
	}
	require.Eventually(t, func() bool { return !a.Following() }, 30*time.Second, time.Millisecond, "without subscribers nothing is read")
}

// TestASubscriberResumesAnywhere joins while others follow, with cursors before and after what
// this process has read.
func TestASubscriberResumesAnywhere(t *testing.T) {
	t.Parallel()
	f := &memoryFeed{}
	for range 450 { // more than two pages
		f.add("a")
	}
	a := feedOf(t, f)
	first, err := a.Subscribe(t.Context(), ops.EventQuery{})
	require.NoError(t, err)
	f.add("b")
	require.Equal(t, []string{"b-451"}, take(t, first, 1))
	for _, since := range []int{0, 1, 199, 200, 201, 449, 450} {
		cursor := ops.EventCursor{}.String()
		if since > 0 {
			cursor = f.events[since-1].Cursor
		}
		s, err := a.Subscribe(t.Context(), ops.EventQuery{Since: cursor})
		require.NoError(t, err)
		var want []string
		for _, e := range f.events[since:] {
			want = append(want, e.ID)
		}
		require.Equal(t, want, take(t, s, len(want)), since)
	}

	// Another process has given it more than this one has read.
	b := feedOf(t, f)
	slow, err := b.Subscribe(t.Context(), ops.EventQuery{})
	require.NoError(t, err)
	f.add("c")
	ahead, err := b.Subscribe(t.Context(), ops.EventQuery{Since: f.events[451].Cursor})
	require.NoError(t, err)
	f.add("d")
	require.Equal(t, []string{"c-452", "d-453"}, take(t, slow, 2))
	require.Equal(t, []string{"d-453"}, take(t, ahead, 1), "nothing twice")
	require.Eventually(t, func() bool { return ahead.Cursor() == f.events[452].Cursor }, 30*time.Second, time.Millisecond)
}

// TestASlowSubscriberIsToldToResume and does not delay others.
func TestASlowSubscriberIsToldToResume(t *testing.T) {
	t.Parallel()
	f := &memoryFeed{}
	a := feedOf(t, f)
	slow, err := a.Subscribe(t.Context(), ops.EventQuery{})
	require.NoError(t, err)
	quick, err := a.Subscribe(t.Context(), ops.EventQuery{})
	require.NoError(t, err)
	n := api.FeedBuffer + 10
	for range n {
		f.add("a")
	}
	require.Len(t, take(t, quick, n), n)
	var last string
	got := 0
	for e := range slow.C {
		last = e.Cursor
		got++
	}
	require.Equal(t, prego.CodeBusy, prego.CodeOf(slow.Err()))
	require.Less(t, got, n)
	resumed, err := a.Subscribe(t.Context(), ops.EventQuery{Since: last})
	require.NoError(t, err)
	take(t, resumed, n-got)
	require.Eventually(t, func() bool { return resumed.Cursor() == f.events[n-1].Cursor }, 30*time.Second, time.Millisecond, "nothing was lost")
}

// TestTheFeedOutlivesTheDatabase: subscribers wait for it, and end when the feed is another one.
func TestTheFeedOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	f := &memoryFeed{}
	a := feedOf(t, f)
	s, err := a.Subscribe(t.Context(), ops.EventQuery{})
	require.NoError(t, err)
	set := func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.fail = err
	}
	set(errors.New("connection refused"))
	before := f.reads.Load()
	require.Eventually(t, func() bool { return f.reads.Load() >= before+2 }, 30*time.Second, time.Millisecond)
	f.add("a")
	set(nil)
	require.Equal(t, []string{"a-1"}, take(t, s, 1))
	set(&prego.Error{Code: prego.CodeEventsGone, Field: "since", Message: "x"})
	_, ok := <-s.C
	require.False(t, ok)
	require.Equal(t, prego.CodeEventsGone, prego.CodeOf(s.Err()))
	_, err = a.Subscribe(t.Context(), ops.EventQuery{})
	require.Equal(t, prego.CodeEventsGone, prego.CodeOf(err))
	set(nil)
	s, err = a.Subscribe(t.Context(), ops.EventQuery{Tail: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"a-1"}, take(t, s, 1))
}

// sse is an event of a stream.
type sse struct{ id, event, data string }

// stream opens the feed as a caller does.
func (b *bundle) stream(path, token, lastID string) (*http.Response, func() sse) {
	b.t.Helper()
	req := request(b.t, b.srv.URL, "GET", path, token, "", "")
	req.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 60*time.Second)
	b.t.Cleanup(cancel)
	resp, err := need.HTTP.Do(req.WithContext(ctx))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return resp, func() (e sse) {
		for lines.Scan() {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.event = value
			case "data":
				e.data = value
			case "":
				if lines.Text() == "" && e.id+e.event != "" {
					return e
				}
			}
		}
		return sse{}
	}
}

func TestEventsArePagedAndStreamed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	exec := func(sql string) {
		_, err := b.pool.Exec(context.Background(), sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO events (kind, id, step) VALUES ('test', 'start', 'x')`)
	var start string
	require.Eventually(t, func() bool { // transactions of other tests hold the feed up
		resp, body := b.do("GET", "/v1/events?tail=1", "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		page := as[api.FeedEventPage](t, body)
		start = page.NextCursor
		return len(page.Events) == 1
	}, 30*time.Second, 5*time.Millisecond)

	resp, next := b.stream("/v1/events?since="+start, "viewer", "")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Equal(t, start, next().id, "its place, before anything happens")
	exec(`INSERT INTO events (kind, id, org_id, about, step, status, reason, message, actor) VALUES ('move', 'mov-1', 'acme', '{t-1}', 'failed', 'failed', 'copy_failed', '<b>"no"' || E'\n' || 'data: x', 'ann')`)
	exec(`INSERT INTO events (kind, id, step) VALUES ('server', 'app-1', 'requested')`)
	one, two := next(), next()
	require.Equal(t, "move", one.event)
	require.Equal(t, "server", two.event)
	var e api.FeedEvent
	require.NoError(t, json.Unmarshal([]byte(one.data), &e))
	require.Equal(t, one.id, e.Cursor)
	require.Equal(t, "<b>\"no\"\ndata: x", *e.Message, "a message can't start a line")
	require.Equal(t, []string{"t-1"}, *e.About)

	_, again := b.stream("/v1/events?kind=server&since="+start, "operator", one.id)
	require.Equal(t, one.id, again().id)
	require.Equal(t, two, again(), "it continues after the last event, not behind since")

	resp, body := b.do("GET", "/v1/events?limit=1&since="+start, "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode)
	page := as[api.FeedEventPage](t, body)
	require.True(t, page.More)
	require.Equal(t, []api.FeedEvent{e}, page.Events)
	resp, body = b.do("GET", "/v1/events?id=t-1&org_id=acme&since="+start, "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode)
	page = as[api.FeedEventPage](t, body)
	require.Len(t, page.Events, 1)
	require.Equal(t, two.id, page.NextCursor)
	require.False(t, page.More)

	for path, refusal := range map[string]string{
		"/v1/events?since=x": "invalid_field", "/v1/events?since=99999999999999999999-1": "invalid_field", "/v1/events?since=1-1&tail=2": "invalid_field",
		"/v1/events?since=1-1": "events_gone", "/v1/events?kind=A": "invalid_field", "/v1/events?limit=0": "invalid_field", "/v1/events?x=1": "unknown_field",
	} {
		_, body := b.do("GET", path, "viewer", "", "")
		require.Equal(t, refusal, as[api.Problem](t, body).Code, "%s: %s", path, body)
	}
	resp, _ = b.stream("/v1/events?since=1-1", "viewer", "")
	require.Equal(t, 410, resp.StatusCode, "a stream that can't begin is refused like a page")
	resp, _ = b.stream("/v1/events", "", "")
	require.Equal(t, 401, resp.StatusCode)
}

// TestStreamsOfEventsEndWithTheProcess, and one caller has no more than its share.
func TestStreamsOfEventsEndWithTheProcess(t *testing.T) {
	t.Parallel()
	f := &memoryFeed{}
	b := setup(t, nil)
	b.api.ReadFeed(f.Events)
	var streams []func() sse
	for range api.MaxStreamsOfOne {
		resp, next := b.stream("/v1/events", "viewer", "")
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, "0-0", next().id)
		streams = append(streams, next)
	}
	resp, _ := b.stream("/v1/events", "viewer", "")
	require.Equal(t, 429, resp.StatusCode)
	require.Equal(t, "5", resp.Header.Get("Retry-After"))
	resp, next := b.stream("/v1/events", "operator", "")
	require.Equal(t, 200, resp.StatusCode, "another caller is not affected")
	require.Equal(t, "0-0", next().id)
	streams = append(streams, next)
	resp, _ = b.do("GET", "/v1/events", "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode, "a page is no stream")
	b.api.End()
	for _, next := range streams {
		require.Zero(t, next())
	}
	require.Eventually(t, func() bool { return !b.api.Following() }, 30*time.Second, time.Millisecond)
}
