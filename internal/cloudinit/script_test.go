package cloudinit

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
)

// gateway is a real TLS server, called by the program that the boot scripts use.
type gateway struct {
	srv *httptest.Server
	env []string
	dir string // of the program, with its /etc/prego-agent replaced

	mu     sync.Mutex
	stages []string
	ahead  time.Duration // of the host's clock: the gateway's is so much behind
	binary string
}

// newGateway serves with a certificate that is valid between two times.
func newGateway(t *testing.T, issued, from, until time.Time) *gateway {
	t.Helper()
	g := &gateway{dir: t.TempDir(), binary: "#!/bin/sh\n"}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until, DNSNames: []string{"agentgw.prego.internal"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	require.NoError(t, err)
	g.srv = httptest.NewUnstartedServer(http.HandlerFunc(g.serve))
	g.srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	g.srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	g.srv.StartTLS()
	t.Cleanup(g.srv.Close)

	in := input()
	in.Issued, in.Host.GatewayURL = issued.Unix(), g.srv.URL
	in.GatewayCAPEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	out, err := Render(in)
	require.NoError(t, err)
	files, _ := read(t, out.UserData)
	program := strings.ReplaceAll(files[lib+"gateway.py"].Content, "/etc/prego-agent/", g.dir+"/")
	require.NoError(t, os.WriteFile(filepath.Join(g.dir, "gateway.py"), []byte(program), 0o600))
	for _, name := range []string{wire.BootstrapTokenPath, wire.GatewayCAPath} {
		require.NoError(t, os.WriteFile(filepath.Join(g.dir, filepath.Base(name)), []byte(files[name].Content), 0o600))
	}
	for line := range strings.Lines(files["/etc/prego-agent/boot.env"].Content) {
		g.env = append(g.env, strings.NewReplacer("'", "", "\n", "").Replace(line))
	}
	return g
}

func (g *gateway) serve(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(-g.ahead).UTC().Format(http.TimeFormat))
	if r.Header.Get("Authorization") != "Bearer "+token {
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(wire.Problem{Status: 401, Code: "token_unknown", Detail: "unknown token"})
		return
	}
	switch r.URL.Path {
	case wire.PathBootStage:
		var s wire.BootStageRequest
		if json.NewDecoder(r.Body).Decode(&s) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		g.stages = append(g.stages, s.ServerID+" "+string(s.Stage)+" "+s.Detail)
	case wire.PathAgentBinary:
		fmt.Fprint(w, g.binary)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// reported returns the stages that arrived.
func (g *gateway) reported() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.stages)
}

// set changes the answers. The server reads them in other goroutines.
func (g *gateway) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// call runs the program.
func (g *gateway) call(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.Command(tool(t, "python3"), append([]string{"-I", filepath.Join(g.dir, "gateway.py")}, args...)...)
	cmd.Env = g.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NotContains(t, stderr.String()+string(out), token)
	require.NotContains(t, stderr.String(), "Traceback")
	if err != nil {
		err = errors.New(stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}

func TestBootReports(t *testing.T) {
	t.Parallel()
	now := time.Now()
	g := newGateway(t, now, now.Add(-time.Hour), now.Add(time.Hour))
	for name, ahead := range map[string]time.Duration{"right": 0, "ahead": time.Hour, "behind": -time.Hour} {
		g.set(func() { g.ahead = ahead })
		out, err := g.call(t, "report", "cloud_init_started")
		require.NoError(t, err, name)
		seconds, err := strconv.Atoi(out)
		require.NoError(t, err, name)
		require.InDelta(t, ahead.Seconds(), seconds, 3, "%s: by how much the clock is ahead", name)
	}
	_, err := g.call(t, "report", "failed", "it's \"broken\"\\ ")
	require.NoError(t, err)
	require.Equal(t, "app-sgp-007 failed it's \"broken\"\\ ", g.reported()[3], "any text arrives as it is")

	require.NoError(t, os.WriteFile(filepath.Join(g.dir, "bootstrap.token"), []byte("another"), 0o600))
	_, err = g.call(t, "report", "failed", "x")
	require.ErrorContains(t, err, "the gateway answered 401 token_unknown: unknown token")
	g.srv.Close()
	_, err = g.call(t, "report", "failed", "x")
	require.ErrorContains(t, err, "Connection refused")
}

func TestBootFetchesWhatIsPinned(t *testing.T) {
	t.Parallel()
	now := time.Now()
	g := newGateway(t, now, now.Add(-time.Hour), now.Add(time.Hour))
	sum := sha256.Sum256([]byte(g.binary))
	target := filepath.Join(t.TempDir(), "agent")
	_, err := g.call(t, "fetch", wire.PathAgentBinary, hex.EncodeToString(sum[:]), target)
	require.NoError(t, err)
	got, err := os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, g.binary, string(got))

	g.set(func() { g.binary = "#!/bin/sh\nevil\n" })
	other := filepath.Join(t.TempDir(), "agent")
	_, err = g.call(t, "fetch", wire.PathAgentBinary, hex.EncodeToString(sum[:]), other)
	require.ErrorContains(t, err, "another than the one that was pinned")
	require.NoFileExists(t, other)
	require.NoFileExists(t, other+".new")
}

// TestBootJudgesCertificatesWhereTheClockIsWrong gives the program certificates of
// another time than this machine's: user_data was written in theirs, so that it is the
// clock that is wrong.
func TestBootJudgesCertificatesWhereTheClockIsWrong(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		issued, from, until time.Duration // from now
		says                string
	}{
		"an hour behind":                     {time.Hour, 30 * time.Minute, 2 * time.Hour, ""},
		"a year behind":                      {365 * 24 * time.Hour, 365*24*time.Hour - time.Hour, 366 * 24 * time.Hour, ""},
		"an hour ahead":                      {-time.Hour, -time.Hour - time.Minute, -time.Minute, ""},
		"a year ahead":                       {-365 * 24 * time.Hour, -366 * 24 * time.Hour, -364 * 24 * time.Hour, ""},
		"right, and not valid yet":           {0, time.Hour, 2 * time.Hour, "the gateway's certificate has notBefore"},
		"right, and expired":                 {0, -2 * time.Hour, -time.Hour, "the gateway's certificate has notAfter"},
		"a year behind, and expired by then": {365 * 24 * time.Hour, time.Hour, 2 * time.Hour, "the gateway's certificate has notAfter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, now.Add(tc.issued), now.Add(tc.from), now.Add(tc.until))
			_, err := g.call(t, "report", "cloud_init_started")
			if tc.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.says)
			require.Empty(t, g.reported(), "the token was not sent")
		})
	}
}

func TestBootTrustsNobodyElse(t *testing.T) {
	t.Parallel()
	now := time.Now()
	g, other := newGateway(t, now, now.Add(-time.Hour), now.Add(time.Hour)), newGateway(t, now, now.Add(-time.Hour), now.Add(time.Hour))
	require.NoError(t, os.Rename(filepath.Join(other.dir, "gateway-ca.pem"), filepath.Join(g.dir, "gateway-ca.pem")))
	_, err := g.call(t, "report", "cloud_init_started")
	require.ErrorContains(t, err, "certificate verify failed")
	for i := range other.env {
		other.env[i] = strings.Replace(other.env[i], "agentgw.prego.internal", "gw.example.com", 1)
	}
	require.NoError(t, os.WriteFile(filepath.Join(other.dir, "gateway-ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.srv.TLS.Certificates[0].Certificate[0]}), 0o600))
	_, err = other.call(t, "report", "cloud_init_started")
	require.ErrorContains(t, err, "Hostname mismatch", "its name is checked")
	require.Empty(t, append(g.reported(), other.reported()...))
}

// TestFirewallHolds loads the ruleset in a separate network namespace and sends packets at it: from an egress address
// and from another one, to the open ports and others, to a published container port, and from a container to the
// metadata service.
func TestFirewallHolds(t *testing.T) {
	t.Parallel()
	need.Root(t, "it makes network namespaces")
	ip, nft := tool(t, "ip"), tool(t, "nft")
	ns := fmt.Sprintf("pg%d", os.Getpid())
	do := func(name string, args ...string) {
		t.Helper()
		text, err := exec.Command(name, args...).CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, text)
	}
	host, outside, box := ns+"h", ns+"o", ns+"c"
	for _, n := range []string{host, outside, box} {
		do(ip, "netns", "add", n)
		t.Cleanup(func() { _ = exec.Command(ip, "netns", "del", n).Run() })
	}
	in := func(n string, args ...string) { t.Helper(); do(ip, append([]string{"netns", "exec", n}, args...)...) }
	// outside — host — container, with the container behind a bridge named as
	// Docker's.
	do(ip, "link", "add", ns+"a", "netns", host, "type", "veth", "peer", "name", "eth0", "netns", outside)
	in(host, ip, "link", "add", "docker0", "type", "bridge")
	do(ip, "link", "add", ns+"b", "netns", host, "type", "veth", "peer", "name", "eth0", "netns", box)
	in(host, ip, "link", "set", ns+"b", "master", "docker0")
	for _, l := range []string{"lo", ns + "a", ns + "b", "docker0"} {
		in(host, ip, "link", "set", l, "up")
	}
	in(host, ip, "addr", "add", "203.0.113.1/24", "dev", ns+"a")
	in(host, ip, "addr", "add", "172.17.0.1/16", "dev", "docker0")
	in(host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	for _, a := range []string{"203.0.113.7/24", "203.0.113.66/24", "169.254.169.254/32"} {
		in(outside, ip, "addr", "add", a, "dev", "eth0")
	}
	in(outside, ip, "link", "set", "eth0", "up")
	in(outside, ip, "route", "add", "172.17.0.0/16", "via", "203.0.113.1")
	in(box, ip, "addr", "add", "172.17.0.2/16", "dev", "eth0")
	in(box, ip, "link", "set", "eth0", "up")
	in(box, ip, "route", "add", "default", "via", "172.17.0.1")
	in(host, ip, "route", "add", "169.254.169.254/32", "dev", ns+"a")
	rules := filepath.Join(t.TempDir(), "firewall.nft")
	require.NoError(t, os.WriteFile(rules, []byte(Firewall([]string{"203.0.113.7/32"}, []int{443, 2376})), 0o600))
	// Docker publishes a port by rewriting its destination.
	publish := filepath.Join(t.TempDir(), "dnat.nft")
	require.NoError(t, os.WriteFile(publish, []byte("table ip docker_nat { chain pre { type nat hook prerouting priority dstnat; tcp dport 8000 dnat to 172.17.0.2:80; }; }\n"), 0o600))
	in(host, nft, "--file", publish)

	listen := func(n string, addr string) {
		cmd := exec.Command(ip, "netns", "exec", n, "python3", "-c", "import socket,sys,threading\nfor a in sys.argv[1:]:\n h,p=a.rsplit(':',1);s=socket.create_server((h,int(p)))\n def r(s=s):\n  while True:\n   c,_=s.accept();c.close()\n threading.Thread(target=r).start()\nprint('up',flush=True)", addr)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		_, err = out.Read(make([]byte, 2))
		require.NoError(t, err)
	}
	for _, p := range []string{"443", "2376", "22"} {
		listen(host, "203.0.113.1:"+p)
	}
	listen(box, "172.17.0.2:80")
	listen(outside, "169.254.169.254:80")
	listen(outside, "203.0.113.66:80")
	connects := func(n, from, to string) bool {
		h, p, _ := strings.Cut(to, ":")
		return exec.Command(ip, "netns", "exec", n, "python3", "-c",
			"import socket,sys;socket.create_connection((sys.argv[1],int(sys.argv[2])),timeout=1,source_address=(sys.argv[3],0))", h, p, from).Run() == nil
	}
	const egress, other = "203.0.113.7", "203.0.113.66"
	require.True(t, connects(outside, other, "203.0.113.1:22"), "without the rules everything is open")
	require.True(t, connects(outside, other, "203.0.113.1:8000"), "and so is a published port")
	require.True(t, connects(box, "172.17.0.2", "169.254.169.254:80"))
	for range 2 { // loading it again changes nothing
		in(host, nft, "--file", rules)
	}
	require.True(t, connects(outside, egress, "203.0.113.1:443"))
	require.True(t, connects(outside, egress, "203.0.113.1:2376"))
	require.False(t, connects(outside, other, "203.0.113.1:443"))
	require.False(t, connects(outside, other, "203.0.113.1:2376"))
	require.False(t, connects(outside, egress, "203.0.113.1:22"), "no SSH, not even from the control plane")
	require.False(t, connects(outside, egress, "203.0.113.1:8000"), "published ports are not reachable")
	require.False(t, connects(outside, other, "203.0.113.1:8000"))
	require.False(t, connects(outside, other, "172.17.0.2:80"), "nor containers by their own address")
	require.False(t, connects(box, "172.17.0.2", "169.254.169.254:80"), "no container reads the user_data")
	require.True(t, connects(box, "172.17.0.2", "203.0.113.66:80"), "containers may go out")
}
