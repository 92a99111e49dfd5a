package world

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/acme"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/tenant"
)

// overAuthority brings requests to the authority alone; before may change them.
type overAuthority struct {
	a      *authority
	before func(r *http.Request, body []byte) []byte
}

func (o *overAuthority) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := sent(r)
	if err != nil {
		return nil, err
	}
	rec := httptest.NewRecorder()
	switch {
	case r.URL.Path == "/directory":
		o.a.directory(rec)
	case o.before != nil:
		o.a.serve(rec, r, o.before(r, body))
	default:
		o.a.serve(rec, r, body)
	}
	resp := rec.Result()
	resp.Request = r
	return resp, nil
}

// TestTheAuthorityLooksItself: with the control plane's own client. It issues once the answer is in the zone's name
// servers, and rejects foreign signatures.
func TestTheAuthorityLooksItself(t *testing.T) {
	bare(t, func(w *World) {
		w.Schedule.Free()
		var err error
		w.cloud, err = sim.New(sim.Config{StateDir: t.TempDir(), Token: ProviderToken, Guest: func(context.Context, sim.Guest) {}, Zones: []string{Zone, customerZone}})
		require.NoError(t, err)
		w.provider, err = w.cloud.Within(context.Background())
		require.NoError(t, err)
		defer w.cloud.CloseWithin()
		w.names, w.authority, w.hosts = newNames(w, true), newAuthority(w), newHosts(w)
		over := &overAuthority{a: w.authority}
		client := func() *acme.Authority {
			c, err := acme.New(acme.Config{Directory: AuthorityDirectory, Transport: over})
			require.NoError(t, err)
			return c
		}
		ctx := context.Background()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		account, err := client().Register(ctx, key, "")
		require.NoError(t, err)
		again, err := client().Register(ctx, key, "")
		require.NoError(t, err)
		require.Equal(t, account.Location, again.Location)

		names := []string{"*." + customerZone}
		order, err := client().Place(ctx, account, names, "")
		require.NoError(t, err)
		twice, err := client().Place(ctx, account, names, "")
		require.NoError(t, err)
		require.Equal(t, order.Location, twice.Location, "a pending order is returned again")
		validated := func() tenant.AuthorityOrder {
			z, err := client().Authorization(ctx, account, order.Authz[0], tenant.ChallengeDNS)
			require.NoError(t, err)
			require.NoError(t, client().Accept(ctx, account, z.ChallengeURL))
			time.Sleep(10 * time.Second)
			now, err := client().Order(ctx, account, order.Location)
			require.NoError(t, err)
			return now
		}
		require.Equal(t, tenant.OrderFailed, validated().State, "there is no record")

		order, err = client().Place(ctx, account, names, "")
		require.NoError(t, err)
		z, err := client().Authorization(ctx, account, order.Authz[0], tenant.ChallengeDNS)
		require.NoError(t, err)
		w.names.publish("add", record{Type: "TXT", Name: "_acme-challenge." + customerZone, Value: z.Answer})
		time.Sleep(10 * time.Second)
		order = validated()
		require.Equal(t, tenant.OrderReady, order.State)

		// Somebody else's key, with this account's name.
		stranger := account
		stranger.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		_, err = client().Order(ctx, stranger, order.Location)
		require.ErrorContains(t, err, "the signature is wrong")
		// A used nonce: the client gets another and continues.
		over.before = func(_ *http.Request, body []byte) []byte {
			clear(w.authority.nonces)
			over.before = nil
			return body
		}
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: names}, own)
		require.NoError(t, err)
		order, err = client().Finalize(ctx, account, order, csr)
		require.NoError(t, err)
		require.Equal(t, tenant.OrderValid, order.State)
		chain, err := client().Download(ctx, account, order.Certificate)
		require.NoError(t, err)
		block, _ := pem.Decode(chain)
		leaf, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		require.NoError(t, leaf.VerifyHostname("www."+customerZone))
		require.Equal(t, certificateLife, leaf.NotAfter.Sub(leaf.NotBefore))
		require.Empty(t, w.problems)
	})
}
