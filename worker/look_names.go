package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
)

// LookAtNames starts the run that keeps names if it would find something to do.
func LookAtNames(ctx context.Context, a *activities.Names) (ops.LookResult, error) {
	due, err := a.Store.DomainsDue(ctx)
	var planned activities.RecordsPlanned
	if err == nil && a.Zone != "" {
		planned, err = a.PlanRecords(ctx)
		if due = due || planned.Changed > 0; err == nil && !due {
			due, err = a.Store.RecordsDue(ctx, a.Zone)
		}
	}
	r, err := startIf(ctx, due, err, a.Runs.StartKeepNames)
	r.Pause = ops.FleetPause(planned.Records)
	return r, err
}

// LookAtRecords compares the zone with the rows.
func LookAtRecords(ctx context.Context, a *activities.Names) (ops.LookResult, error) {
	c, err := a.CompareRecords(ctx)
	a.Metrics.Compared(c)
	return ops.LookResult{Found: c.Drifted+c.Orphans > 0}, err
}

// LookAtCertificates starts the sweep of certificates if it would find something.
func LookAtCertificates(ctx context.Context, a *activities.Certificates) (ops.LookResult, error) {
	if a.Authority == nil {
		return ops.LookResult{}, nil
	}
	wanted, err := a.WantSiteCertificates(ctx)
	if err != nil {
		return ops.LookResult{}, err
	}
	found, err := a.Store.CertificatesNeedSweep(ctx, a.Now(), a.Sealing.Known())
	return startIf(ctx, found || wanted > 0, err, a.Runs.StartCertificateSweep)
}
