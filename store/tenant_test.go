package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

var lasting = tenant.LifecyclePeriods{Trial: 14 * 24 * time.Hour, Grace: 7 * 24 * time.Hour, Retention: 30 * 24 * time.Hour}

// tenantRequest is a valid request.
func tenantRequest(t testing.TB, slug string, plan prego.Plan) tenant.CreateRequest {
	t.Helper()
	r := tenant.CreateRequest{Slug: slug, OrgID: "acme", Region: prego.RegionEU, Plan: plan}
	require.NoError(t, r.Validate())
	return r
}

func tenantStore(t testing.TB) *Store {
	t.Helper()
	s := New(pgtest.Pool(t))
	_, err := s.PutOrg(context.Background(), "acme", tenant.PutOrgRequest{Tier: prego.TierEnterprise}, "test")
	require.NoError(t, err)
	return s
}

func count(t testing.TB, s *Store, from string) (n int) {
	t.Helper()
	require.NoError(t, s.pool.QueryRow(context.Background(), "SELECT count(*) FROM "+from).Scan(&n))
	return n
}

func TestConcurrentCreatesWithOneKeyCreateOneTenant(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, slug := range map[string]func(i int) string{
		"equal requests":         func(int) string { return "one" },
		"two requests, one key":  func(i int) string { return fmt.Sprintf("s%d", i%2) },
		"one request per racer":  func(i int) string { return fmt.Sprintf("s%d", i) },
		"equal requests, delays": func(i int) string { time.Sleep(time.Duration(i) * time.Millisecond); return "one" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tenantStore(t)
			type answer struct {
				id      prego.TenantID
				created bool
				code    prego.Code
			}
			answers := make([]answer, 16)
			var wg sync.WaitGroup
			start := make(chan struct{})
			for i := range answers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					<-start
					tenant, created, err := s.CreateTenant(ctx, tenantRequest(t, slug(i), prego.PlanStarter), prego.TenantID(fmt.Sprintf("t-%d", i)), tenant.ModeShared, "key", "someone")
					answers[i] = answer{id: tenant.TenantID, created: created}
					if err != nil {
						answers[i].code = prego.CodeOf(err)
					}
				}()
			}
			close(start)
			wg.Wait()
			ids, made, refused := map[string]bool{}, 0, 0
			for _, a := range answers {
				if a.created {
					made++
				}
				if a.code != "" {
					require.Equal(t, prego.CodeIdempotencyConflict, a.code)
					refused++
					continue
				}
				ids[string(a.id)] = true
			}
			require.Equal(t, 1, made)
			require.Len(t, ids, 1)
			require.Equal(t, map[string]int{"equal requests": 0, "equal requests, delays": 0, "two requests, one key": 8, "one request per racer": 15}[name], refused)
			require.Equal(t, []int{1, 1, 1}, []int{count(t, s, "tenants"), count(t, s, "tenant_lifecycle_events"), count(t, s, "request_keys WHERE created_id IS NOT NULL")})
		})
	}
}

func TestConcurrentSlugIsTakenOnce(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	var wg sync.WaitGroup
	codes := make([]prego.Code, 16)
	for i := range codes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, created, err := s.CreateTenant(context.Background(), tenantRequest(t, "one", prego.PlanTrial), prego.TenantID(fmt.Sprintf("t-%d", i)), tenant.ModeShared, "", "someone")
			if !created {
				codes[i] = prego.CodeOf(err)
			}
		}()
	}
	wg.Wait()
	n := 0
	for _, c := range codes {
		if c == prego.CodeSlugTaken {
			n++
		}
	}
	require.Equal(t, 15, n, "%v", codes)
	require.Equal(t, 1, count(t, s, "tenants"))
}

func TestKeysAreTheCallers(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	for i, by := range []string{"a", "b"} {
		_, created, err := s.CreateTenant(context.Background(), tenantRequest(t, "of-"+by, prego.PlanTrial), prego.TenantID(fmt.Sprintf("t-%d", i)), tenant.ModeShared, "key", by)
		require.NoError(t, err)
		require.True(t, created)
	}
}

func TestChangeTenant(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "paid", prego.PlanStarter), "t-paid", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	_, _, err = s.CreateTenant(ctx, tenantRequest(t, "try", prego.PlanTrial), "t-try", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	day := 24 * time.Hour
	for _, tc := range []struct {
		name, id string
		from     tenant.State
		action   tenant.Action
		reason   string
		to       tenant.State
		deadline time.Duration // from now; 0 for none
		status   prego.Reason
		message  string
	}{
		{"a paying tenant pauses", "t-paid", tenant.Active, tenant.ActionSuspend, "unpaid", tenant.Suspended, 0, "", "unpaid"},
		{"and is back", "t-paid", tenant.Suspended, tenant.ActionResume, "paid", tenant.Active, 0, "", ""},
		{"ends", "t-paid", tenant.Active, tenant.ActionCancel, "moves", tenant.GracePeriod, 7 * day, "", "moves"},
		{"thinks again", "t-paid", tenant.GracePeriod, tenant.ActionReactivate, "", tenant.Active, 0, "", ""},
		{"its grace is over", "t-paid", tenant.GracePeriod, tenant.ActionTerminate, string(prego.ReasonGraceOver), tenant.Terminated, 30 * day, prego.ReasonGraceOver, ""},
		{"its data goes", "t-paid", tenant.Terminated, tenant.ActionPurge, string(prego.ReasonRetentionOver), tenant.DataPurged, 0, prego.ReasonRetentionOver, ""},
		{"a failed one is tried again", "t-paid", tenant.Failed, tenant.ActionRetry, "", tenant.Provisioning, 0, "", ""},
		{"a trial that never began", "t-try", tenant.Trial, tenant.ActionCancel, "", tenant.Terminated, 30 * day, prego.ReasonCancelled, ""},
		{"a trial runs out", "t-try", tenant.Active, tenant.ActionCancel, string(prego.ReasonTrialExpired), tenant.GracePeriod, 7 * day, prego.ReasonTrialExpired, ""},
		{"a trial starts again", "t-try", tenant.GracePeriod, tenant.ActionReactivate, "", tenant.Active, 14 * day, "", ""},
		{"a trial pauses", "t-try", tenant.Active, tenant.ActionSuspend, "", tenant.Suspended, 3 * day, "", ""},
		{"a trial continues", "t-try", tenant.Suspended, tenant.ActionResume, "", tenant.Active, 3 * day, "", ""},
	} {
		exec(t, s, `UPDATE tenants SET state = $2, status_reason = 'old', status_message = 'old', deadline_at = now() + interval '3 days',
    waiting_since = now(), waiting_roles = '{app}', generation = 1 WHERE tenant_id = $1`, tc.id, tc.from)
		got, err := s.ChangeTenant(impact.By(ctx, "test"), prego.TenantID(tc.id), tc.action, lasting, "op", tc.reason)
		require.NoError(t, err, tc.name)
		require.Equal(t, tc.to, got.State, tc.name)
		require.Equal(t, tc.status, got.StatusReason, tc.name)
		require.Equal(t, tc.message, got.StatusMessage, tc.name)
		require.Nil(t, got.WaitingSince, tc.name)
		require.Empty(t, got.WaitingRoles, tc.name)
		if tc.deadline == 0 {
			require.Nil(t, got.Deadline, tc.name)
		} else {
			require.WithinDuration(t, time.Now().Add(tc.deadline), *got.Deadline, time.Minute, tc.name)
		}
		require.Equal(t, map[bool]int{true: 2, false: 1}[tc.action == tenant.ActionRetry], got.Generation, tc.name)
		events, err := s.TenantEvents(ctx, prego.TenantID(tc.id))
		require.NoError(t, err)
		last := events[len(events)-1]
		last.EventID, last.At = 0, time.Time{}
		require.Equal(t, tenant.Event{TenantID: prego.TenantID(tc.id), FromState: tc.from, ToState: tc.to, Step: tenant.StepChanged, Actor: "op", Reason: tc.reason, Message: string(tc.action)}, last)
	}
	_, err = s.ChangeTenant(impact.By(ctx, "test"), "t-unknown", tenant.ActionSuspend, lasting, "op", "")
	require.Equal(t, prego.CodeTenantNotFound, prego.CodeOf(err))
	exec(t, s, `UPDATE tenants SET state = 'suspended'`)
	_, err = s.ChangeTenant(impact.By(ctx, "test"), "t-paid", tenant.ActionSuspend, lasting, "op", "")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err), "a change is not repeated")
	require.True(t, strings.Contains(err.Error(), "suspended"))
}

func TestCancellingProvisioningTenant(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			got, err := s.ChangeTenant(impact.By(ctx, "test"), "t-1", tenant.ActionCancel, lasting, "op", "changed my mind")
			if err != nil || got.State != tenant.Provisioning || got.CancelRequestedAt == nil {
				t.Errorf("cancel: %+v, %v", got, err)
			}
		}()
	}
	wg.Wait()
	require.Equal(t, 2, count(t, s, "tenant_lifecycle_events"), "asked sixteen times, written once")
	exec(t, s, `UPDATE tenants SET state = 'failed'`)
	got, err := s.ChangeTenant(impact.By(ctx, "test"), "t-1", tenant.ActionRetry, lasting, "op", "")
	require.NoError(t, err)
	require.Nil(t, got.CancelRequestedAt)
	require.Equal(t, 2, got.Generation)
}

func TestConcurrentChangesHappenOnceEach(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	exec(t, s, `UPDATE tenants SET state = 'active'`)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := s.ChangeTenant(impact.By(ctx, "test"), "t-1", []tenant.Action{tenant.ActionSuspend, tenant.ActionResume}[i%2], lasting, "op", "")
			if err != nil && prego.CodeOf(err) != prego.CodeInvalidTransition {
				t.Errorf("change: %v", err)
			}
		}()
	}
	wg.Wait()
	events, err := s.TenantEvents(ctx, "t-1")
	require.NoError(t, err)
	at := tenant.Active
	for _, e := range events[1:] {
		require.Equal(t, at, e.FromState, "each change is of the state that the previous one led to")
		at = e.ToState
	}
	now, err := s.GetTenant(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, at, now.State)
}

func TestConcurrentParentChangesFormNoCycle(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	for round := range 10 {
		a, b := fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)
		for _, id := range []string{a, b} {
			_, err := s.PutOrg(ctx, prego.OrgID(id), tenant.PutOrgRequest{}, "test")
			require.NoError(t, err)
		}
		var wg sync.WaitGroup
		for _, pair := range [][2]prego.OrgID{{prego.OrgID(a), prego.OrgID(b)}, {prego.OrgID(b), prego.OrgID(a)}} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := s.PutOrg(ctx, pair[0], tenant.PutOrgRequest{ParentOrgID: &pair[1]}, "test")
				if err != nil && prego.CodeOf(err) != prego.CodeInvalidField {
					t.Errorf("put org: %v", err)
				}
			}()
		}
		wg.Wait()
		require.Equal(t, 1, count(t, s, fmt.Sprintf("orgs WHERE org_id IN ('%s', '%s') AND parent_org_id IS NOT NULL", a, b)))
	}
}

func TestOrgKeepsOmittedFields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, err := s.PutOrg(ctx, "group", tenant.PutOrgRequest{}, "test")
	require.NoError(t, err)
	group, none := prego.OrgID("group"), prego.OrgID("")
	for _, step := range []struct {
		change tenant.PutOrgRequest
		parent string
		tier   prego.Tier
	}{
		{tenant.PutOrgRequest{ParentOrgID: &group}, "group", prego.TierEnterprise},
		{tenant.PutOrgRequest{Tier: prego.TierPaid}, "group", prego.TierPaid},
		{tenant.PutOrgRequest{ParentOrgID: &none}, "", prego.TierPaid},
	} {
		org, err := s.PutOrg(ctx, "acme", step.change, "test")
		require.NoError(t, err)
		require.Equal(t, step.parent, string(org.ParentOrgID))
		require.Equal(t, step.tier, org.Tier)
	}
}
