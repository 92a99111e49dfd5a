package api_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestSamplesOfAServer: viewers see the last day, with everything known.
func TestSamplesOfAServer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	resp, body := b.do("POST", create, "operator", js, valid)
	require.Equal(t, 202, resp.StatusCode, "%s", body)
	read := func(query string) api.ServerSampleList {
		resp, body := b.do("GET", "/v1/servers/app-1/samples"+query, "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		return as[api.ServerSampleList](t, body)
	}
	require.Equal(t, api.ServerSampleList{EverySeconds: 300, Samples: []api.ServerSample{}}, read(""))

	_, err := b.pool.Exec(t.Context(), `
INSERT INTO server_samples (at, server_id, load1, memory_pct, cpu_pct)
SELECT date_bin('5 minutes', now(), 'epoch') - make_interval(mins => 5 * i), s, 0.43, 41.26, CASE WHEN i = 0 THEN 7 END FROM unnest('{0, 3, 400}'::int[]) i, unnest('{app-1, app-2}'::text[]) s`)
	require.NoError(t, err)
	got := read("")
	require.Len(t, got.Samples, 2, "its own, not older than a day")
	require.Equal(t, 15*time.Minute, got.Samples[1].At.Sub(got.Samples[0].At))
	load, memory, cpu := 0.43, 41.3, 7.0
	require.Equal(t, api.ServerSample{At: got.Samples[0].At, Load1: &load, MemoryPct: &memory}, got.Samples[0])
	require.Equal(t, api.ServerSample{At: got.Samples[1].At, Load1: &load, MemoryPct: &memory, CpuPct: &cpu}, got.Samples[1])

	at := got.Samples[1].At.Format(time.RFC3339)
	require.Equal(t, got.Samples[1:], read("?since="+at).Samples)
	require.Len(t, read("?since=2020-01-01T00:00:00Z").Samples, 2, "a day ago is the earliest")
	require.Empty(t, read("?since=2100-01-01T00:00:00Z").Samples)
}
