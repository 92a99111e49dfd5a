package api_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/store"
)

// TestARevocationHoldsAfterAFailover: the primary dies while 64 tokens are used and revoked. While no database answers
// nothing is accepted, and on the promoted synchronous standby no token is good whose revocation was answered.
func TestARevocationHoldsAfterAFailover(t *testing.T) {
	t.Parallel()
	dir, err := devstack.Scratch("prego-revoked-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777)) // the standby's directory is made by Postgres's user
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	primary, err := devstack.StartPostgres(t.Context(), devstack.PostgresConfig{Dir: filepath.Join(dir, "a")})
	require.NoError(t, err)
	t.Cleanup(primary.Kill)
	require.NoError(t, primary.EnsureDatabase(t.Context(), "prego"))
	require.NoError(t, migrations.Up(t.Context(), primary.URL("prego")))
	standby, err := devstack.StartStandby(t.Context(), devstack.PostgresConfig{Dir: filepath.Join(dir, "b")}, primary)
	require.NoError(t, err)
	t.Cleanup(standby.Kill)
	pool, err := store.Open(t.Context(), fmt.Sprintf(
		"postgres://prego@127.0.0.1:%d,127.0.0.1:%d/prego?sslmode=disable&target_session_attrs=read-write", primary.Port, standby.Port), 10, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := setup(t, func(d *api.Deps) {
		d.Store, d.Unavailable = store.New(pool), store.Unavailable
		live(d)
	})
	b.store, b.pool = store.New(pool), pool
	operator, stays, watched := b.token("operator", "operator"), b.tokenIn("", "stays", "operator", ""), b.tokenIn("", "watched", "operator", "")
	const most = 64
	secrets := make([]string, most)
	for n := range secrets {
		secrets[n] = b.tokenIn("", fmt.Sprint("t", n), "operator", "")
	}
	use := func(secret string) (int, string) {
		resp, answer := b.send("GET", "/v1/orgs", secret, "", "")
		if resp.StatusCode == http.StatusOK {
			return resp.StatusCode, ""
		}
		return resp.StatusCode, as[api.Problem](t, answer).Code
	}
	revoke := func(id string) bool {
		resp, _ := b.send("DELETE", "/v1/tokens/"+id, operator, "", "")
		return resp.StatusCode == http.StatusNoContent
	}
	stream := b.open("GET", "/v1/events", watched, "")
	stream.until(t, "id: ")
	require.True(t, revoke("watched"))

	var mu sync.Mutex
	revoked, begun := map[int]bool{}, make(chan struct{})
	acknowledged := 0
	var all sync.WaitGroup
	for n := range most {
		all.Go(func() {
			done := revoke(fmt.Sprint("t", n))
			mu.Lock()
			defer mu.Unlock()
			if revoked[n] = done; done {
				if acknowledged++; acknowledged == most/16 {
					close(begun)
				}
			}
		})
		all.Go(func() { // a use that began after the answer
			mu.Lock()
			done := revoked[n]
			mu.Unlock()
			if status, _ := use(secrets[n]); done && status == http.StatusOK {
				t.Error("a revoked token was accepted")
			}
		})
	}
	<-begun
	require.NoError(t, syscall.Kill(primary.PID(), syscall.SIGKILL))
	all.Wait()
	require.Eventually(t, func() bool { status, _ := use(stays); return status != http.StatusOK }, 30*time.Second, time.Millisecond)
	for _, secret := range []string{stays, operator, watched, secrets[0], secrets[most-1], rand.Text()} {
		status, code := use(secret)
		if _, ok := access.KindOfSecret(secret); !ok {
			require.Equal(t, http.StatusUnauthorized, status, "what is no secret of ours needs no database")
			continue
		}
		require.Equal(t, []any{http.StatusServiceUnavailable, "not_ready"}, []any{status, code}, "without a database nothing is accepted")
	}
	require.False(t, revoke("stays"), "nor is anything revoked")

	require.NoError(t, standby.Promote(t.Context()))
	require.Eventually(t, func() bool { status, _ := use(stays); return status == http.StatusOK }, 30*time.Second, 20*time.Millisecond)
	stream.until(t, "")
	for n, done := range revoked {
		if !done { // its outcome is not known; it can be repeated
			require.True(t, revoke(fmt.Sprint("t", n)))
		}
		status, code := use(secrets[n])
		require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, code}, "token %d", n)
	}
	status, _ := use(watched)
	require.Equal(t, http.StatusUnauthorized, status)
	var port int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT inet_server_port()`).Scan(&port))
	require.Equal(t, standby.Port, port)
	t.Logf("%d of %d revocations were answered before the primary died", acknowledged, most)
}
