package workload_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// checked validates a spec with ports 8080 and 9090 and this health check, given as JSON.
func checked(t *testing.T, text string) (*workload.HealthCheck, error) {
	t.Helper()
	s := workload.Spec{Image: "web:1", MemoryLimitBytes: 64 << 20, Ports: []int{8080, 9090}, Health: &workload.HealthCheck{}}
	require.NoError(t, json.Unmarshal([]byte(text), s.Health))
	return s.Health, s.Validate("spec")
}

func TestHealthChecksAreFilledIn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]workload.HealthCheck{
		`{"kind":"http"}`: {Kind: workload.HealthHTTP, Path: "/", Port: 8080, IntervalSeconds: 5, TimeoutSeconds: 5, Retries: 3},
		`{"kind":"http","path":"/up?full=1","port":9090}`: {Kind: workload.HealthHTTP, Path: "/up?full=1", Port: 9090, IntervalSeconds: 5, TimeoutSeconds: 5, Retries: 3},
		`{"kind":"tcp"}`:         {Kind: workload.HealthTCP, Port: 8080, IntervalSeconds: 5, TimeoutSeconds: 5, Retries: 3},
		`{"command":["/check"]}`: {Kind: workload.HealthCommand, Command: []string{"/check"}, IntervalSeconds: 5, TimeoutSeconds: 5, Retries: 3},
		`{"kind":"tcp","interval_seconds":300,"retries":20}`: {Kind: workload.HealthTCP, Port: 8080, IntervalSeconds: 300, TimeoutSeconds: 5, Retries: 20},
		`{"kind":"tcp","timeout_seconds":60,"start_period_seconds":600}`: {
			Kind: workload.HealthTCP, Port: 8080, IntervalSeconds: 5, TimeoutSeconds: 60, Retries: 3, StartPeriodSeconds: 600,
		},
	} {
		got, err := checked(t, text)
		require.NoError(t, err, text)
		require.Equal(t, &want, got, text)
		b, err := json.Marshal(got)
		require.NoError(t, err)
		again, err := checked(t, string(b))
		require.NoError(t, err, "a stored check is valid")
		require.Equal(t, got, again)
	}
	got, err := checked(t, `{"kind":"tcp","interval_seconds":7,"timeout_seconds":2,"start_period_seconds":30}`)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{7 * time.Second, 2 * time.Second, 30 * time.Second}, []time.Duration{got.Interval(), got.Timeout(), got.StartPeriod()})
}

func TestHealthChecksThatAreRefused(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		`{}`:                                   "kind",
		`{"kind":"exec","command":["/check"]}`: "kind",
		`{"kind":"command"}`:                   "command",
		`{"kind":"command","command":["a\u0000"]}`:                    "command[0]",
		`{"kind":"http","command":["/check"]}`:                        "command",
		`{"kind":"tcp","path":"/"}`:                                   "path",
		`{"kind":"command","command":["/check"],"path":"/"}`:          "path",
		`{"kind":"command","command":["/check"],"port":8080}`:         "port",
		`{"kind":"tcp","port":80}`:                                    "port",
		`{"kind":"http","path":"up"}`:                                 "path",
		`{"kind":"http","path":"/a b"}`:                               "path",
		`{"kind":"http","path":"/ü"}`:                                 "path",
		`{"kind":"http","path":"/` + strings.Repeat("a", 1024) + `"}`: "path",
		`{"kind":"tcp","interval_seconds":-1}`:                        "interval_seconds",
		`{"kind":"tcp","interval_seconds":301}`:                       "interval_seconds",
		`{"kind":"tcp","timeout_seconds":61}`:                         "timeout_seconds",
		`{"kind":"tcp","retries":21}`:                                 "retries",
		`{"kind":"tcp","start_period_seconds":601}`:                   "start_period_seconds",
		`{"kind":"tcp","start_period_seconds":-1}`:                    "start_period_seconds",
	} {
		_, err := checked(t, text)
		var invalid *prego.Error
		require.ErrorAs(t, err, &invalid, text)
		require.Equal(t, "spec.health."+field, invalid.Field, text)
	}
	portless := workload.Spec{Image: "web:1", MemoryLimitBytes: 64 << 20, Health: &workload.HealthCheck{Kind: workload.HealthTCP}}
	require.ErrorContains(t, portless.Validate(""), "health.port requires the spec to have ports")
}

// TestTheEngineRunsCommandsOnly: the other kinds are the host's.
func TestTheEngineRunsCommandsOnly(t *testing.T) {
	t.Parallel()
	for text, engine := range map[string]bool{`{"kind":"http"}`: false, `{"kind":"tcp"}`: false, `{"command":["/check"],"timeout_seconds":2}`: true} {
		h, err := checked(t, text)
		require.NoError(t, err)
		c := workload.Spec{Image: "web:1", Health: h}.Container("ins-0123456789ab-1", "grp-0123456789ab", nil, nil)
		require.Equal(t, engine, c.Health != nil, text)
		require.Equal(t, !engine, c.Labels[workload.LabelHealth] != "", text)
		if engine {
			require.Equal(t, 2*time.Second, c.Health.Timeout.D())
		}
	}
}
