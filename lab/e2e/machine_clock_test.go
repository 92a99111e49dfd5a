//go:build machines

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/server"
)

// TestMachineClocks creates hosts with wrong clocks. Machines share this one's clock, so that the control plane lives
// in another time: its certificates, the date of its answers, and its date in the user_data. Each attempt has another
// control plane, and the last one is right.
func TestMachineClocks(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	shifts := []time.Duration{time.Hour, -time.Hour, year, -year, 0}
	own := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	c := machineCell(t, options{vars: map[string]string{
		"PREGO_PROVISION_RETRIES":    "1",
		"PREGO_AGENTGW_CHECK_SOURCE": "false", // the last attempt comes by way of this test
		"PREGO_AGENTGW_LISTEN":       own,
	}, set: func(cfg *config.Config) { cfg.Worker.BootPatience = 8 * time.Second }})
	shift := func() time.Duration {
		attempt := 0
		_ = c.pool.QueryRow(t.Context(), `SELECT attempt FROM servers WHERE server_id = $1`, c.id("clock")).Scan(&attempt)
		return shifts[min(max(attempt, 1), len(shifts))-1]
	}
	for i, s := range shifts {
		_, err := c.pool.Exec(t.Context(), fmt.Sprintf(`
CREATE FUNCTION written_%[1]d() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.issued_at := now() + make_interval(secs => %[2]f); RETURN NEW; END';
CREATE TRIGGER written_%[1]d BEFORE INSERT ON server_bootstrap_tokens FOR EACH ROW WHEN (NEW.attempt = %[1]d) EXECUTE FUNCTION written_%[1]d()`, i+1, s.Seconds()))
		require.NoError(t, err)
	}
	c.serveShifted(own, shift)
	m := c.machine("clock", prego.RoleRedisPool, server.Spec{Image: "debian-13"})
	for range 2 { // two attempts each
		m.hasFailed(prego.ReasonClockSkew, `clock_skew: this clock is -?\d+ s ahead of the control plane's`)
		status, body := m.request(http.MethodPost, "/v1/servers/"+m.id("clock")+"/retry", nil)
		require.Equal(t, http.StatusAccepted, status, "%s", body)
	}
	s := m.awaitActive()
	require.Equal(t, len(shifts), s.Attempt)
	var failed []string
	for _, stage := range stages(s) {
		if strings.HasPrefix(stage, "failed: ") {
			failed = append(failed, stage)
		}
	}
	require.Len(t, failed, len(shifts)-1)
	for i, ahead := range []string{`-3[56]\d\d`, `3[56]\d\d`, `-3153\d{4}`, `3153\d{4}`} {
		require.Regexp(t, `^failed: clock: clock_skew: this clock is `+ahead+` s ahead of the control plane's: date: cannot set date: Operation not permitted`, failed[i])
	}
}

// serveShifted is in front of the gateway, where machines look for it, in another time.
func (c *cell) serveShifted(own string, shift func() time.Duration) {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.vars["PREGO_KEYS_DIR"], "ca", "gateway", "issuer.pem"))
	require.NoError(c.t, err)
	issuer, err := tls.X509KeyPair(b, b)
	require.NoError(c.t, err)
	ca, err := x509.ParseCertificate(issuer.Certificate[0])
	require.NoError(c.t, err)
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		now := time.Now().Add(shift())
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), DNSNames: []string{"agentgw.prego.internal"},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
		}, ca, key.Public(), issuer.PrivateKey)
		return &tls.Certificate{Certificate: [][]byte{der, ca.Raw}, PrivateKey: key}, err
	}
	bundle, err := os.ReadFile(filepath.Join(c.vars["PREGO_KEYS_DIR"], "ca", "gateway", "bundle.pem"))
	require.NoError(c.t, err)
	roots := x509.NewCertPool()
	require.True(c.t, roots.AppendCertsFromPEM(bundle))
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: own})
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "agentgw.prego.internal"}}
	proxy.ModifyResponse = func(r *http.Response) error {
		r.Header.Set("Date", time.Now().Add(shift()).UTC().Format(http.TimeFormat))
		return nil
	}
	l, err := net.Listen("tcp", strings.TrimPrefix(c.vars["PREGO_AGENTGW_URL"], "https://"))
	require.NoError(c.t, err)
	accepted := &handed{conns: make(chan net.Conn), done: make(chan struct{})}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if shift() != 0 {
				select {
				case accepted.conns <- conn:
				case <-accepted.done:
					_ = conn.Close()
				}
				continue
			}
			go passOn(conn, own)
		}
	}()
	srv := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate}}
	go func() { _ = srv.ServeTLS(accepted, "", "") }()
	c.t.Cleanup(func() { _ = l.Close(); _ = srv.Close() })
}

func passOn(from net.Conn, addr string) {
	defer func() { _ = from.Close() }()
	to, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
	_, _ = io.Copy(from, to)
}

// handed are connections that another listener accepts.
type handed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (*handed) Addr() net.Addr { return &net.TCPAddr{} }
