package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
)

// sessions gives every caller the same session until it has ended.
type sessions struct {
	mu    sync.Mutex
	until time.Time
	ended bool
}

func (s *sessions) auth(context.Context, string) (access.Principal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the session has ended")
	}
	return access.Principal{PrincipalID: "ada", Name: "ada", Login: true, Expires: s.until, Grants: []access.Grant{{Role: "operator"}}}, nil
}

// watch stands for the API's, whose test is TestStreamsEndWithTheirAccess.
func (s *sessions) watch(ctx context.Context, p access.Principal, _ access.Capability) (context.Context, func()) {
	ctx, cancel := context.WithDeadline(ctx, p.Expires)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second / 2):
				if _, err := s.auth(ctx, ""); err != nil {
					cancel()
				}
			}
		}
	}()
	return ctx, func() { cancel(); <-ended }
}

func (s *sessions) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// liveBundle is a console whose API and feed are the test's.
type liveBundle struct {
	*Console
	sessions *sessions
	feed     chan ops.Event
}

func setupLive(serve http.HandlerFunc) *liveBundle {
	b := &liveBundle{sessions: &sessions{until: time.Now().Add(api.LoginLife)}, feed: make(chan ops.Event)}
	b.Console = New(Deps{
		API: serve, Auth: b.sessions.auth, Allow: func(access.Principal, *http.Request) error { return nil }, Now: time.Now, Log: zap.NewNop(),
		Watch: b.sessions.watch,
		Feed: func(context.Context, ops.EventQuery) (*api.EventSubscription, error) {
			return &api.EventSubscription{C: b.feed}, nil
		},
	})
	return b
}

// open requests a path in its own goroutine, and returns the answer and a channel that is closed at its end.
func (b *liveBundle) open(ctx context.Context, path string) (*httptest.ResponseRecorder, <-chan struct{}) {
	w, done := httptest.NewRecorder(), make(chan struct{})
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	r.AddCookie(&http.Cookie{Name: sessionCookie, Value: "secret"})
	go func() {
		defer close(done)
		b.Handler().ServeHTTP(w, r)
	}()
	return w, done
}

func nothing(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) }

// TestStreamsEndWithTheSession: after a logout or the token's end, a user sees no more of a log or of the
// events, although the stream was open before.
func TestStreamsEndWithTheSession(t *testing.T) {
	t.Parallel()
	logs := func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("line\n"))
		<-r.Context().Done()
	}
	for _, path := range []string{"/console/events?kinds=server", "/console/servers/app-1/logs/backend/stream"} {
		t.Run("logged out "+path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setupLive(logs)
				w, done := b.open(t.Context(), path)
				synctest.Wait()
				require.Equal(t, http.StatusOK, w.Code)
				b.sessions.end()
				began := time.Now()
				<-done
				require.LessOrEqual(t, time.Since(began), time.Second)
				require.Zero(t, b.streams.all)
			})
		})
		t.Run("expired "+path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setupLive(logs)
				b.sessions.until = time.Now().Add(time.Minute)
				_, done := b.open(t.Context(), path)
				<-done
				require.Equal(t, b.sessions.until, time.Now())
			})
		})
	}
}

// TestNobodyTakesAllStreams: a user with many pages does not block the streams of others.
func TestNobodyTakesAllStreams(t *testing.T) {
	t.Parallel()
	s := streams{of: map[string]int{}}
	for range maxStreamsOfOne {
		require.True(t, s.begin("ada"))
	}
	require.False(t, s.begin("ada"))
	require.True(t, s.begin("bob"))
	s.end("ada")
	require.True(t, s.begin("ada"))
	s.end("bob")
	require.Equal(t, map[string]int{"ada": maxStreamsOfOne}, s.of)
}

// TestAPageMissesNothing: an event between reading a page and opening its stream, or during a browser's
// absence, is reported when it connects.
func TestAPageMissesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := `{"events": [], "next_cursor": "7-1", "more": false}`
		var asked []string
		b := setupLive(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.RequestURI())
			_, _ = w.Write([]byte(answer))
		})
		page, done := b.open(t.Context(), "/console/servers")
		<-done
		require.Equal(t, "/v1/events", asked[0], "before anything else")
		require.Contains(t, page.Body.String(), `sse-connect="/console/events?kinds=server&amp;since=7-1"`)
		for answer, told := range map[string]bool{
			`{"events": [], "more": false}`:          false,
			`{"events": [{"kind": "server"}]}`:       true,
			`{"events": [], "more": true}`:           true,
			`{"code": "events_gone", "status": 410}`: true,
		} {
			b := setupLive(func(w http.ResponseWriter, r *http.Request) {
				require.Equal(t, "/v1/events?id=app-1&kind=server&limit=1&since=7-1", r.URL.RequestURI())
				if strings.Contains(answer, "410") {
					w.WriteHeader(http.StatusGone)
				}
				_, _ = w.Write([]byte(answer))
			})
			ctx, cancel := context.WithCancel(t.Context())
			w, done := b.open(ctx, "/console/events?kinds=server&ids=app-1&since=7-1")
			time.Sleep(time.Millisecond)
			cancel()
			<-done
			require.Equal(t, told, strings.Contains(w.Body.String(), "event: change"), answer)
		}
	})
}

// TestABusyFleetIsToldInPace: pages are not loaded again more than once a second.
func TestABusyFleetIsToldInPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupLive(nothing)
		ctx, cancel := context.WithCancel(t.Context())
		w, done := b.open(ctx, "/console/events?kinds=server")
		began := time.Now()
		for time.Since(began) < 10*time.Second {
			b.feed <- ops.Event{Kind: "server"}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(pace)
		cancel()
		<-done
		require.InDelta(t, 10, strings.Count(w.Body.String(), "event: change"), 1)
	})
}
