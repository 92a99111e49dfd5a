package activities

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// TestAProvidersErrorIsSortedForTheWorkflow: its type decides what the run does next, and
// is in histories.
func TestAProvidersErrorIsSortedForTheWorkflow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		class server.InfraClass
		code  string
		want  string
		again bool
	}{
		{server.InfraNext, "resource_unavailable", "candidate_unavailable", false},
		{server.InfraNext, "placement_error", "candidate_unavailable", false},
		{server.InfraQuota, "resource_limit_exceeded", "account_quota", false},
		{server.InfraNotFound, "not_found", "server_gone", false},
		{server.InfraForeign, "foreign", "permanent", false},
		{server.InfraPermanent, "forbidden", "permanent", false},
		{server.InfraAttempt, "attempt", "superseded", false},
		{server.InfraThrottled, "rate_limit_exceeded", "provider_unavailable", true},
		{server.InfraRetry, "conflict", "provider_unavailable", true},
		{server.InfraAmbiguous, "timeout", "provider_unavailable", true},
	} {
		err := fromInfra(fmt.Errorf("create: %w", &server.InfraError{Class: tc.class, Code: tc.code, Message: "m", RetryAfter: 7 * time.Second}))
		var app *temporal.ApplicationError
		require.ErrorAs(t, err, &app, tc.code)
		require.Equal(t, []any{tc.want, !tc.again}, []any{app.Type(), app.NonRetryable()}, "%s %s", tc.class, tc.code)
		require.Contains(t, app.Error(), tc.code)
		if tc.again {
			require.Equal(t, 7*time.Second, app.NextRetryDelay(), tc.code)
		}
	}
	require.NoError(t, fromInfra(nil))
	other := errors.New("context deadline exceeded")
	require.Same(t, other, fromInfra(other), "errors that are not the provider's follow the retry policy")
	odd := &server.InfraError{Class: "odd"}
	require.Same(t, odd, fromInfra(odd))
}

// TestTheStoresRefusalsAreFinal, and a database that is away is asked again.
func TestTheStoresRefusalsAreFinal(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{"superseded": server.ErrSuperseded, "permanent": prego.Errorf(prego.CodeServerNotFound, "no server")} {
		var app *temporal.ApplicationError
		require.ErrorAs(t, fromStore(fmt.Errorf("row: %w", err)), &app)
		require.Equal(t, []any{want, true}, []any{app.Type(), app.NonRetryable()})
	}
	require.NoError(t, fromStore(nil))
	away := errors.New("connection refused")
	require.Same(t, away, fromStore(away))
}
