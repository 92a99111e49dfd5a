package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/org"
)

// resolves asks the simulator's name server for the addresses of a name.
func (c *cell) resolves(name string) (out []string) {
	c.t.Helper()
	r, _, err := new(dns.Client).ExchangeContext(c.t.Context(), new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), c.sim.DNS())
	require.NoError(c.t, err)
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			out = append(out, a.A.String())
		}
	}
	return out
}

// TestNamesOfSitesAndCustomers: an edge is in the DNS as soon as it is active, and a
// customer's name is verified once its TXT record is there.
func TestNamesOfSitesAndCustomers(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{
		sim:  func(cfg *sim.Config) { cfg.Zones = []string{"prego.internal", "customer.org"} },
		vars: map[string]string{"PREGO_DNS_ZONE": "prego.internal"},
		set: func(cfg *config.Config) {
			cfg.Names.Retry, cfg.Names.RetryMax, cfg.Names.Recheck, cfg.Names.Grace = 100*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond, time.Second
		},
	})
	for _, sql := range []string{
		`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('hetzner-eu-central-1', 'hetzner', 'eu-central', 1, '10.64.0.0/16')`,
		`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, host, network_id, agent_status)
			VALUES ('edge-1', '', 'edge', 'eu', 'hetzner', '{}', 'active', 'w', 't', '192.0.2.1', 'hetzner-eu-central-1', 'connected')`,
	} {
		_, err := c.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	eventually(t, func() bool { return len(c.resolves("acme.sites.prego.internal")) == 1 }, patience, 50*time.Millisecond)
	require.Equal(t, []string{"192.0.2.1"}, c.resolves("acme.sites.prego.internal"))
	keepHistory(t, c, "keep-names", c.runOf("KeepNames"))

	c.workload("acme", prego.TierPaid, "web")
	var d api.Domain
	c.post("/v1/domains", map[string]any{"org_id": "acme", "name": "www.customer.org"}, http.StatusCreated, &d)
	require.Equal(t, org.DomainPending, d.Status)
	until := func(want org.DomainStatus) {
		t.Helper()
		eventually(t, func() bool {
			c.send(http.MethodGet, "/v1/domains/"+d.DomainId, nil, http.StatusOK, &d)
			return d.CheckedAt != nil && d.Status == want
		}, patience, 50*time.Millisecond)
	}
	until(org.DomainPending)
	hetzner := hcloud.NewClient(hcloud.WithEndpoint(c.sim.URL()), hcloud.WithToken(c.vars["HCLOUD_TOKEN"]))
	zone := &hcloud.Zone{Name: "customer.org"}
	_, _, err := hetzner.Zone.CreateRRSet(t.Context(), zone, hcloud.ZoneRRSetCreateOpts{Name: "_prego-challenge.www", Type: "TXT", Records: []hcloud.ZoneRRSetRecord{{Value: `"` + d.Records[0].Value + `"`}}})
	require.NoError(t, err)
	until(org.DomainVerified)
	_, _, err = hetzner.Zone.DeleteRRSet(t.Context(), &hcloud.ZoneRRSet{Zone: zone, Name: "_prego-challenge.www", Type: "TXT"})
	require.NoError(t, err)
	until(org.DomainLost)
}
