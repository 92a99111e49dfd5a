package hetzner_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/server"
)

// TestErrorClasses deletes something, and then reads something, and is refused
// with each of the provider's codes.
func TestErrorClasses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status  int
		code    string
		message string
		class   server.InfraClass
	}{
		{409, "conflict", "", server.InfraRetry},
		{423, "locked", "", server.InfraRetry},
		{409, "resource_in_use", "", server.InfraRetry},
		{422, "resource_in_use", "", server.InfraRetry},
		{503, "maintenance", "", server.InfraRetry},
		{502, "bad_gateway", "", server.InfraRetry},
		{504, "timeout", "", server.InfraRetry},
		{503, "unavailable", "", server.InfraRetry},
		{500, "server_error", "", server.InfraRetry},
		{500, "service_error", "", server.InfraRetry},

		{429, "rate_limit_exceeded", "limit of 3600 requests per hour reached for token " + apiToken, server.InfraThrottled},

		{412, "resource_unavailable", "error during placement", server.InfraNext},
		{422, "placement_error", "error during placement", server.InfraNext},
		{422, "invalid_server_type", "", server.InfraNext},
		{422, "no_space_left_in_location", "", server.InfraNext},
		{422, "no_subnet_available", "", server.InfraNext},
		// The provider's answer for a retired type, or a type that is not sold at a location.
		{422, "invalid_input", "unsupported location for server type", server.InfraNext},
		{422, "invalid_input", "Server Type 104 is deprecated", server.InfraNext},
		{422, "invalid_input", "server type not found", server.InfraNext},
		{422, "invalid_input", "invalid input in field 'location'", server.InfraNext},

		{403, "resource_limit_exceeded", "server limit exceeded", server.InfraQuota},
		{403, "resource_limit_exceeded", "Primary IP limit exceeded", server.InfraQuota},

		{404, "server_not_found", "", server.InfraNotFound},
		{404, "firewall_not_found", "", server.InfraNotFound},
		{404, "placement_group_not_found", "", server.InfraNotFound},
		{404, "something_not_found", "", server.InfraNotFound},
		{410, "gone_for_good", "", server.InfraNotFound},

		{401, "unauthorized", "the token you have provided is invalid", server.InfraPermanent},
		{403, "forbidden", "", server.InfraPermanent},
		{403, "token_readonly", "", server.InfraPermanent},
		{400, "json_error", "", server.InfraPermanent},
		{422, "invalid_input", "invalid input in field 'name'", server.InfraPermanent},
		{422, "invalid_input", "image debian-12 is deprecated", server.InfraPermanent},
		{423, "protected", "", server.InfraPermanent},
		{423, "resource_locked", "", server.InfraPermanent},
		{422, "unsupported_error", "", server.InfraPermanent},
		{405, "method_not_allowed", "", server.InfraPermanent},
		{410, "deprecated_api_endpoint", "the endpoint is deprecated: pick another server type", server.InfraPermanent},
		{418, "teapot", "", server.InfraPermanent},
		{422, "volume_already_attached", "", server.InfraPermanent},

		// An unknown server error leaves the outcome unknown.
		{500, "cosmic_rays", "", server.InfraAmbiguous},
		{503, "robot_unavailable", "", server.InfraAmbiguous},
		{599, "unknown_error", "", server.InfraAmbiguous},
		// A page of something in between.
		{403, "", "<html>blocked</html>", server.InfraAmbiguous},
		{404, "", "<html>not here</html>", server.InfraAmbiguous},
		{500, "", "<html>broken</html>", server.InfraAmbiguous},
	} {
		t.Run(tc.code+" "+tc.message, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			answer, want := message(tc.status, tc.code, tc.message), tc.code
			if tc.code == "no_subnet_available" {
				want = server.InfraNetworkFull // like a refusal because of its limit of members
			}
			if tc.code == "" {
				answer, want = raw(tc.status, "text/html", tc.message), "no_valid_answer"
			}
			p.inject(&fault{path: "/", times: 100, answer: answer})
			hz := p.provider(nil)

			err := hz.DeleteResource(t.Context(), server.ResourcePlacementGroup, "42")
			require.Len(t, p.requests, 1, "what changes something is sent once")
			if tc.class == server.InfraNotFound {
				require.NoError(t, err, "deleting a missing resource is success")
			} else {
				_ = requireClass(t, err, tc.class, want)
			}

			_, err = hz.GetServer(t.Context(), "42")
			_ = requireClass(t, err, tc.class, want)
			require.LessOrEqual(t, len(p.requests), 5, "reads are repeated, and not for ever")
		})
	}
}

// TestReadsSurviveABadMoment: reads repeat what a moment later may succeed.
func TestReadsSurviveABadMoment(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter){
		"conflict": code(409, "conflict"), "rate limit": code(429, "rate_limit_exceeded"), "bad gateway": code(502, "bad_gateway"),
		"timeout": code(504, "timeout"), "a proxy's page": raw(502, "text/html", "<html>"), "no answer": hang, "half an answer": drip,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			h := p.running("app-1")
			p.inject(&fault{method: "GET", path: "/servers/", times: 1, answer: answer})
			got, err := p.provider(impatient).GetServer(t.Context(), prego.ServerID(h.ProviderServerID))
			require.NoError(t, err)
			require.Equal(t, "running", got.Status)
		})
	}
}

func TestNetworkErrors(t *testing.T) {
	t.Parallel()
	t.Run("no listener", func(t *testing.T) {
		t.Parallel()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		p := newProject(t)
		hz := p.provider(func(c *hetzner.Config) { c.Endpoint = "http://" + ln.Addr().String() })
		_, err = hz.CreateServer(t.Context(), order(nil))
		_ = requireClass(t, err, server.InfraAmbiguous, "connection_refused")
	})
	t.Run("the caller's time is up", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		p.inject(&fault{method: "DELETE", path: "/", answer: hang})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_ = requireClass(t, p.provider(nil).DeleteResource(ctx, server.ResourceFirewall, "42"), server.InfraAmbiguous, "timeout")
	})
	t.Run("the caller has left", func(t *testing.T) {
		t.Parallel()
		p := newProject(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.provider(nil).GetServer(ctx, "42")
		require.ErrorIs(t, err, context.Canceled)
	})
}

// TestRedirectsAreNotFollowed: the token goes only to the API.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	t.Cleanup(thief.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		p := newProject(t)
		p.inject(&fault{path: "/", times: 10, answer: func(w http.ResponseWriter) {
			w.Header().Set("Location", thief.URL)
			w.WriteHeader(status)
		}})
		hz := p.provider(nil)
		_, err := hz.GetServer(t.Context(), "42")
		_ = requireClass(t, err, server.InfraAmbiguous, "no_valid_answer")
		_, err = hz.CreateServer(t.Context(), order(nil))
		_ = requireClass(t, err, server.InfraAmbiguous, "no_valid_answer")
	}
	require.Zero(t, stolen.Load())
}

// TestErrorsTellNoSecret: also when the provider quotes what it was sent.
func TestErrorsTellNoSecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"limit reached for token " + apiToken,
		"Authorization: Bearer " + apiToken,
		`{"token":"` + apiToken + `"}`,
		apiToken + apiToken,
		"root_password=" + rootPassword,
	} {
		p := newProject(t)
		p.inject(&fault{path: "/", times: 10, answer: message(429, "rate_limit_exceeded", text)})
		_, err := p.provider(nil).CreateServer(t.Context(), order(nil))
		ie := requireClass(t, err, server.InfraThrottled, "rate_limit_exceeded")
		b, err := json.Marshal(ie)
		require.NoError(t, err)
		requireNoSecret(t, string(b))
	}
}
