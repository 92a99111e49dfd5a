package api_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// rowsOrFakes authenticates tokens by their rows, and the fake callers.
func rowsOrFakes(d *api.Deps) {
	rows := api.Authenticate(d.Store)
	d.Auth = func(ctx context.Context, raw string) (access.Principal, error) {
		if strings.HasPrefix(raw, "prego_") {
			return rows(ctx, raw)
		}
		return auth(ctx, raw)
	}
}

// tokenIn makes a token of a service account with an access role on an org, "" for the installation. Its credential's id is
// the account's name; with a parent it ends with that.
func (b *bundle) tokenIn(org prego.OrgID, name, role, parent string) string {
	b.t.Helper()
	secret, err := access.NewSecret(access.Token, rand.Reader)
	require.NoError(b.t, err)
	_, err = b.store.EnsureAccount(b.t.Context(), store.NewAccount{
		Name: "account " + name, AccessRole: role, OrgID: org, IDs: [2]string{name, "grant-" + name},
		Token: store.Credential{
			CredentialID: name, Kind: access.Token, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret), Name: name, CreatedBy: "test",
			ParentID: parent, ExpiresAt: time.Now().Add(time.Hour),
		},
	})
	require.NoError(b.t, err)
	return secret
}

// opened is an answer that is read as it comes. It has ended when lines is closed.
type opened struct {
	status int
	lines  chan string
}

func (b *bundle) open(method, path, token, body string) *opened {
	b.t.Helper()
	req := request(b.t, b.srv.URL, method, path, token, js, body)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := need.HTTP.Do(req)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = resp.Body.Close() })
	o := &opened{status: resp.StatusCode, lines: make(chan string, 1000)}
	go func() {
		defer close(o.lines)
		for r := bufio.NewReader(resp.Body); ; {
			line, err := r.ReadString('\n')
			if line = strings.TrimSpace(line); line != "" {
				o.lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	return o
}

// until returns the lines up to one with a text, or up to the end for "".
func (o *opened) until(t *testing.T, text string) (all []string) {
	t.Helper()
	for {
		select {
		case line, ok := <-o.lines:
			if !ok {
				require.Empty(t, text, "the stream has ended: %v", all)
				return all
			}
			if all = append(all, line); text != "" && strings.Contains(line, text) {
				return all
			}
		case <-time.After(30 * time.Second):
			require.FailNow(t, "nothing came", "%q after %v", text, all)
		}
	}
}

func (o *opened) isOpen(t *testing.T) {
	t.Helper()
	for {
		select {
		case _, ok := <-o.lines:
			require.True(t, ok, "the stream has ended")
		default:
			return
		}
	}
}

// TestStreamsEndWithTheirAccess: a token or its parent that is revoked, a principal that is disabled and a grant that is
// removed end the open streams within two reads, half a second apart, which are one for all streams of the process. A
// command whose caller is gone ends as it would have.
func TestStreamsEndWithTheirAccess(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, 2*api.WatchEvery, time.Second)
	var reads atomic.Int64
	b := tapped(t, func(sql string, _ []any) error {
		if strings.Contains(sql, "c.credential_id = ANY ($1)") {
			reads.Add(1)
		}
		return nil
	}, rowsOrFakes)
	b.org("acme", "")
	b.reachable("app-1")
	began, release, finished := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	b.hosts.logs = func(ctx context.Context, _ bool, line func(string) error) error {
		_ = line("a line")
		<-ctx.Done()
		return ctx.Err()
	}
	b.hosts.run = func(ctx context.Context, _ server.Command, onLine func(stream, line string)) (server.CommandOutcome, error) {
		defer close(finished)
		onLine("stdout", "working")
		began <- struct{}{}
		var printing sync.WaitGroup
		for _, stream := range []string{"stdout", "stderr"} {
			printing.Go(func() {
				for len(release) == 0 {
					onLine(stream, "working")
				}
				onLine(stream, "secret")
			})
		}
		printing.Wait()
		return server.CommandOutcome{}, ctx.Err()
	}
	const events, logs, exec = "/v1/events", "/v1/servers/app-1/containers/redis/logs?follow=true", "/v1/servers/app-1/exec"
	stays := b.open("GET", events, b.tokenIn("", "stays", "operator", ""), "")
	stays.until(t, "id: ")
	b.tokenIn("", "above", "operator", "")
	for _, end := range []struct{ name, sql, parent, method, path, body string }{
		{"revoked", `UPDATE credentials SET revoked_at = now() WHERE credential_id = 'revoked'`, "", "GET", events, ""},
		{"narrowed", `UPDATE credentials SET revoked_at = now() WHERE credential_id = 'above'`, "above", "GET", events, ""},
		{"disabled", `UPDATE principals SET disabled_at = now() WHERE principal_id = 'disabled'`, "", "GET", events, ""},
		{"ungranted", `DELETE FROM access_grants WHERE principal_id = 'ungranted'`, "", "GET", events, ""},
		{"expired", `UPDATE credentials SET expires_at = now() WHERE credential_id = 'expired'`, "", "GET", events, ""},
		{"reader", `DELETE FROM access_grants WHERE principal_id = 'reader'`, "", "GET", logs, ""},
		{"runner", `UPDATE credentials SET revoked_at = now() WHERE credential_id = 'runner'`, "", "POST", exec, `{"kind":"bench","args":["version"]}`},
	} {
		secret := b.tokenIn("", end.name, "operator", end.parent)
		s := b.open(end.method, end.path, secret, end.body)
		require.Equal(t, http.StatusOK, s.status, end.name)
		s.until(t, map[string]string{events: "id: ", logs: "a line", exec: "working"}[end.path])
		before := reads.Load()
		b.sql(end.sql)
		if end.path == exec {
			s.until(t, "unauthenticated")
			<-began
			release <- struct{}{}
			<-finished
			var by string
			require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT requested_by FROM agent_command_audit WHERE actor = 'operator'`).Scan(&by))
			require.Equal(t, "account runner (runner)", by)
		}
		rest := s.until(t, "")
		require.True(t, end.path != exec || len(rest) == 0, "what a command prints follows its caller's end: %v", rest)
		require.LessOrEqual(t, reads.Load()-before, int64(3), "%s: the read that was under way, and two more", end.name)
		stays.isOpen(t)
		if end.name != "ungranted" && end.name != "reader" {
			resp, _ := b.send("GET", events, secret, "", "")
			require.Equal(t, http.StatusUnauthorized, resp.StatusCode, end.name)
		}
	}
	for range 20 {
		b.open("GET", events, b.tokenIn("", "many"+rand.Text(), "operator", ""), "").until(t, "id: ")
	}
	before, first := reads.Load(), time.Now()
	require.Eventually(t, func() bool { return reads.Load() >= before+4 }, 30*time.Second, time.Millisecond)
	require.Greater(t, time.Since(first), 2*api.WatchEvery, "one for all")
	b.sql(`UPDATE credentials SET revoked_at = now()`)
	stays.until(t, "")
}

// TestEventsOfOtherOrgsAreNotDelivered: neither in a list nor by a stream, also those that were queued before a grant ended
// or of orgs that the caller asks for.
func TestEventsOfOtherOrgsAreNotDelivered(t *testing.T) {
	t.Parallel()
	b := setup(t, rowsOrFakes)
	for _, org := range []string{"acme", "mine", "also"} {
		b.org(org, "")
	}
	app := func(org, name string) string {
		return as[api.App](t, b.ok(http.StatusCreated, "POST", "/v1/apps", `{"org_id":"`+org+`","name":"`+name+`"}`)).AppId
	}
	var since string
	require.Eventually(t, func() bool { // an open transaction of another test holds the feed up
		_, page := b.send("GET", "/v1/events?tail=1&kind=org", "operator", "", "")
		events := as[api.FeedEventPage](t, page)
		since = events.NextCursor
		return len(events.Events) == 1 && events.Events[0].Id == "also"
	}, 30*time.Second, 20*time.Millisecond)
	mine, both := b.tokenIn("mine", "one", "org_viewer", ""), b.tokenIn("mine", "two", "org_viewer", "")
	b.sql(`INSERT INTO access_grants (grant_id, principal_id, access_role, org_id, created_by) VALUES ('g', 'two', 'org_viewer', 'also', 'test')`)
	all := b.open("GET", "/v1/events?since="+since, "operator", "")
	own := b.open("GET", "/v1/events?since="+since, mine, "")
	asked := b.open("GET", "/v1/events?org_id=acme,mine&since="+since, mine, "")
	wide := b.open("GET", "/v1/events?since="+since, both, "")
	foreign, also := app("acme", "first"), app("also", "second")
	b.reachable("app-1") // the installation's
	last := app("mine", "third")
	for _, s := range []*opened{own, asked} {
		seen := strings.Join(s.until(t, last), "\n")
		require.NotContains(t, seen, foreign)
		require.NotContains(t, seen, also)
		require.NotContains(t, seen, "app-1")
	}
	require.Contains(t, strings.Join(wide.until(t, last), "\n"), also)
	require.Contains(t, strings.Join(all.until(t, last), "\n"), foreign)

	for path, n := range map[string]int{"/v1/events?kind=app&since=" + since: 1, "/v1/events?org_id=acme&since=" + since: 0, "/v1/events?tail=100&kind=app,org,server": 2} {
		resp, body := b.send("GET", path, mine, "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
		page := as[api.FeedEventPage](t, body)
		require.Len(t, page.Events, n, "%s: %s", path, body)
		require.NotContains(t, string(body), "acme")
		resp, body = b.send("GET", "/v1/events?since="+page.NextCursor, mine, "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, "a cursor is another org's event: %s", body)
	}

	// What is narrowed takes effect on what is open.
	b.sql(`DELETE FROM access_grants WHERE grant_id = 'g'`)
	require.NoError(t, b.api.WatchNow(t.Context()))
	hidden, shown := app("also", "fourth"), app("mine", "fifth")
	require.NotContains(t, strings.Join(wide.until(t, shown), "\n"), hidden)
}
