package hetzner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/server"
)

func TestCreateSaysWhatIsOrdered(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	params := order(func(o *server.CreateParams) {
		o.FirewallID, o.PlacementGroup, o.VolumeIDs = "11", "12", prego.IDs[prego.VolumeID]([]string{"13", "14"})
	})
	h, err := p.provider(nil).CreateServer(t.Context(), params)
	require.NoError(t, err)

	posts := p.seen("POST", "/servers")
	require.Len(t, posts, 1)
	require.JSONEq(t, fmt.Sprintf(`{
		"name": "prego-test-app-1", "server_type": "cx43", "image": "debian-12", "location": "fsn1", "user_data": %q,
		"start_after_create": true, "automount": false, "volumes": [13, 14], "firewalls": [{"firewall": 11}], "placement_group": 12,
		"public_net": {"enable_ipv4": true, "enable_ipv6": true},
		"labels": {"managed-by": "prego", "prego-environment": "test", "prego-server-id": "app-1", "prego-attempt": "2",
			"prego-spec-hash": "abc123", "prego-role": "app", "prego-region": "eu"}}`, userData), posts[0].Body, "plain user_data, and no ssh_keys")
	require.Len(t, p.requests, 1, "one create is one request")

	srv := p.list()[0]
	require.Equal(t, server.Handle{
		ProviderServerID: fmt.Sprint(srv.ID), Name: "prego-test-app-1", Status: "initializing", IPv4: "203.0.113.9", IPv6: "2001:db8:1::/64",
		ServerType: "cx43", Location: "fsn1", Attempt: 2, SpecHash: "abc123", CreatedAt: srv.Created,
		PrimaryIPIDs: []string{fmt.Sprint(srv.PublicNet.IPv4.ID), fmt.Sprint(srv.PublicNet.IPv6.ID)}, ActionIDs: []int64{srv.ID + 1, srv.ID + 2},
	}, h)
	b, err := json.Marshal(h)
	require.NoError(t, err)
	requireNoSecret(t, string(b))
}

func TestCreateLeavesOutWhatIsNotOrdered(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	_, err := p.provider(nil).CreateServer(t.Context(), order(nil))
	require.NoError(t, err)
	var body map[string]any
	require.NoError(t, json.Unmarshal([]byte(p.seen("POST", "/servers")[0].Body), &body))
	for _, key := range []string{"ssh_keys", "volumes", "automount", "firewalls", "placement_group", "networks"} {
		require.NotContains(t, body, key)
	}
}

func TestCreateRefusesBadOrdersUnsent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*server.CreateParams){
		"firewall":        func(o *server.CreateParams) { o.FirewallID = "x" },
		"placement group": func(o *server.CreateParams) { o.PlacementGroup = "-1" },
		"volume":          func(o *server.CreateParams) { o.VolumeIDs = prego.IDs[prego.VolumeID]([]string{"0"}) },
		"image":           func(o *server.CreateParams) { o.Image = "" },
		"server type":     func(o *server.CreateParams) { o.Candidate.ServerType = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			_, err := p.provider(nil).CreateServer(t.Context(), order(change))
			_ = requireClass(t, err, server.InfraPermanent, "invalid_input")
			require.Empty(t, p.requests)
		})
	}
}

// losses are the ways to lose the answer of a create.
var losses = map[string]struct {
	answer func(http.ResponseWriter)
	code   string // of the error when nothing is found afterwards
}{
	"504 timeout":            {code(504, "timeout"), "timeout"},
	"502 bad_gateway":        {code(502, "bad_gateway"), "bad_gateway"},
	"503 unavailable":        {code(503, "unavailable"), "unavailable"},
	"500 server_error":       {code(500, "server_error"), "server_error"},
	"500 service_error":      {code(500, "service_error"), "service_error"},
	"500 of an unknown code": {code(500, "cosmic_rays"), "cosmic_rays"},
	"503 of an unknown code": {code(503, "robot_unavailable"), "robot_unavailable"},
	"502 page of a proxy":    {raw(502, "text/html", "<html>Bad Gateway</html>"), "no_valid_answer"},
	"504 page of a proxy":    {raw(504, "text/html", "<html>Gateway Timeout</html>"), "no_valid_answer"},
	"503 with no body":       {raw(503, "text/plain", ""), "no_valid_answer"},
	"500 of broken JSON":     {raw(500, "application/json", `{"error":`), "no_valid_answer"},
	"200 that is a page":     {raw(200, "text/html", "<html>Welcome to the hotel's wireless network</html>"), "no_valid_answer"},
	"201 with no body":       {raw(201, "application/json", ""), "no_valid_answer"},
	"201 with no server":     {raw(201, "application/json", "{}"), "no_valid_answer"},
	"302 to elsewhere":       {redirect, "no_valid_answer"},
	"connection reset":       {reset, "connection_lost"},
	"answer cut off":         {truncated, "connection_lost"},
	"no answer in time":      {hang, "timeout"},
	"no body in time":        {drip, "timeout"},
}

func redirect(w http.ResponseWriter) {
	w.Header().Set("Location", "http://127.0.0.1:1/steal")
	w.WriteHeader(http.StatusFound)
}

func impatient(c *hetzner.Config) { c.Timeout = 300 * time.Millisecond }

// TestLostAnswerOfACreateThatHappened adopts what the call made, in the same call.
func TestLostAnswerOfACreateThatHappened(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			p.inject(&fault{method: "POST", path: "/servers", before: true, answer: loss.answer})
			h, err := p.provider(impatient).CreateServer(t.Context(), order(nil))
			require.NoError(t, err)
			require.True(t, h.Adopted)
			require.Len(t, p.list(), 1)
			require.Equal(t, fmt.Sprint(p.list()[0].ID), h.ProviderServerID)
			require.Len(t, p.seen("POST", "/servers"), 1)
			require.Empty(t, p.deleted)
		})
	}
}

// TestLostAnswerOfACreateThatDidNotHappen: the error reports the unknown outcome, and the caller's next call makes
// the one server.
func TestLostAnswerOfACreateThatDidNotHappen(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			p.inject(&fault{method: "POST", path: "/servers", answer: loss.answer})
			hz := p.provider(impatient)
			_, err := hz.CreateServer(t.Context(), order(nil))
			_ = requireClass(t, err, server.InfraAmbiguous, loss.code)
			require.Len(t, p.seen("POST", "/servers"), 1, "an ambiguous create is not repeated blindly")
			require.Len(t, p.seen("GET", "/servers"), 1)
			require.Empty(t, p.list())

			h, err := hz.CreateServer(t.Context(), order(nil))
			require.NoError(t, err)
			require.False(t, h.Adopted)
			require.Len(t, p.list(), 1)
		})
	}
}

// TestLostAnswerOfACreateThatLandsLate: the lookup finds nothing, then the server
// comes into being, and the caller's next call meets it.
func TestLostAnswerOfACreateThatLandsLate(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			p.inject(&fault{method: "POST", path: "/servers", late: true, answer: loss.answer})
			hz := p.provider(impatient)
			_, err := hz.CreateServer(t.Context(), order(nil))
			_ = requireClass(t, err, server.InfraAmbiguous, loss.code)
			require.Equal(t, 1, p.land())

			h, err := hz.CreateServer(t.Context(), order(nil))
			require.NoError(t, err)
			require.True(t, h.Adopted)
			require.Len(t, p.list(), 1)
			require.Empty(t, p.deleted)
		})
	}
}

// TestLateCreateOfAnEarlierAttempt lands between two calls of the next attempt,
// and after them. In both orders one server is left, of the later attempt.
func TestLateCreateOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("before the next attempt: %t", before), func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			p.inject(&fault{method: "POST", path: "/servers", late: true, answer: code(504, "timeout")})
			hz := p.provider(nil)
			_, err := hz.CreateServer(t.Context(), order(nil))
			_ = requireClass(t, err, server.InfraAmbiguous, "timeout")
			landed := 0
			if before {
				landed = p.land()
			}
			h, err := hz.CreateServer(t.Context(), order(func(o *server.CreateParams) { o.Attempt = 3 }))
			require.NoError(t, err)
			require.False(t, h.Adopted)
			require.Equal(t, 3, h.Attempt)
			if !before {
				landed = p.land()
			}
			require.Equal(t, before, landed == 1, "after the next attempt its name is taken")
			require.Len(t, p.list(), 1)
			require.Equal(t, "3", p.list()[0].Labels[server.LabelAttempt])
		})
	}
}

// TestReplacingLosesAnswersToo: an earlier attempt's server is in the way, and the
// second POST's answer is lost, with the server made, not made, and made late.
func TestReplacingLosesAnswersToo(t *testing.T) {
	t.Parallel()
	older := order(func(o *server.CreateParams) { o.Attempt = 1 })
	for _, outcome := range []string{"made", "not made", "late"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			hz := p.provider(nil)
			_, err := hz.CreateServer(t.Context(), older)
			require.NoError(t, err)
			p.inject(&fault{method: "POST", path: "/servers", skip: 1, before: outcome == "made", late: outcome == "late", answer: reset})
			h, err := hz.CreateServer(t.Context(), order(nil))
			switch outcome {
			case "made":
				require.NoError(t, err)
				require.True(t, h.Adopted)
			default:
				_ = requireClass(t, err, server.InfraAmbiguous, "connection_lost")
				p.land()
				h, err = hz.CreateServer(t.Context(), order(nil))
				require.NoError(t, err)
				require.Equal(t, outcome == "late", h.Adopted)
			}
			require.Equal(t, 2, h.Attempt)
			require.Len(t, p.list(), 1)
			require.Len(t, p.deleted, 1)
			require.Equal(t, "1", p.deleted[0].Labels[server.LabelAttempt])
		})
	}
}

func TestLookupFailsToo(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.inject(&fault{method: "POST", path: "/servers", before: true, answer: code(500, "server_error")})
	p.inject(&fault{method: "GET", path: "/servers", answer: message(401, "unauthorized", "the token "+apiToken+" is invalid")})
	hz := p.provider(nil)
	_, err := hz.CreateServer(t.Context(), order(nil))
	ie := requireClass(t, err, server.InfraAmbiguous, "server_error")
	require.Contains(t, ie.Message, "unauthorized", "both failures are reported")
	h, err := hz.CreateServer(t.Context(), order(nil))
	require.NoError(t, err)
	require.True(t, h.Adopted)
	require.Len(t, p.list(), 1)
}

// TestDefiniteRefusalIsNotLookedUp: nothing was made, so there is nothing to find.
func TestDefiniteRefusalIsNotLookedUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		code   string
		class  server.InfraClass
	}{
		{409, "conflict", server.InfraRetry},
		{429, "rate_limit_exceeded", server.InfraThrottled},
		{412, "resource_unavailable", server.InfraNext},
		{403, "resource_limit_exceeded", server.InfraQuota},
		{422, "invalid_input", server.InfraPermanent},
	} {
		t.Run(c.code, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			p.inject(&fault{method: "POST", path: "/servers", answer: code(c.status, c.code)})
			_, err := p.provider(nil).CreateServer(t.Context(), order(nil))
			_ = requireClass(t, err, c.class, c.code)
			require.Len(t, p.requests, 1)
		})
	}
}

func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	ours := func(change map[string]string) map[string]string {
		labels := order(nil).Labels()
		for k, v := range change {
			if labels[k] = v; v == "" {
				delete(labels, k)
			}
		}
		return labels
	}
	for name, tc := range map[string]struct {
		labels map[string]string
		class  server.InfraClass // "" when the call succeeds
		adopt  bool
	}{
		"by this attempt":                 {labels: ours(nil), adopt: true},
		"by this attempt, and more":       {labels: ours(map[string]string{"team": "blue"}), adopt: true},
		"by an earlier attempt":           {labels: ours(map[string]string{server.LabelAttempt: "1"})},
		"by this attempt, other spec":     {labels: ours(map[string]string{server.LabelSpecHash: "other"})},
		"by this attempt, no spec":        {labels: ours(map[string]string{server.LabelSpecHash: ""})},
		"by a later attempt":              {labels: ours(map[string]string{server.LabelAttempt: "3"}), class: server.InfraAttempt},
		"by attempt 10, not 1":            {labels: ours(map[string]string{server.LabelAttempt: "10"}), class: server.InfraAttempt},
		"without owner":                   {labels: map[string]string{}, class: server.InfraForeign},
		"by another environment":          {labels: ours(map[string]string{server.LabelEnvironment: "prod"}), class: server.InfraForeign},
		"by another manager":              {labels: ours(map[string]string{server.LabelManagedBy: "pulumi"}), class: server.InfraForeign},
		"by another server id":            {labels: ours(map[string]string{server.LabelServerID: "app-2"}), class: server.InfraForeign},
		"by ours without an attempt":      {labels: ours(map[string]string{server.LabelAttempt: ""}), class: server.InfraForeign},
		"by ours with an odd attempt":     {labels: ours(map[string]string{server.LabelAttempt: "one"}), class: server.InfraForeign},
		"by ours with a negative attempt": {labels: ours(map[string]string{server.LabelAttempt: "-5"}), class: server.InfraForeign},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			id := p.plant("prego-test-app-1", tc.labels)
			h, err := p.provider(nil).CreateServer(t.Context(), order(nil))
			require.Len(t, p.list(), 1)
			switch {
			case tc.class != "":
				_ = requireClass(t, err, tc.class, "uniqueness_error")
				require.Empty(t, p.deleted)
				require.Equal(t, id, p.list()[0].ID)
				require.Equal(t, tc.labels, p.list()[0].Labels)
			case tc.adopt:
				require.NoError(t, err)
				require.True(t, h.Adopted)
				require.Equal(t, fmt.Sprint(id), h.ProviderServerID)
				require.Equal(t, "running", h.Status)
				require.Empty(t, p.deleted)
			default:
				require.NoError(t, err)
				require.False(t, h.Adopted)
				require.Len(t, p.deleted, 1)
				require.Equal(t, id, p.deleted[0].ID)
				require.Equal(t, order(nil).Labels(), p.list()[0].Labels)
			}
		})
	}
}

func TestReplacingWaitsUntilTheNameIsFree(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.plant("prego-test-app-1", order(func(o *server.CreateParams) { o.Attempt = 1 }).Labels())
	p.mu.Lock()
	p.held = true
	p.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		_, err := p.provider(nil).CreateServer(t.Context(), order(nil))
		done <- err
	}()
	require.Eventually(t, func() bool { return len(p.seen("GET", "/actions")) > 2 }, 5*time.Second, time.Millisecond)
	require.Len(t, p.seen("POST", "/servers"), 1, "the deletion has not ended")
	p.release()
	require.NoError(t, <-done)
	require.Len(t, p.seen("POST", "/servers"), 2)
	require.Len(t, p.list(), 1)
}

func TestReplacingIsRefused(t *testing.T) {
	t.Parallel()
	older := order(func(o *server.CreateParams) { o.Attempt = 1 }).Labels()

	t.Run("protected", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		id := p.plant("prego-test-app-1", older)
		p.servers[id].Protection.Delete = true
		_, err := p.provider(nil).CreateServer(t.Context(), order(nil))
		_ = requireClass(t, err, server.InfraPermanent, "protected")
		require.Len(t, p.list(), 1)
		require.Len(t, p.seen("POST", "/servers"), 1)
	})
	t.Run("deleted concurrently", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		id := p.plant("prego-test-app-1", older)
		p.inject(&fault{method: "DELETE", path: fmt.Sprintf("/servers/%d", id), before: true, answer: code(404, "not_found")})
		h, err := p.provider(nil).CreateServer(t.Context(), order(nil))
		require.NoError(t, err)
		require.False(t, h.Adopted)
		require.Len(t, p.list(), 1)
	})
	t.Run("the name is taken again and again", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		p.plant("prego-test-app-1", older)
		p.inject(&fault{method: "POST", path: "/servers", skip: 1, answer: func(w http.ResponseWriter) {
			p.plant("prego-test-app-1", older)
			code(409, "uniqueness_error")(w)
		}})
		_, err := p.provider(nil).CreateServer(t.Context(), order(nil))
		_ = requireClass(t, err, server.InfraRetry, "uniqueness_error")
		require.Len(t, p.deleted, 1, "one call replaces once")
		require.Len(t, p.seen("POST", "/servers"), 2, "duplicate names are not hammered")
	})
	t.Run("taken, and free when looked up", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		p.inject(&fault{method: "POST", path: "/servers", answer: code(409, "uniqueness_error")})
		_, err := p.provider(nil).CreateServer(t.Context(), order(nil))
		_ = requireClass(t, err, server.InfraAmbiguous, "uniqueness_error")
	})
}

func TestManyCreatesOfOneServer(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	const racers = 16
	var wg sync.WaitGroup
	handles := make([]server.Handle, racers)
	errs := make([]error, racers)
	for i := range racers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			handles[i], errs[i] = p.provider(nil).CreateServer(t.Context(), order(nil)) // a separate worker
		}()
	}
	wg.Wait()
	made := 0
	for i := range racers {
		require.NoError(t, errs[i])
		require.Equal(t, handles[0].ProviderServerID, handles[i].ProviderServerID)
		if !handles[i].Adopted {
			made++
		}
	}
	require.Equal(t, 1, made)
	require.Len(t, p.list(), 1)
	require.Empty(t, p.deleted)
}

func TestCreateIsCancelled(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	ctx, cancel := context.WithCancel(t.Context())
	p.inject(&fault{method: "POST", path: "/servers", before: true, answer: func(w http.ResponseWriter) {
		cancel()
		hang(w)
	}})
	hz := p.provider(nil)
	_, err := hz.CreateServer(ctx, order(nil))
	require.ErrorIs(t, err, context.Canceled)
	requireNoSecret(t, err.Error())
	h, err := hz.CreateServer(t.Context(), order(nil))
	require.NoError(t, err)
	require.True(t, h.Adopted)
	require.Len(t, p.list(), 1)
}

// TestAnyOrderOfFailures plays attempts, repeats, lost answers and late landings
// in any order. Whatever happens, no server of a later attempt is deleted, and
// the last attempt ends with the one server, of its attempt and spec.
func TestAnyOrderOfFailures(t *testing.T) {
	t.Parallel()
	kinds := []string{"504 timeout", "connection reset", "answer cut off", "201 with no server", "500 of an unknown code"}
	rapid.Check(t, func(r *rapid.T) {
		p := newProject(t)
		hz := p.provider(nil)
		newest := 1
		steps := rapid.IntRange(1, 12).Draw(r, "steps")
		for range steps {
			attempt := rapid.IntRange(max(1, newest-1), newest+1).Draw(r, "attempt") // a zombie worker repeats an old one
			params := order(func(o *server.CreateParams) {
				o.Attempt, o.SpecHash = attempt, rapid.SampledFrom([]string{"a", "b"}).Draw(r, "spec")
			})
			if kind := rapid.SampledFrom(append([]string{""}, kinds...)).Draw(r, "loss"); kind != "" {
				p.faults = []*fault{{
					method: "POST", path: "/servers", times: 1, answer: losses[kind].answer,
					before: rapid.Bool().Draw(r, "made"), late: true,
				}}
			}
			gone := len(p.deleted)
			h, err := hz.CreateServer(t.Context(), params)
			p.faults = nil
			for _, d := range p.deleted[gone:] {
				var of int
				_, scanErr := fmt.Sscan(d.Labels[server.LabelAttempt], &of)
				require.NoError(r, scanErr)
				require.LessOrEqual(r, of, attempt, "a later attempt's server was deleted")
				require.False(r, of == attempt && d.Labels[server.LabelSpecHash] == params.SpecHash, "the call's own server was deleted")
			}
			if err == nil {
				require.Equal(r, attempt, h.Attempt)
				require.Equal(r, params.SpecHash, h.SpecHash)
				newest = max(newest, attempt)
			}
			if rapid.Bool().Draw(r, "land") {
				p.land()
			}
		}
		p.land()
		last := order(func(o *server.CreateParams) { o.Attempt = newest + 1 })
		h, err := hz.CreateServer(t.Context(), last)
		if err != nil { // the last create may belong to an unknown attempt
			_ = requireClass(t, err, server.InfraAttempt, "uniqueness_error")
			last.Attempt++
			h, err = hz.CreateServer(t.Context(), last)
		}
		require.NoError(r, err)
		require.Len(r, p.list(), 1)
		require.Equal(r, h.ProviderServerID, fmt.Sprint(p.list()[0].ID))
		require.Equal(r, last.Labels(), p.list()[0].Labels)
	})
}
