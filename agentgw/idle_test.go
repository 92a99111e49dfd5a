package agentgw

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// idleServer serves, and answers each request with its body and the serial number of the
// client's certificate.
func idleServer(t *testing.T, timeouts idleTimeouts) *idleListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	il := newIdleListener(l, &tls.Config{Certificates: []tls.Certificate{selfSigned(t, 1)}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13}, timeouts, zap.NewNop())
	srv := &http.Server{ConnState: followState, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, string(body)+" from "+r.TLS.PeerCertificates[0].SerialNumber.String())
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(il) }()
	t.Cleanup(func() {
		_ = srv.Close()
		require.Error(t, <-done)
		require.Zero(t, il.waiting())
	})
	return il
}

func selfSigned(t *testing.T, serial int64) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"gw"}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// peer is one connection of a client, whose requests are written by hand.
type peer struct {
	t *testing.T
	*tls.Conn
	in *bufio.Reader
}

func dial(t *testing.T, l net.Listener) *peer {
	t.Helper()
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{selfSigned(t, 7)}})
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	t.Cleanup(func() { _ = c.Close() })
	return &peer{t: t, Conn: c, in: bufio.NewReader(c)}
}

func request(body string) string {
	return "POST / HTTP/1.1\r\nHost: gw\r\nContent-Length: " + string(rune('0'+len(body))) + "\r\n\r\n" + body
}

func (p *peer) send(s string) {
	p.t.Helper()
	_, err := io.WriteString(p.Conn, s)
	require.NoError(p.t, err)
}

func (p *peer) answer(want string) {
	p.t.Helper()
	resp, err := http.ReadResponse(p.in, nil)
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	require.Equal(p.t, want, string(body))
}

var quick = idleTimeouts{handshake: 5 * time.Second, linger: 10 * time.Millisecond, idle: time.Minute}

// waiting is how many connections wait without net/http.
func (l *idleListener) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.idle)
}

func (l *idleListener) await(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return l.waiting() == n }, 10*time.Second, time.Millisecond)
}

func TestAnIdleConnectionIsKeptAndServedAgain(t *testing.T) {
	t.Parallel()
	l := idleServer(t, quick)
	p := dial(t, l)
	for range 3 {
		p.send(request("beat"))
		p.answer("beat from 7")
		l.await(t, 1)
	}
}

func TestRequestsThatArriveTogetherAreAllAnswered(t *testing.T) {
	t.Parallel()
	l := idleServer(t, quick)
	p := dial(t, l)
	third := request("3")
	p.send(request("1") + request("2") + third[:3])
	p.answer("1 from 7")
	p.answer("2 from 7")
	time.Sleep(10 * quick.linger) // the rest of the third comes late
	p.send(third[3:])
	p.answer("3 from 7")
	l.await(t, 1)
}

func TestABodyThatComesSlowlyIsNotIdle(t *testing.T) {
	t.Parallel()
	l := idleServer(t, quick)
	p := dial(t, l)
	p.send(request("1"))
	p.answer("1 from 7")
	for c := range strings.SplitSeq(request("slow"), "") {
		p.send(c)
		time.Sleep(2 * time.Millisecond)
	}
	p.answer("slow from 7")
}

func TestAnIdleConnectionEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeouts idleTimeouts
		end      func(*idleListener, *peer)
	}{
		"when its time is up":       {idleTimeouts{handshake: time.Second, linger: 10 * time.Millisecond, idle: 100 * time.Millisecond}, func(*idleListener, *peer) {}},
		"when the listener closes":  {quick, func(l *idleListener, _ *peer) { require.NoError(t, l.Close()) }},
		"when the peer goes":        {quick, func(_ *idleListener, p *peer) { require.NoError(t, p.Close()) }},
		"when the peer sends noise": {quick, func(_ *idleListener, p *peer) { _, _ = p.NetConn().Write([]byte("noise, longer than a header")) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := idleServer(t, c.timeouts)
			p := dial(t, l)
			p.send(request("1"))
			p.answer("1 from 7")
			if c.timeouts == quick {
				l.await(t, 1)
			}
			c.end(l, p)
			_, err := p.in.ReadByte()
			require.Error(t, err)
			l.await(t, 0)
		})
	}
}

func TestWhoDoesNotSpeakTLSIsToldSo(t *testing.T) {
	t.Parallel()
	l := idleServer(t, quick)
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
}

func TestASilentStrangerIsLetGo(t *testing.T) {
	t.Parallel()
	l := idleServer(t, idleTimeouts{handshake: 50 * time.Millisecond, linger: time.Second, idle: time.Minute})
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the server ends it")
}
