package store

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

// requestedLimit creates a limit request, and fails the test if it is refused.
func requestedLimit(t *testing.T, s *Store, limit float64) org.LimitRequest {
	t.Helper()
	r, err := s.CreateLimitRequest(context.Background(), org.LimitRequest{
		LimitRequestID: fmt.Sprintf("lreq-%v", limit), OrgID: "acme", Dimension: "max_apps", RequestedLimit: limit, Reason: "growth", CreatedBy: "bo",
	})
	require.NoError(t, err)
	return r
}

// TestOneLimitRequestIsOpen of many at the same time, and one of its many answers counts.
func TestOneLimitRequestIsOpen(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	const many = 8
	var wg sync.WaitGroup
	errs := make([]error, many)
	each := func(f func(i int) error) (ok int, codes map[prego.Code]int) {
		for i := range many {
			wg.Go(func() { errs[i] = f(i) })
		}
		wg.Wait()
		codes = map[prego.Code]int{}
		for _, err := range errs {
			if err == nil {
				ok++
			} else {
				codes[prego.CodeOf(err)]++
			}
		}
		return ok, codes
	}
	ok, codes := each(func(i int) error {
		_, err := s.CreateLimitRequest(ctx, org.LimitRequest{
			LimitRequestID: fmt.Sprintf("lreq-%d", i), OrgID: "acme", Dimension: "max_apps", RequestedLimit: float64(1e6 + i), Reason: "growth", CreatedBy: "bo",
		})
		return err
	})
	require.Equal(t, 1, ok)
	require.Equal(t, map[prego.Code]int{prego.CodeLimitRequestOpen: many - 1}, codes)
	open, _, err := s.ListLimitRequests(ctx, prego.ListQuery{Limit: 9})
	require.NoError(t, err)
	require.Len(t, open, 1)

	ok, codes = each(func(i int) error {
		if i%2 == 0 {
			_, err := s.ApproveLimitRequest(ctx, open[0].LimitRequestID, 0, "ann", "")
			return err
		}
		_, err := s.EndLimitRequest(ctx, open[0].LimitRequestID, org.LimitRefused, "ann", "no")
		return err
	})
	require.Equal(t, many/2, ok, "the one answer, and its repetitions")
	require.Equal(t, map[prego.Code]int{prego.CodeInvalidTransition: many / 2}, codes)
	r, err := s.GetLimitRequest(ctx, open[0].LimitRequestID)
	require.NoError(t, err)
	now, err := s.quotasOf(ctx, s.pool, "acme", []quota.Dimension{quota.MaxApps})
	require.NoError(t, err)
	require.Equal(t, r.State == org.LimitApproved, now[0].Override && now[0].Limit == open[0].RequestedLimit)
	events, _, err := s.ListOrgEvents(ctx, prego.ListQuery{Limit: 9}.Of("type", "org.quota_set"))
	require.NoError(t, err)
	require.Len(t, events, map[bool]int{true: 1}[r.State == org.LimitApproved], "however often it was approved")
}

// TestApprovingNeverLowersALimit that was raised after the request.
func TestApprovingNeverLowersALimit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	r := requestedLimit(t, s, 1e6)
	_, err := s.SetQuota(ctx, "acme", quota.MaxApps, 2e6, "ann", "contract")
	require.NoError(t, err)
	_, err = s.ApproveLimitRequest(ctx, r.LimitRequestID, 0, "ann", "")
	require.EqualError(t, err, "invalid_transition: the max_apps of org acme is 2000000 now, and 1000000 is not above it: "+
		"refuse the request, or approve it with a higher limit")
	r, err = s.ApproveLimitRequest(ctx, r.LimitRequestID, 3e6, "ann", "")
	require.NoError(t, err)
	require.InDelta(t, 3e6, *r.GrantedLimit, 0)
	require.InDelta(t, 2e6, r.OldLimit, 0, "what it replaced")
	now, err := s.quotasOf(ctx, s.pool, "acme", []quota.Dimension{quota.MaxApps})
	require.NoError(t, err)
	require.Equal(t, []any{3e6, true, "growth (lreq-1e+06)", "ann"}, []any{now[0].Limit, now[0].Override, now[0].Reason, now[0].UpdatedBy})

	_, err = s.SetQuota(ctx, "acme", quota.MaxApps, 1, "ann", "less")
	require.NoError(t, err)
	_, err = s.ApproveLimitRequest(ctx, r.LimitRequestID, 3e6, "ann", "")
	require.NoError(t, err)
	now, err = s.quotasOf(ctx, s.pool, "acme", []quota.Dimension{quota.MaxApps})
	require.NoError(t, err)
	require.InDelta(t, 1, now[0].Limit, 0, "a repetition does not set the limit again")
	_, err = s.ApproveLimitRequest(ctx, r.LimitRequestID, 4e6, "ann", "")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err), "it was approved with another limit")
}
