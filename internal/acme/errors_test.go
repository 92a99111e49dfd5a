package acme

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/tenant"
)

// TestProblemsHaveAClass: by RFC 8555 §6.7's names, and by the status where there is none.
func TestProblemsHaveAClass(t *testing.T) {
	t.Parallel()
	for typ, want := range map[string]tenant.IssueClass{
		"rateLimited": tenant.IssueRateLimited, "unauthorized": tenant.IssueUnauthorized, "incorrectResponse": tenant.IssueUnauthorized, "caa": tenant.IssueCAA,
		"dns": tenant.IssueDNS, "connection": tenant.IssueConnection, "tls": tenant.IssueConnection, "rejectedIdentifier": tenant.IssueRejected,
		"accountDoesNotExist": tenant.IssueAccount, "userActionRequired": tenant.IssueAccount, "serverInternal": tenant.IssueServer, "malformed": tenant.IssueMalformed, "badCSR": tenant.IssueMalformed,
	} {
		require.Equal(t, want, classOf(acme.Problem{Type: acme.ProblemTypeNamespace + typ, Status: 400}), typ)
	}
	compound := acme.Problem{Type: acme.ProblemTypeCompound, Detail: "two", Subproblems: []acme.Subproblem{{
		Problem: acme.Problem{Type: acme.ProblemTypeCAA, Detail: "forbidden"}, Identifier: acme.Identifier{Value: "*.example.com"},
	}}}
	e := ofProblem("the order", compound)
	require.Equal(t, []any{tenant.IssueCAA, "example.com", "the order: two: forbidden"}, []any{e.Class, e.Name, e.Message})
	require.Equal(t, tenant.IssueRateLimited, classOf(acme.Problem{Status: 429}))
	require.Equal(t, tenant.IssueServer, classOf(acme.Problem{Status: 503}))
	require.LessOrEqual(t, len([]rune(ofProblem("x", acme.Problem{Detail: strings.Repeat("é\x00", 2000)}).Message)), maxDetail+10)
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "90": 90 * time.Second, "999999999999": maxRetryAfter, "Sun, 22 Nov 2026 13:00:00 GMT": time.Hour, "Sun, 22 Nov 2026 11:00:00 GMT": 0,
	} {
		require.Equal(t, want, retryAfter(header, now), header)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestNoSecondPost: after one whose outcome is not known, none is sent in the same call.
func TestNoSecondPost(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func() (*http.Response, error){
		"lost": func() (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
		"503": func() (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
		},
	} {
		sent := 0
		c := careful{roundTrip(func(*http.Request) (*http.Response, error) {
			sent++
			return answer()
		})}
		ctx, seen := watched(context.Background())
		post := func() error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://ca.example/order", nil)
			require.NoError(t, err)
			resp, err := c.RoundTrip(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		_ = post()
		require.ErrorIs(t, post(), errLost, name)
		require.Equal(t, 1, sent, name)
		err := classed("place the order", errLost, seen)
		require.Equal(t, tenant.IssueServer, tenant.ClassOfIssue(err))
		var other *tenant.IssueError
		require.True(t, errors.As(err, &other))
	}
}

func TestOnlyPublicAddressesAreProbed(t *testing.T) {
	t.Parallel()
	probe, lab := NewProbe(ProbeConfig{Port: 80}), NewProbe(ProbeConfig{Port: 80, AnyAddress: true})
	for address, want := range map[string]bool{
		"88.198.0.7": true, "2a01:4f8::1": true, "203.0.113.7": false,
		"64:ff9b::a00:1": false, "198.18.0.1": false,
		"127.0.0.1": false, "10.64.0.1": false, "169.254.169.254": false, "100.64.0.1": false, "::1": false,
		"fe80::1": false, "fd00::1": false, "0.0.0.0": false, "::ffff:127.0.0.1": false, "224.0.0.1": false, "x": false,
	} {
		err := probe.allowed("tcp", net.JoinHostPort(address, "80"), nil)
		require.Equal(t, want, err == nil, address)
		require.NoError(t, lab.allowed("tcp", net.JoinHostPort(address, "80"), nil), address)
	}
}
