package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
)

// LookAtNames starts the run that keeps names if it would find something to do.
func LookAtNames(a *activities.Names) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		var r ops.LookResult
		due, err := a.Store.DomainsDue(ctx)
		if err == nil && a.Zone != "" {
			var planned activities.RecordsPlanned
			planned, err = a.PlanRecords(ctx)
			r.Pause = ops.FleetPause(planned.Records)
			if due = due || planned.Changed > 0; err == nil && !due {
				due, err = a.Store.RecordsDue(ctx, a.Zone)
			}
		}
		if r.Found = due; err == nil && due {
			err = a.Runs.StartKeepNames(ctx)
		}
		return r, err
	}
}

// LookAtRecords compares the zone with the rows.
func LookAtRecords(a *activities.Names) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		c, err := a.CompareRecords(ctx)
		a.Metrics.Compared(c)
		return ops.LookResult{Found: c.Drifted+c.Orphans > 0}, err
	}
}

// LookAtCertificates starts the sweep of certificates if it would find something.
func LookAtCertificates(a *activities.Certificates) func(context.Context) (ops.LookResult, error) {
	return startIf(func(ctx context.Context) (bool, error) {
		if a.Authority == nil {
			return false, nil
		}
		wanted, err := a.WantSiteCertificates(ctx)
		if err != nil {
			return false, err
		}
		found, err := a.Store.CertificatesNeedSweep(ctx, a.Now(), a.Sealing.Known())
		return found || wanted > 0, err
	}, a.Runs.StartCertificateSweep)
}
