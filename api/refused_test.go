package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/impact"
)

// TestRefusalsAreCountedInTheAudit: 1,000 refused requests are one entry, and those of the rest of the minute one more,
// however many there are, and also after the database was away.
func TestRefusalsAreCountedInTheAudit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ending, end := context.WithCancel(t.Context())
		defer end()
		var mu sync.Mutex // the bubble's clock orders nothing for the race detector
		var written []int
		tries, away := 0, true
		r := &refusals{log: zap.NewNop(), ending: ending, of: map[refusalKey]*counted{}, write: func(_ context.Context, one ops.Refusal) error {
			mu.Lock()
			defer mu.Unlock()
			if tries++; away {
				return prego.Errorf(prego.CodeNotReady, "away")
			}
			written = append(written, one.Count)
			return nil
		}}
		refuse := func(operation string, n int) {
			for range n {
				r.add(ops.Refusal{Source: ops.AuditSource{Actor: "ada", Operation: operation}, Code: prego.CodeForbidden})
			}
		}
		pass := func(d time.Duration) {
			mu.Unlock()
			defer mu.Lock()
			time.Sleep(d) // of the bubble's clock
			synctest.Wait()
		}
		mu.Lock()
		refuse("deleteServer", 1000)
		pass(3 * time.Second)
		require.Empty(t, written)
		require.Equal(t, 3, tries, "one try a second")
		away = false
		pass(time.Second)
		require.Equal(t, []int{1000}, written)
		refuse("deleteServer", 500)
		pass(50 * time.Second)
		require.Equal(t, []int{1000}, written)
		refuse("listServers", 1)
		pass(10 * time.Second)
		require.ElementsMatch(t, []int{1000, 500, 1}, written)
		pass(2 * time.Minute)
		require.Empty(t, r.of)
		require.False(t, r.running)
		refuse("deleteServer", 2)
		mu.Unlock()
		r.flush(t.Context(), true)
		require.Equal(t, 2, written[3], "the end of a process loses none")
	})
}

// TestForeignObjectsOfAnImpactAreCounted: a caller of an org learns neither ids nor names of what else is affected, but that
// there is more; and an operator sees all.
func TestForeignObjectsOfAnImpactAreCounted(t *testing.T) {
	t.Parallel()
	whole := impact.Impact{
		Class: impact.Destroys, Digest: "1-a",
		Affected:  []impact.Thing{{Kind: "tenant", ID: "t-1", OrgID: "mine"}, {Kind: "tenant", ID: "t-2", OrgID: "acme"}, {Kind: "server", ID: "app-1"}},
		Destroyed: []impact.Loss{{Kind: "site", ID: "t-2", Name: "secret.example.com", OrgID: "acme"}},
	}
	as := func(reach access.Reach) impact.Impact {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		return seen(echo.New().NewContext(r.WithContext(access.WithReach(r.Context(), reach)), httptest.NewRecorder()), whole)
	}
	require.Equal(t, impact.Impact{
		Class: impact.Destroys, Digest: "1-a", Others: 3, Affected: whole.Affected[:1], Destroyed: []impact.Loss{},
	}, as(access.Reach{Orgs: []prego.OrgID{"mine"}}))
	require.Equal(t, whole, as(access.Reach{Everywhere: true}))
}
