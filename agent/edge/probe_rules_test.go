package edge

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// TestThreeFailedProbesAreDown plays probes, a second apart. A letter is an answer: "." the site answers, "r" it
// refuses connections, "t" it takes too long, "e" an error, "m" the site is missing.
func TestThreeFailedProbesAreDown(t *testing.T) {
	t.Parallel()
	causes := map[rune]wire.EdgeProbeCause{
		'.': "", 'r': wire.EdgeProbeRefused, 't': wire.EdgeProbeTimeout, 'e': wire.EdgeProbeError,
		'm': wire.EdgeProbeMissing,
	}
	for _, c := range []struct{ probes, changes string }{
		{".", "0:up@0"},
		{"....", "0:up@0"},
		{"rr", ""},
		{"rrr", "2:down@0 refused"},
		{"ttt", "2:down@0 timeout"},
		{"eee", "2:down@0 error"},
		{"mmm", "2:down@0 missing"},
		{".rr.rr.", "0:up@0"},
		{".rrr", "0:up@0, 3:down@1 refused"},
		{".rtm", "0:up@0, 3:down@1 missing"},
		{".rrrrrr.", "0:up@0, 3:down@1 refused, 7:up@7"},
		{".rrrrmm.", "0:up@0, 3:down@1 refused, 5:down@1 missing, 7:up@7"},
		{"rrr.rrr", "2:down@0 refused, 3:up@3, 6:down@4 refused"},
	} {
		var h health
		var changes []string
		for i, p := range c.probes {
			at := time.Unix(int64(i), 0)
			var changed bool
			if h, changed = h.after(causes[p], at); changed {
				text := strings.TrimSpace(string(h.state) + "@" + h.since.UTC().Format("5") + " " + string(h.cause))
				changes = append(changes, at.UTC().Format("5")+":"+text)
			}
		}
		require.Equal(t, c.changes, strings.Join(changes, ", "), c.probes)
	}
}

// TestProbesOfManySitesStayCheap: 10,000 sites that answer are 200 requests a second. Failed probes are repeated soon,
// and sites that are down more often than others.
func TestProbesOfManySitesStayCheap(t *testing.T) {
	t.Parallel()
	up := health{state: wire.EdgeProbeUp}
	require.Equal(t, 30*time.Second, up.pause(1))
	require.Equal(t, 30*time.Second, up.pause(6000))
	require.Equal(t, 50*time.Second, up.pause(10_000))
	require.Equal(t, 5*time.Second, health{state: wire.EdgeProbeUp, failed: 1}.pause(10_000))
	require.Equal(t, 5*time.Second, health{failed: 2}.pause(10_000))
	require.Equal(t, 10*time.Second, health{state: wire.EdgeProbeDown, failed: 3}.pause(10_000))
}

func TestCausesOfFailedProbes(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]wire.EdgeProbeCause{
		200: "", 302: "", 401: "", 403: "", 417: "", 429: "", 404: wire.EdgeProbeMissing,
		500: wire.EdgeProbeError, 502: wire.EdgeProbeError, 503: wire.EdgeProbeError,
	} {
		require.Equal(t, want, causeOf(status, []byte(`{"exception":"other"}`), nil), status)
	}
	stopped := []byte(`{"exception":"frappe.exceptions.SessionStopped: Session Stopped","exc_type":"SessionStopped"}`)
	require.Equal(t, wire.EdgeProbeMaintenance, causeOf(503, stopped, nil))
	require.Equal(t, wire.EdgeProbeError, causeOf(500, stopped, nil))
	require.Equal(t, wire.EdgeProbeRefused, causeOf(0, nil, syscall.ECONNREFUSED))
	require.Equal(t, wire.EdgeProbeRefused, causeOf(0, nil, syscall.EHOSTUNREACH))
	require.Equal(t, wire.EdgeProbeTimeout, causeOf(0, nil, context.DeadlineExceeded))
}
