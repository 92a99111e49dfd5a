package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBoundsOfProvisioning: direct-provisioning §3 and §4 set them, and no setting passes.
func TestBoundsOfProvisioning(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]struct{ good, bad []string }{
		"PREGO_BOOTSTRAP_TOKEN_TTL": {[]string{"1s", "15m"}, []string{"0s", "-1m", "15m1s"}},
		"PREGO_PROVISION_RETRIES":   {[]string{"0", "2"}, []string{"-1", "3"}},
	} {
		for _, v := range values.good {
			_, err := From(map[string]string{name: v})
			require.NoError(t, err, "%s=%s", name, v)
		}
		for _, v := range values.bad {
			_, err := From(map[string]string{name: v})
			require.ErrorContains(t, err, name, v)
		}
	}
}
