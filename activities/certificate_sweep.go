package activities

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const (
	// sweepNames, sweepStarts and sweepAsks bound what one sweep does; the rest is left to the next
	// one, which starts immediately.
	sweepNames  = 500
	sweepStarts = 50
	sweepAsks   = 50
)

// CertificateMetrics count attempts.
type CertificateMetrics struct {
	Attempts *prometheus.CounterVec // by outcome: issued, or a class of failure
}

// NewCertificateMetrics creates and registers them.
func NewCertificateMetrics(reg prometheus.Registerer) *CertificateMetrics {
	m := &CertificateMetrics{Attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prego.MetricCertificateTries, Help: "Attempts to get a certificate issued, by outcome: issued, or the reason for the failure.",
	}, []string{"outcome"})}
	reg.MustRegister(m.Attempts)
	m.Attempts.WithLabelValues("issued")
	for _, c := range tenant.IssueClasses() {
		m.Attempts.WithLabelValues(string(c))
	}
	return m
}

// CertificateSweep is what a sweep did.
type CertificateSweep struct {
	Wanted  int `json:"wanted"`  // rows that were made or changed
	Started int `json:"started"` // runs
	Asked   int `json:"asked"`   // certificates whose authority was asked when to renew them
}

// WantSiteCertificates makes the rows of wildcard certificates for sites' own names.
func (a *Certificates) WantSiteCertificates(ctx context.Context) (changed int, err error) {
	return a.Store.WantCertificates(ctx, a.siteCertificates(), "prego")
}

func (a *Certificates) siteCertificates() []tenant.CertificateWant {
	if a.DNS == nil {
		return nil // a wildcard takes a TXT record
	}
	out := make([]tenant.CertificateWant, 0, len(a.Settings.SiteDomains))
	for _, d := range a.Settings.SiteDomains {
		out = append(out, tenant.SiteCertificate(d))
	}
	return out
}

// SweepCertificates makes, loses and retires rows as names change, asks the authority when to
// renew, and starts the runs that are due.
func (a *Certificates) SweepCertificates(ctx context.Context) (out CertificateSweep, err error) {
	if a.Authority == nil {
		return out, nil
	}
	if out.Wanted, err = a.Store.SyncCertificateNames(ctx, sweepNames); err != nil {
		return out, err
	}
	n, err := a.Store.CertificatesSealedUnder(ctx, a.Sealing.Known(), a.Now(), sweepStarts)
	if err != nil {
		return out, err
	}
	if n > 0 {
		a.Log.Warn("certificates are renewed whose keys were sealed under a key that is not known any more", zap.Int("certificates", n))
	}
	var try Attempts
	out.Asked, err = a.ask(ctx)
	try.OK(err)
	due, err := a.Store.CertificatesDue(ctx, a.Now(), sweepStarts)
	try.OK(err)
	for id := range Each(&try, due) {
		started, err := a.Runs.EnsureCertificate(ctx, id)
		if err != nil {
			err = fmt.Errorf("start the run of certificate %s: %w", id, err)
		}
		if try.OK(err) && started {
			out.Started++
		}
	}
	return out, try.Err()
}

// ask asks the authority when to renew (RFC 9773): it may want a certificate replaced early,
// such as before it revokes it. An authority that does not answer changes nothing.
func (a *Certificates) ask(ctx context.Context) (n int, err error) {
	list, err := a.Store.CertificatesToAsk(ctx, a.Now(), sweepAsks)
	if err != nil {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, waitOutside) // an authority that hangs keeps no certificate from its run
	defer cancel()
	var try Attempts
	for c := range Each(&try, list) {
		if asking.Err() != nil {
			break
		}
		var renewAt *time.Time
		again, url := a.Settings.AskEvery, ""
		if c.Directory == a.Authority.Directory() {
			w, ok, err := a.Authority.RenewalInfo(asking, c.Chain)
			switch {
			case err != nil:
				a.Log.Info("the authority gives no renewal time for a certificate", zap.String("certificate_id", string(c.CertificateID)), zap.Error(err))
			case ok:
				at := tenant.RenewWithin(w.Start, w.End, c.Serial, tenant.RenewAt(c.NotBefore, c.NotAfter, c.Serial))
				renewAt, url = &at, w.URL
				if w.AskAgain > 0 {
					again = min(max(w.AskAgain, time.Hour), 7*24*time.Hour)
				}
			}
		}
		if try.OK(a.Store.CertificateAsked(ctx, c.CertificateID, c.Version, renewAt, a.Now().Add(again), url)) {
			n++
		}
	}
	return n, try.Err()
}
