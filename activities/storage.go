package activities

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"go.temporal.io/sdk/activity"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// StorageResult is the result of a run that measures sites.
type StorageResult struct {
	Measured int `json:"measured"`
	Failed   int `json:"failed,omitempty"`
	Changed  int `json:"changed,omitempty"` // sites that became read-only or writable again
}

// MeasureSites measures the storage of the sites that were measured longest ago, and makes sites
// above their storage quota read-only. A few hosts are queried concurrently, each for one site
// after the other. A site that does not answer is retried later.
func (a *Tenants) MeasureSites(ctx context.Context) (StorageResult, error) {
	var out StorageResult
	turns, err := a.Store.TakeSitesToMeasure(ctx, a.Settings.StorageEvery, a.Settings.StorageBatch)
	if err != nil {
		return out, err
	}
	var mu sync.Mutex
	hosts, ctx2 := errgroup.WithContext(ctx)
	hosts.SetLimit(max(1, a.Settings.StorageHosts))
	for _, host := range byHost(turns) {
		hosts.Go(func() error {
			for _, turn := range host {
				changed, err := a.measure(ctx2, turn.TenantID)
				if ctx2.Err() != nil {
					return ctx2.Err()
				}
				mu.Lock()
				out.Measured++
				if changed {
					out.Changed++
				}
				if err != nil {
					out.Measured, out.Failed = out.Measured-1, out.Failed+1
				}
				mu.Unlock()
				if err == nil {
					continue
				}
				a.Metrics.Unsized.Inc()
				a.Log.Warn("site not measured; it is tried again at its next turn", zap.String("tenant_id", string(turn.TenantID)), zap.String("error", prego.Redact(err.Error())))
				if err := a.Store.SiteUsageFailed(ctx2, turn.TenantID, err.Error()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := hosts.Wait(); err != nil {
		return out, err
	}
	levels, err := a.Store.StorageLevels(ctx)
	if err != nil {
		return out, err
	}
	for _, l := range tenant.StorageLevels() {
		a.Metrics.Storage.WithLabelValues(string(l)).Set(float64(levels[l]))
	}
	return out, nil
}

// byHost groups the sites by host; they come sorted by it.
func byHost(turns []tenant.SiteToMeasure) (hosts [][]tenant.SiteToMeasure) {
	for len(turns) > 0 {
		n := slices.IndexFunc(turns, func(t tenant.SiteToMeasure) bool { return t.ServerID != turns[0].ServerID })
		if n < 0 {
			n = len(turns)
		}
		hosts, turns = append(hosts, turns[:n]), turns[n:]
	}
	return hosts
}

// measure measures one site and acts on the result.
func (a *Tenants) measure(ctx context.Context, tenantID prego.TenantID) (changed bool, err error) {
	t, err := a.Store.TenantRecord(ctx, tenantID)
	if err != nil || t.Allocation == nil || t.Site == "" || t.Updating {
		return false, err
	}
	info := activity.GetInfo(ctx)
	what := fmt.Sprintf("storage-%s-%d", info.WorkflowExecution.RunID, info.Attempt)
	printed, err := a.forTenant(ctx, t, what, a.Settings.CommandTimeout, "--site", t.Site, "usage")
	if err != nil {
		return false, err
	}
	size, err := parseSiteSize(printed)
	if err != nil {
		return false, err
	}
	if _, err := a.Store.KeepSiteUsage(ctx, tenantID, size, a.Settings.Storage); err != nil {
		return false, err
	}
	// Read again, since the tenant's state may have changed meanwhile.
	if t, err = a.Store.TenantRecord(ctx, tenantID); err != nil {
		return false, err
	}
	if err := a.tellQuota(ctx, t, what); err != nil {
		return false, err
	}
	// A site in its grace period stays as it was before.
	if t.State != tenant.Active || t.ConvergedState != t.State || t.ReadOnly == (t.StorageLevel == tenant.StorageReadOnly) {
		return false, nil
	}
	a.hook("storage/change")
	return true, a.putOnline(ctx, t, what)
}

// tellQuota writes a changed quota into the site's configuration.
func (a *Tenants) tellQuota(ctx context.Context, t tenant.Record, what string) error {
	u, err := a.Store.SiteUsage(ctx, t.TenantID)
	if err != nil || u == nil || u.QuotaGB == t.StorageQuotaGB {
		return err
	}
	if err := a.onSite(ctx, t, what+"-quota", []string{"configure", fmt.Sprintf(`{"prego_storage_quota_gb":%d}`, t.StorageQuotaGB)}); err != nil {
		return err
	}
	return a.Store.SiteKnowsQuota(ctx, t.TenantID, t.StorageQuotaGB)
}
