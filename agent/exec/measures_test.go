package exec

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// redisSays sends lines to a real server as its administrator.
func redisSays(t testing.TB, h *host.Host, lines ...string) {
	t.Helper()
	password, err := os.ReadFile(h.Path(wire.SecretsDir + "/redis-app"))
	require.NoError(t, err)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", h.Path(wire.RedisSocket))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for _, l := range append([]string{"AUTH default " + strings.TrimSpace(string(password))}, lines...) {
		_, err := fmt.Fprintf(conn, "%s\r\n", l)
		require.NoError(t, err)
		answer, err := in.ReadString('\n')
		require.NoError(t, err)
		require.NotEqual(t, byte('-'), answer[0], "%s: %s", l, answer)
	}
}

// TestMeasuresOfRealServices asks a real Redis with RQ's workers in it.
func TestMeasuresOfRealServices(t *testing.T) {
	t.Parallel()
	h := realRedis(t)
	e, err := New(h, "", nil, agenttest.Quiet())
	require.NoError(t, err)
	measure := func() (out host.Measures) {
		answer := httptest.NewRecorder()
		e.handle(answer, httptest.NewRequest(http.MethodGet, host.PathMeasures, nil))
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &out))
		return out
	}
	out := measure()
	require.Zero(t, out.RedisLimit, "it has no limit")
	require.Zero(t, out.WorkerSlots, "and no workers")

	redisSays(t, h, "CONFIG SET maxmemory 4mb", "SETRANGE a 1048575 x",
		"SADD rq:workers rq:worker:a rq:worker:b rq:worker:c rq:worker:gone", "HSET rq:worker:a state busy", "HSET rq:worker:b state idle", "HSET rq:worker:c state started")
	out = measure()
	require.Equal(t, []int{1, 3}, []int{out.WorkersBusy, out.WorkerSlots}, "one that left no state is gone")
	require.EqualValues(t, 4<<20, out.RedisLimit)
	require.Greater(t, out.RedisUsed, out.RedisLimit/4)
	require.Less(t, out.RedisUsed, out.RedisLimit)
	redisSays(t, h, "HSET rq:worker:b state busy", "HSET rq:worker:c state busy")
	require.Equal(t, 3, measure().WorkersBusy)

	// Who asks reads no other key.
	redisSays(t, h, "HSET tenant state secret-value", "SADD sites secret-value")
	s, err := h.Services()
	require.NoError(t, err)
	for _, args := range [][]string{{"hget", "tenant", "state"}, {"smembers", "sites"}, {"hget", "rq:workers", "state"}, {"hgetall", "rq:worker:a"}} {
		var said strings.Builder
		err := (&workplace{Host: h}).redis(t.Context(), s.Redis, &policy.Command{In: wire.ExecRequest{Args: args}, Permit: &policy.Permit{Verb: args[0]}}, &said)
		require.ErrorContains(t, err, "NOPERM", "%v: %s", args, said.String())
	}
	// Nor does a caller of the host get there with a command.
	_, refused := commandsOf(t, h)(wire.KindRedisCLI, "hget", "rq:worker:a", "state")
	require.Equal(t, http.StatusUnprocessableEntity, refused.Status)
}
