package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// TestTogetherIsOneByOne: a batch gets the same places as single decisions in the same order, and the rows then
// satisfy the rules.
func TestTogetherIsOneByOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		enrich(t, &data)
		policy := shared()
		policy.MaxTenantsPerNode = rapid.IntRange(1, 4).Draw(t, "max tenants")
		var came []placement.Request
		for i := range rapid.IntRange(1, 20).Draw(t, "requests") {
			r := genRequest(t, i)
			r.Override = nil
			came = append(came, r)
		}
		var requests []placement.Request
		for _, i := range policy.Turns(came) {
			requests = append(requests, came[i])
		}
		together := placement.NewSnapshot(policy, data)
		w := newWorld(data, policy)
		for i := range requests {
			d := together.Decide(requests[i])
			together.Apply(requests[i], d)
			outcome, code := w.outcome(requests[i])
			require.Equal(t, outcome, d.Outcome)
			require.Equal(t, code, d.Code)
			w.check(t, requests[i], d)
		}
	})
}

// TestOrgsTakeTurns: no request is left out, and no org has two turns more than another one that still waits.
func TestOrgsTakeTurns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var requests []placement.Request
		for i := range rapid.IntRange(0, 30).Draw(t, "requests") {
			requests = append(requests, genRequest(t, i))
		}
		alone := func(r placement.Request) bool {
			return placement.MustBeAlone(r.Plan, r.Mode, false) || r.DedicatedRedis
		}
		order := shared().Turns(requests)
		require.Len(t, order, len(requests))
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(order))), len(requests))
		last := map[prego.OrgID]int{}
		for at, i := range order {
			r := requests[i]
			if at > 0 && alone(requests[order[at-1]]) != alone(r) {
				require.False(t, alone(r), "requests for dedicated parts come first")
				clear(last)
			}
			if before, ok := last[r.OrgID]; ok {
				require.Less(t, before, i, "an org's requests keep their order")
			}
			last[r.OrgID] = i
			turns, left := map[prego.OrgID]int{}, map[prego.OrgID]bool{}
			for k, j := range order {
				if o := requests[j]; alone(o) == alone(r) {
					if k <= at {
						turns[o.OrgID]++
					} else {
						left[o.OrgID] = true
					}
				}
			}
			for org := range left {
				require.LessOrEqual(t, turns[r.OrgID], turns[org]+1, "%s is ahead of %s", r.OrgID, org)
			}
		}
	})
}

// TestOneOfAFewGetsAPlace: an org with one tenant is not left out because another came
// with many.
func TestOneOfAFewGetsAPlace(t *testing.T) {
	t.Parallel()
	data := fleet()
	data.Servers = data.Servers[:1]
	data.Sites = nil
	policy := shared()
	policy.MaxTenantsPerNode = data.Servers[0].TenantCount + 3
	var came []placement.Request
	for i, org := range []prego.OrgID{"many", "many", "many", "many", "few"} {
		came = append(came, request(func(r *placement.Request) { r.TenantID, r.OrgID = prego.TenantID(fmt.Sprintf("t-%d", i)), org }))
	}
	order := policy.Turns(came)
	require.Equal(t, []int{0, 4, 1, 2, 3}, order)
	placed := map[prego.OrgID]int{}
	var requests []placement.Request
	for _, i := range order {
		requests = append(requests, came[i])
	}
	f := placement.NewSnapshot(policy, data)
	for i := range requests {
		d := f.Decide(requests[i])
		if f.Apply(requests[i], d); d.PlacesTenant() {
			placed[requests[i].OrgID]++
		}
	}
	require.Equal(t, map[prego.OrgID]int{"many": 2, "few": 1}, placed)
}

// TestTurnsKnowThePolicysMode: without a mode of its own, a request has the policy's.
func TestTurnsKnowThePolicysMode(t *testing.T) {
	t.Parallel()
	came := []placement.Request{request(func(r *placement.Request) { r.Mode = tenant.ModeShared }), request(nil)}
	require.Equal(t, []int{1, 0}, placement.DefaultPolicy().Turns(came), "a dedicated server comes first")
	require.Equal(t, []int{0, 1}, shared().Turns(came))
}
