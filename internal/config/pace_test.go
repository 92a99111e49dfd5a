package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPaceScalesWhatIsNotSet(t *testing.T) {
	t.Parallel()
	cfg, err := From(map[string]string{"PREGO_PACE": "0.1", "PREGO_DEGRADED_AFTER": "50s", "PREGO_FAILED_AFTER": ""})
	require.ErrorContains(t, err, "PREGO_FAILED_AFTER", "30 s is less than the 50 that are set")
	require.Equal(t, 50*time.Second, cfg.Worker.DegradedAfter)
	require.Equal(t, 30*time.Second, cfg.Worker.FailedAfter)
	require.Equal(t, 3*time.Second, cfg.Gateway.Heartbeat)
	require.Equal(t, 1500*time.Millisecond, cfg.Tenants.SweepEvery, "what has no variable")
	require.Equal(t, 100*time.Millisecond, cfg.Hetzner.Poll, "nothing is quicker")
	require.Equal(t, []time.Duration{10 * time.Minute, 720 * time.Hour, 5 * time.Minute}, []time.Duration{cfg.Tenants.SiteTimeout, cfg.Tenants.Retention, cfg.Worker.ContainerTimeout})
	bounds(t, "PREGO_PACE", []string{"0.001", "10"}, []string{"0", "-1", "11"})
	normal, err := From(nil)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{30 * time.Second, 250 * time.Millisecond, 15 * time.Second}, []time.Duration{normal.Gateway.Heartbeat, normal.Gateway.Flush, normal.Tenants.SweepEvery})
}

func TestUnknownVariablesAreFound(t *testing.T) {
	t.Parallel()
	cfg, err := From(map[string]string{
		"PREGO_SWEEP_EVERY": "1s", "PLACEMENT_SPEED": "1", "PREGO_SITE_DOMAIN": "sites.test", "PREGO_AGENTGW_LISTEN": ":1", "PREGO_MASTER_KEY_FILE": "/dev/null",
		"PREGO_TOKEN_FILE": "t", "PREGO_TEST_CRASH": "f", "PATH": "/bin",
	})
	require.NoError(t, err)
	require.Equal(t, []string{"PLACEMENT_SPEED", "PREGO_SWEEP_EVERY"}, cfg.Unknown)
}

func TestAPriceHasACurrency(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{"": {"", "EUR"}, "0.0059": {"0.0059", "EUR"}, "0.0059 USD": {"0.0059", "USD"}} {
		cfg, err := From(map[string]string{"PREGO_BACKUP_PRICE_GB_MONTH": text})
		require.NoError(t, err)
		amount, currency := cfg.Costs.BackupGBMonth()
		require.Equal(t, want, []string{amount, currency})
	}
	bounds(t, "PREGO_BACKUP_PRICE_GB_MONTH", nil, []string{"cheap", "1 eur", "1 EUR each"})
}
