package cloudinit

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// host is a directory in which the real scripts run, with a real TLS gateway, real
// curl, and stand-ins for what would change this machine.
type host struct {
	root, bin string
	in        Input
	srv       *httptest.Server

	mu     sync.Mutex
	stages []string
	fail   int // so many requests are answered with 503 first
	binary string
	second []byte
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{root: t.TempDir(), bin: t.TempDir(), in: input(), binary: "#!/bin/sh\n"}
	h.srv = httptest.NewUnstartedServer(http.HandlerFunc(h.serve))
	h.srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	h.srv.StartTLS()
	t.Cleanup(h.srv.Close)
	h.in.GatewayCAPEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.srv.Certificate().Raw}))
	h.in.Host.GatewayURL = h.srv.URL
	h.in.Host.GatewayServerName = "example.com" // what httptest's certificate says
	sum := sha256.Sum256([]byte(h.binary))
	h.in.Host.AgentSHA256 = hex.EncodeToString(sum[:])
	for _, name := range []string{"passwd", "systemctl", "apt-get", "useradd", "mount"} {
		script := fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s/calls\n[ ! -e %s/fail-%s ]\n", name, h.bin, h.bin, name)
		require.NoError(t, os.WriteFile(filepath.Join(h.bin, name), []byte(script), 0o700))
	}
	return h
}

func (h *host) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail > 0 {
		h.fail--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch r.URL.Path {
	case wire.PathBootStage:
		var s wire.BootStageRequest
		if json.NewDecoder(r.Body).Decode(&s) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		h.stages = append(h.stages, strings.TrimSpace(string(s.Stage)+" "+s.Detail))
	case wire.PathAgentBinary:
		fmt.Fprint(w, h.binary)
	case wire.PathStageTwo:
		_, _ = w.Write(h.second)
	}
}

// run materialises the files as cloud-init would and runs what runcmd names.
func (h *host) run(t *testing.T) (string, error) {
	t.Helper()
	out, err := Render(h.in)
	require.NoError(t, err)
	if h.second == nil {
		h.second = out.StageTwo
	}
	files, d := read(t, out.UserData)
	for path, f := range files {
		target := filepath.Join(h.root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
		mode, err := strconv.ParseUint(f.Permissions, 8, 32)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(target, []byte(f.Content), os.FileMode(mode)))
	}
	require.Len(t, d.RunCmd, 1)
	cmd := exec.Command("sh", filepath.Join(h.root, strings.TrimPrefix(d.RunCmd[0], "sh ")))
	cmd.Env = []string{"PATH=" + h.bin + ":" + os.Getenv("PATH"), "PREGO_ROOT=" + h.root, "PREGO_PAUSE=0", "PREGO_TRIES=4"}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func TestBootScriptRuns(t *testing.T) {
	t.Parallel()
	tool(t, "curl")
	for name, limit := range map[string]int{"in one stage": 0, "in two stages": 7000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.in.Limit = limit
			h.fail = 1 // the first report is lost, and nothing stops
			text, err := h.run(t)
			require.NoError(t, err, text)
			want := []string{"cloud_init_started", "firewall_ready", "docker_installed", "agent_installed", "agent_started"}
			if limit == 0 {
				want = want[1:]
			}
			require.Equal(t, want, h.stages)
			got, err := os.ReadFile(filepath.Join(h.root, wire.AgentBinary))
			require.NoError(t, err)
			require.Equal(t, h.binary, string(got))
			calls, err := os.ReadFile(filepath.Join(h.bin, "calls"))
			require.NoError(t, err)
			for _, c := range []string{"passwd --lock root", "systemctl mask ssh.service", "prego-firewall.service", "install docker.io", "prego-agent-bootstrap.service prego-agent.service", "useradd --system --create-home --home-dir /home/frappe", "prego-agent-prepare.service", "prego-agent-exec.socket prego-agent-bench.socket", "prego-agent-exec.service", "enable prego-docker-certs.service", "prego-docker-certs.path"} {
				require.Contains(t, string(calls), c)
			}
			require.NotContains(t, string(calls), token)
			require.NotContains(t, text, token, "the token is not printed")
		})
	}
}

func TestBootScriptReportsWhatFailed(t *testing.T) {
	t.Parallel()
	tool(t, "curl")
	t.Run("packages", func(t *testing.T) {
		t.Parallel()
		h := newHost(t)
		require.NoError(t, os.WriteFile(filepath.Join(h.bin, "fail-apt-get"), nil, 0o600))
		_, err := h.run(t)
		require.Error(t, err)
		require.Equal(t, []string{"cloud_init_started", "failed packages ended with status 1"}, h.stages)
	})
	t.Run("another agent than the pinned one", func(t *testing.T) {
		t.Parallel()
		h := newHost(t)
		h.binary = "#!/bin/sh\nevil\n"
		_, err := h.run(t)
		require.Error(t, err)
		require.Equal(t, "failed agent ended with status 1", h.stages[len(h.stages)-1])
		require.NoFileExists(t, filepath.Join(h.root, wire.AgentBinary))
	})
	t.Run("another second stage than the pinned one", func(t *testing.T) {
		t.Parallel()
		h := newHost(t)
		h.in.Limit = 7000
		h.second = []byte("evil")
		_, err := h.run(t)
		require.Error(t, err)
		require.Equal(t, []string{"failed second_stage ended with status 1"}, h.stages)
		require.NoFileExists(t, filepath.Join(h.root, "/usr/local/lib/prego/bootstrap.sh"))
	})
}

// TestRenewedCertificatesReachDockerd runs the script that the path unit starts.
func TestRenewedCertificatesReachDockerd(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("files are given to root; make test runs this as root in CI")
		require.Empty(t, os.Getenv("CI"), "CI must run this test")
		return
	}
	h := newHost(t)
	put := func(name, content string) {
		file := filepath.Join(h.root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	put("/usr/local/lib/prego/docker-tls.conf", "[Service]\n")
	script, err := files.ReadFile("files/docker-certs.sh")
	require.NoError(t, err)
	put("script", string(script))
	run := func() (restarts int, err error) {
		cmd := exec.Command("sh", filepath.Join(h.root, "script"))
		cmd.Env = []string{"PATH=" + h.bin + ":" + os.Getenv("PATH"), "PREGO_ROOT=" + h.root, "PREGO_WAIT=1"}
		text, err := cmd.CombinedOutput()
		calls, _ := os.ReadFile(filepath.Join(h.bin, "calls"))
		t.Logf("%s", text)
		return strings.Count(string(calls), "systemctl restart docker.service"), err
	}
	restarts := func(want int, why string) {
		t.Helper()
		got, err := run()
		require.NoError(t, err)
		require.Equal(t, want, got, why)
	}
	restarts(0, "there is none yet")
	for _, f := range []string{"ca.pem", "cert.pem", "key.pem"} {
		put("/var/lib/prego-agent/docker/"+f, f+" 1")
	}
	restarts(1, "the first")
	restarts(1, "nothing changed")
	put("/var/lib/prego-agent/docker/cert.pem", "cert.pem 2")
	require.NoError(t, os.WriteFile(filepath.Join(h.bin, "fail-systemctl"), nil, 0o600))
	_, err = run()
	require.Error(t, err)
	require.NoError(t, os.Remove(filepath.Join(h.bin, "fail-systemctl")))
	got, err := run()
	require.NoError(t, err)
	require.Equal(t, 2, got, "what failed is done again")
	restarts(2, "and once")
	b, err := os.ReadFile(filepath.Join(h.root, "/etc/docker/prego/cert.pem"))
	require.NoError(t, err)
	require.Equal(t, "cert.pem 2", string(b))
	put("/var/lib/prego-agent/docker/ca.pem", "ca.pem 2")
	put("/run/prego-agent-bench/lock", "")
	held := exec.Command("flock", "--no-fork", "--shared", filepath.Join(h.root, "/run/prego-agent-bench/lock"), "sleep", "60")
	require.NoError(t, held.Start())
	t.Cleanup(func() { _ = held.Process.Kill(); _ = held.Wait() })
	began := time.Now()
	restarts(3, "commands are waited for, and not for ever")
	require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond)
}

// TestFirewallHolds loads the ruleset in a network namespace of its own and sends
// packets at it: from an egress address and from another one, to the open ports
// and others, to a published container port, and from a container to the
// metadata service.
func TestFirewallHolds(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("network namespaces take root; make test runs this as root in CI")
		require.Empty(t, os.Getenv("CI"), "CI must run this test")
		return
	}
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
	require.True(t, connects(outside, other, "203.0.113.1:8000"), "and a published port, too")
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
