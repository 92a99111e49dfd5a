package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBoundsOfProvisioning: direct-provisioning §3 and §4 set them, except that of the image, and no setting passes.
func TestBoundsOfProvisioning(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]struct{ good, bad []string }{
		"PREGO_BOOTSTRAP_TOKEN_TTL": {[]string{"1s", "15m"}, []string{"0s", "-1m", "15m1s"}},
		"PREGO_CONTAINER_IMAGE":     {[]string{"frappe/erpnext:v15"}, []string{"frappe/ERPNext", "nginx:", "https://r.example/x"}},
		"PREGO_PROVISION_RETRIES":   {[]string{"0", "2"}, []string{"-1", "3"}},
	} {
		bounds(t, name, values.good, values.bad)
	}
}

// TestAnIdentityLivesForSomeHeartbeats: what is due for renewal as soon as it is issued is
// renewed with each heartbeat.
func TestAnIdentityLivesForSomeHeartbeats(t *testing.T) {
	t.Parallel()
	bounds(t, "PREGO_AGENTGW_CERT_TTL", []string{"15m", "24h"}, []string{"0s", "5m", "14m59s"})
}

func bounds(t *testing.T, name string, good, bad []string) {
	t.Helper()
	for _, v := range good {
		_, err := From(map[string]string{name: v})
		require.NoError(t, err, "%s=%s", name, v)
	}
	for _, v := range bad {
		_, err := From(map[string]string{name: v})
		require.ErrorContains(t, err, name, v)
	}
}
