package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/acme"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/workflows"
)

// newCertificates creates the steps of certificates. Without an authority, none is asked for.
func newCertificates(p *Process, runs *workflows.Client, edges *activities.Edges) (*activities.Certificates, error) {
	s := p.cfg.ACME
	resolver := ""
	if r := p.cfg.Names.Resolvers; len(r) > 0 {
		resolver = r[0]
	}
	out := &activities.Certificates{
		Store: p.db, Runs: runs, Metrics: activities.NewCertificateMetrics(p.reg), Log: p.log.Named("certificates"), Now: p.now, Hooks: p.hooks,
		Settings: activities.CertificateSettings{
			Account: s.Account, Contact: s.Contact, SiteDomains: []string{p.cfg.Tenants.SiteDomain}, Limits: s.Limits(),
			ServeWithin: s.ServeWithin, IssueWithin: s.IssueWithin, Poll: s.Poll, AskEvery: p.cfg.Pace.Of(12 * time.Hour), // unless the authority names a pause,
		},
		Probe: acme.NewProbe(acme.ProbeConfig{Port: 80, Resolver: resolver, AnyAddress: p.cfg.Hetzner.Simulated, Transport: p.outside}),
	}
	var err error
	if out.Sealing, err = token.OpenSealing(p.cfg.KeysDir, token.SealCertificates); err != nil {
		return nil, err
	}
	if s.Directory == "" {
		return out, nil
	}
	roots, err := authorityRoots(s.CAFile)
	if err != nil {
		return nil, err
	}
	if out.Authority, err = acme.New(acme.Config{
		Directory: s.Directory, UserAgent: "prego/" + p.version, EABKeyID: s.EABKeyID, EABKey: s.EABKey, Roots: roots, Transport: p.outside,
	}); err != nil {
		return nil, fmt.Errorf("certificate authority (PREGO_ACME_…): %w", err)
	}
	if out.Keys, err = token.NewBox(p.cfg.Worker.MasterKey, p.cfg.Worker.MasterKeysEarlier...); err != nil {
		return nil, err
	}
	out.EdgesServe = func(ctx context.Context, _ []string) (bool, error) {
		// A name may lead to the edges of any network.
		all, err := p.db.EdgeServers(ctx)
		if err != nil {
			return false, err
		}
		r, err := edges.AwaitEdges(ctx, activities.AwaitEdgesInput{ServerIDs: all})
		return err == nil && len(r.Behind) == 0, err
	}
	return out, nil
}

// authorityRoots reads the roots that are trusted for an authority's own HTTPS; nil for the
// system's.
func authorityRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("PREGO_ACME_CA_FILE: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("PREGO_ACME_CA_FILE %s holds no certificate", file)
	}
	return pool, nil
}
