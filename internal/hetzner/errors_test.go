package hetzner

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

type freeBudget struct{}

func (freeBudget) Acquire(context.Context, string) error      { return nil }
func (freeBudget) Observe(context.Context, int, int) error    { return nil }
func (freeBudget) Block(context.Context, time.Duration) error { return nil }

func provider(t *testing.T, h http.HandlerFunc) *Provider {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	p, err := New(Config{
		Endpoint: srv.URL, Token: "tok-123", Environment: "t", Timeout: time.Second, Poll: time.Millisecond, Simulated: true,
		Budget: freeBudget{}, Log: zap.NewNop(),
		MayDelete: func(context.Context, prego.InfraProviderID, server.ResourceKind, string) error { return nil },
	})
	require.NoError(t, err)
	return p
}

func params() server.CreateParams {
	return server.CreateParams{Environment: "t", ServerID: "app-1", Role: prego.RoleApp, Region: prego.RegionEU, Attempt: 2, SpecHash: "h", Candidate: server.Candidate{ServerType: "cx23", Location: "fsn1"}, Image: "debian-12"}
}

// TestEveryErrorHasAClass answers a create with every code of the provider's and checks the class that the caller
// gets; each create is one POST.
func TestEveryErrorHasAClass(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		code   string
		class  server.InfraClass
	}{
		{409, "conflict", server.InfraRetry},
		{423, "locked", server.InfraRetry},
		{503, "maintenance", server.InfraRetry},
		{502, "bad_gateway", server.InfraAmbiguous},
		{504, "timeout", server.InfraAmbiguous},
		{503, "unavailable", server.InfraAmbiguous},
		{500, "server_error", server.InfraAmbiguous},
		{500, "service_error", server.InfraAmbiguous},
		{429, "rate_limit_exceeded", server.InfraThrottled},
		{412, "resource_unavailable", server.InfraNext},
		{422, "placement_error", server.InfraNext},
		{422, "invalid_server_type", server.InfraNext},
		{422, "no_space_left_in_location", server.InfraNext},
		{422, "no_subnet_available", server.InfraNext},
		{403, "resource_limit_exceeded", server.InfraQuota},
		{401, "unauthorized", server.InfraPermanent},
		{403, "forbidden", server.InfraPermanent},
		{400, "json_error", server.InfraPermanent},
		{422, "invalid_input", server.InfraPermanent},
		{423, "protected", server.InfraPermanent},
		{422, "unsupported_error", server.InfraPermanent},
		{404, "not_found", server.InfraNotFound},
		{410, "gone_for_good", server.InfraNotFound},
		{500, "never_heard_of", server.InfraAmbiguous},
		{418, "teapot", server.InfraPermanent},
	} {
		var posts atomic.Int64
		p := provider(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.Method == http.MethodGet {
				fmt.Fprint(w, `{"servers":[]}`)
				return
			}
			posts.Add(1)
			w.WriteHeader(tc.status)
			fmt.Fprintf(w, `{"error":{"code":%q,"message":"limit of token tok-123 reached"}}`, tc.code)
		})
		_, err := p.CreateServer(context.Background(), params())
		var ie *server.InfraError
		require.ErrorAs(t, err, &ie, tc.code)
		require.Equal(t, tc.class, ie.Class, "%s: %v", tc.code, err)
		require.NotContains(t, err.Error(), "tok-123", "the provider quotes the token; we don't")
		require.EqualValues(t, 1, posts.Load(), "%s: one POST", tc.code)
	}
}

func TestWhatBearsTheNameIsJudged(t *testing.T) {
	t.Parallel()
	newServer := func(id int, labels string) string {
		return fmt.Sprintf(`{"id":%d,"name":"prego-t-app-1","status":"running","created":"2026-01-01T00:00:00Z","labels":%s,"server_type":{"name":"cx23"},"location":{"name":"fsn1"},"public_net":{"ipv4":{"id":7,"ip":"192.0.2.1"},"ipv6":{"id":8,"ip":"2001:db8::/64"}}}`, id, labels)
	}
	const ours = `"managed-by":"prego","prego-environment":"t","prego-server-id":"app-1",`
	for name, tc := range map[string]struct {
		labels  string
		class   server.InfraClass // "" for success
		adopted bool
		deletes int64
	}{
		"the same attempt":       {`{` + ours + `"prego-attempt":"2","prego-spec-hash":"h"}`, "", true, 0},
		"an earlier attempt":     {`{` + ours + `"prego-attempt":"1","prego-spec-hash":"h"}`, "", false, 1},
		"another spec":           {`{` + ours + `"prego-attempt":"2","prego-spec-hash":"x"}`, "", false, 1},
		"a later attempt":        {`{` + ours + `"prego-attempt":"3","prego-spec-hash":"h"}`, server.InfraAttempt, false, 0},
		"another owner's":        {`{}`, server.InfraForeign, false, 0},
		"of another environment": {`{"managed-by":"prego","prego-environment":"u","prego-server-id":"app-1"}`, server.InfraForeign, false, 0},
	} {
		var deletes atomic.Int64
		p := provider(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.Method == http.MethodDelete:
				deletes.Add(1)
				fmt.Fprint(w, `{"action":{"id":1,"status":"success"}}`)
			case r.Method == http.MethodPost && deletes.Load() > 0:
				fmt.Fprintf(w, `{"server":%s,"action":{"id":2},"next_actions":[],"root_password":"s3cret"}`, newServer(11, `{`+ours+`"prego-attempt":"2","prego-spec-hash":"h"}`))
			case r.Method == http.MethodPost:
				w.WriteHeader(http.StatusConflict)
				fmt.Fprint(w, `{"error":{"code":"uniqueness_error","message":"server name is already used"}}`)
			case r.URL.Path == "/actions":
				fmt.Fprint(w, `{"actions":[{"id":1,"status":"success"}]}`)
			case r.URL.Path == "/servers/10":
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"error":{"code":"not_found","message":"gone"}}`)
			default:
				fmt.Fprintf(w, `{"servers":[%s]}`, newServer(10, tc.labels))
			}
		})
		h, err := p.CreateServer(context.Background(), params())
		if tc.class != "" {
			var ie *server.InfraError
			require.ErrorAs(t, err, &ie, name)
			require.Equal(t, tc.class, ie.Class, name)
		} else {
			require.NoError(t, err, name)
			require.Equal(t, tc.adopted, h.Adopted, name)
			require.Equal(t, "192.0.2.1", h.IPv4)
			require.Equal(t, []string{"7", "8"}, h.PrimaryIPIDs)
			require.NotContains(t, fmt.Sprintf("%+v", h), "s3cret")
		}
		require.Equal(t, tc.deletes, deletes.Load(), name)
	}
}

func TestOneActionsFailureIsNobodyElses(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	p := provider(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"actions":[`)
		for i, id := range r.URL.Query()["id"] {
			if i > 0 {
				fmt.Fprint(w, ",")
			}
			switch id {
			case "3":
				fmt.Fprintf(w, `{"id":%s,"status":"error","error":{"code":"resource_unavailable","message":"full"}}`, id)
			default:
				fmt.Fprintf(w, `{"id":%s,"status":"success"}`, id)
			}
		}
		fmt.Fprint(w, `]}`)
	})
	results := make(chan error, 40)
	for id := int64(1); id <= 40; id++ {
		go func() {
			err := p.actions.wait(context.Background(), []int64{id})
			if id == 3 {
				var ie *server.InfraError
				if !errors.As(err, &ie) || ie.Class != server.InfraNext {
					err = fmt.Errorf("action 3 ended with %w", err)
				} else {
					err = nil
				}
			}
			results <- err
		}()
	}
	for range 40 {
		require.NoError(t, <-results)
	}
	require.Less(t, requests.Load(), int64(40), "waiters share requests")
}

func TestHostAddresses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"127.0.0.1", "10.0.0.1", "10.99.3.7", "192.168.1.1", "169.254.169.254", "0.0.0.0", "::1",
		"fe80::1", "::ffff:127.0.0.1", "224.0.0.1",
		"100.64.0.1", "198.18.0.1", "203.0.113.7", "64:ff9b::a00:1", "2001:db8::1",
	} {
		require.ErrorContains(t, CheckHostAddr(bad, false), "is not public", bad)
	}
	for _, bad := range []string{"", "localhost", "203.0.113.7:22"} {
		require.ErrorContains(t, CheckHostAddr(bad, false), "is not an IP address", bad)
	}
	require.NoError(t, CheckHostAddr("88.198.0.7", false))
	require.NoError(t, CheckHostAddr("127.9.9.9", true))
	require.NoError(t, CheckHostAddr("10.99.3.7", true), "a machine")
	for _, bad := range []string{"10.98.3.7", "203.0.113.7"} {
		require.ErrorContains(t, CheckHostAddr(bad, true), "simulated hosts are on loopback or in 10.99.0.0/16", bad)
	}
	_, err := New(Config{Endpoint: "http://api.example.com", Token: "x"})
	require.ErrorContains(t, err, "https")
}

// TestRefusalsOfOneCandidate: a refusal that concerns a machine type, a location or a class of types is not one of the
// account. What the provider adds to its message is kept.
func TestRefusalsOfOneCandidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status        int
		code, message string
		details       string
		class         server.InfraClass
		want          string // the code
		says          string
		unsold        bool
	}{
		"dedicated cores": {
			403, "resource_limit_exceeded", "dedicated core limit exceeded", `null`,
			server.InfraNext, "dedicated_core_limit", "dedicated core limit exceeded", false,
		},
		"dedicated cores, by the limit": {
			403, "resource_limit_exceeded", "limit exceeded", `{"limits":[{"name":"dedicated_core_limit"}]}`,
			server.InfraNext, "dedicated_core_limit", "limit exceeded (dedicated_core_limit)", false,
		},
		"addresses": {
			403, "resource_limit_exceeded", "Primary IP limit exceeded", `{"limits":[{"name":"primary_ip_limit"}]}`,
			server.InfraQuota, "resource_limit_exceeded", "Primary IP limit exceeded (primary_ip_limit)", false,
		},
		"servers": {
			403, "resource_limit_exceeded", "server limit exceeded", `{"limits":[{"name":"server_limit"}]}`,
			server.InfraQuota, "resource_limit_exceeded", "server limit exceeded (server_limit)", false,
		},
		"a type": {
			422, "invalid_input", "invalid input", `{"fields":[{"name":"server_type","messages":["is deprecated"]}]}`,
			server.InfraNext, "invalid_input", "invalid input (server_type: is deprecated)", true,
		},
		"a location": {
			422, "invalid_input", "invalid input", `{"fields":[{"name":"location","messages":["unknown location"]}]}`,
			server.InfraNext, "invalid_input", "invalid input (location: unknown location)", true,
		},
		"another field": {
			422, "invalid_input", "invalid input in field 'name'", `{"fields":[{"name":"name","messages":["too long"]}]}`,
			server.InfraPermanent, "invalid_input", "invalid input in field 'name' (name: too long)", false,
		},
		"a type that is gone": {404, "not_found", "server type not found", `null`, server.InfraNext, "not_found", "server type not found", true},
		"a location that is gone": {
			404, "not_found", "location with name 'fsn2' not found", `null`,
			server.InfraNext, "not_found", "location with name 'fsn2' not found", true,
		},
		"an image that is gone": {404, "not_found", "image not found", `null`, server.InfraPermanent, server.InfraImageGone, "image not found", false},
		"details of another form": {
			403, "resource_limit_exceeded", "server limit exceeded", `{"limits":"many"}`,
			server.InfraQuota, "resource_limit_exceeded", "server limit exceeded", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := provider(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tc.status)
				fmt.Fprintf(w, `{"error":{"code":%q,"message":%q,"details":%s}}`, tc.code, tc.message, tc.details)
			})
			_, err := p.CreateServer(t.Context(), params())
			ie := infraOf(err)
			require.Equal(t, server.InfraError{Class: tc.class, Code: tc.want, Message: tc.says, Unsold: tc.unsold}, ie)
		})
	}
}
