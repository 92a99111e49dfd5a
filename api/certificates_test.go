package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

// TestCertificatesAreShownAndRenewed: operators see all of them with their orders; a tenant shows
// its site's certificate, and why it has none.
func TestCertificatesAreShownAndRenewed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := t.Context()
	_, err := b.store.WantCertificates(ctx, []tenant.CertificateWant{tenant.SiteCertificate("sites.example.com"), tenant.HostCertificate("www.example.org", nil, nil)}, "a")
	require.NoError(t, err)
	id := tenant.CertificateID([]string{"www.example.org"})
	_, err = b.pool.Exec(ctx, `INSERT INTO acme_accounts (account_id, directory, name, sealed_key, key_id) VALUES ('acc', 'https://ca.example', '1', '\x00', 'k')`)
	require.NoError(t, err)
	_, err = b.store.BeginOrder(ctx, tenant.CertificateOrder{OrderID: "ord-1", CertificateID: id, AccountID: "acc", CSR: []byte{0}, SealedKey: []byte("sealed"), KeyID: "k1"}, nil)
	require.NoError(t, err)
	_, err = b.store.IssueFailed(ctx, tenant.IssueFailure{CertificateID: id, OrderID: "ord-1", EndOrder: true, Reason: "certificate_caa", Message: "a CAA record forbids it", Again: time.Hour})
	require.NoError(t, err)

	list := func(query string) []api.Certificate {
		resp, answer := b.do("GET", "/v1/certificates"+query, "viewer", "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
		require.NotContains(t, string(answer), "sealed")
		return as[api.CertificatePage](t, answer).Certificates
	}
	require.Len(t, list(""), 2)
	require.Len(t, list("?status=failed&reason=certificate_caa"), 1)
	require.Empty(t, list("?org_id=ghost"))
	resp, answer := b.do("GET", "/v1/certificates/"+string(id), "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	got := as[api.Certificate](t, answer)
	require.Equal(t, []string{"www.example.org"}, got.Names)
	require.Equal(t, "certificate_caa", *got.Reason)
	require.Equal(t, []any{1, "a CAA record forbids it"}, []any{len(*got.Orders), *(*got.Orders)[0].Message})

	resp, answer = b.do("POST", "/v1/certificates/"+string(id)+"/renew", "operator", "", "")
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", answer)
	require.Equal(t, 0, as[api.Certificate](t, answer).Failures)
	require.Contains(t, b.runs.asked(), "certificate "+string(id))
	resp, answer = b.do("POST", "/v1/certificates/crt-none/renew", "operator", "", "")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	require.EqualValues(t, prego.CodeCertificateNotFound, as[api.Problem](t, answer).Code)
	resp, _ = b.do("GET", "/v1/certificates/crt-none", "viewer", "", "")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	resp, _ = b.do("POST", "/v1/certificates/"+string(id)+"/renew", "viewer", "", "")
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
}
