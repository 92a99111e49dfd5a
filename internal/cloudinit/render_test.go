package cloudinit

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/golden"
)

const (
	token = "dG9rZW4tdG9rZW4tdG9rZW4tdG9rZW4tdG9rZW4tMTI"
	ca    = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIQ\n-----END CERTIFICATE-----\n"
)

func input() Input {
	return Input{
		Host: wire.HostConfig{
			ServerID: "app-sgp-007", Environment: "prod", Role: "app", Region: "sg", Tags: []string{"stack:blue"},
			GatewayURL: "https://gw.example.com:8443", GatewayServerName: "agentgw.prego.internal", AgentPort: 443, DockerPort: 2376,
			AgentSHA256: strings.Repeat("ab", 32),
		},
		Token: token, GatewayCAPEM: ca, EgressCIDRs: []string{"203.0.113.7/32", "2001:db8::/64"},
		Issued: 1_793_534_400,
	}
}

func TestGolden(t *testing.T) {
	t.Parallel()
	volume, small, port, edge := input(), input(), input(), input()
	volume.Volume = true
	small.Limit = 12000
	port.Host.AgentPort = 8443
	edge.Host.Role, edge.Host.AgentPort = "edge", 9443
	for name, in := range map[string]Input{"plain": input(), "volume": volume, "two-stage": small, "high-port": port, "edge": edge} {
		out, err := Render(in)
		require.NoError(t, err, name)
		golden.Equal(t, filepath.Join("testdata", name+".yaml"), out.UserData)
		again, err := Render(in)
		require.NoError(t, err)
		require.Equal(t, out, again, "the same input, the same bytes")
	}
}

// read parses a document back into its files.
func read(t require.TestingT, doc string) (map[string]file, document) {
	require.True(t, strings.HasPrefix(doc, "#cloud-config\n"))
	var top map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(doc), &top))
	for k := range top {
		// cloud-init ignores top-level keys that it does not know, and so does its
		// schema check: this list is what we mean to use.
		require.Contains(t, []string{"hostname", "ssh_pwauth", "disable_root", "bootcmd", "write_files", "runcmd"}, k)
	}
	var d document
	require.NoError(t, yaml.Unmarshal([]byte(doc), &d))
	files := map[string]file{}
	for _, f := range d.WriteFiles {
		files[f.Path] = f
	}
	return files, d
}

func TestInvariants(t *testing.T) {
	t.Parallel()
	out, err := Render(input())
	require.NoError(t, err)
	files, d := read(t, out.UserData)
	require.LessOrEqual(t, len(out.UserData), MaxUserData)
	require.NotContains(t, out.UserData, "ssh_authorized_keys")
	require.False(t, d.SSHPwauth)
	require.Equal(t, "0600", files[wire.BootstrapTokenPath].Permissions)
	require.Equal(t, "root:root", files[wire.BootstrapTokenPath].Owner)
	require.Equal(t, 1, strings.Count(out.UserData, token), "the token is in its file and nowhere else")
	require.NotContains(t, files["/etc/docker/daemon.json"].Content, `"hosts"`, "dockerd would not start")
	require.Contains(t, files["/usr/local/lib/prego/docker-tls.conf"].Content, "-H tcp://0.0.0.0:2376 --tlsverify")
	unit := files["/etc/systemd/system/prego-agent.service"].Content
	require.Contains(t, unit, "Restart=always")
	require.Contains(t, unit, "RestartSec=5s")
	require.Contains(t, files["/usr/local/lib/prego/bootstrap.sh"].Content, "systemctl mask ssh.service")
	require.Contains(t, unit, "User=prego-agent\n")
	commands := files["/etc/systemd/system/prego-agent-exec.service"].Content
	require.Contains(t, commands, "User="+wire.DefaultServiceUser+"\n", "two processes, two users")
	require.Contains(t, commands, "--caller prego-agent\n")
	require.NotContains(t, unit+commands, "SupplementaryGroups", "neither is in Docker's group")
	socket := files["/etc/systemd/system/prego-agent-exec.socket"].Content
	require.Contains(t, socket, "ListenStream="+wire.ExecSocket+"\n")
	require.Contains(t, socket, "SocketUser=prego-agent\nSocketMode=0600\n")
	require.Contains(t, files, "/etc/systemd/system/prego-agent.service.d/port.conf")
	bench := files["/etc/systemd/system/prego-agent-bench.service"].Content
	require.Contains(t, bench, "SupplementaryGroups=docker\n", "one process holds Docker's socket,")
	require.Contains(t, bench, "PrivateNetwork=yes\n", "and no network")
	require.Contains(t, bench, "--caller prego-exec --watcher prego-agent ")
	require.Contains(t, files["/etc/systemd/system/prego-agent-watch.socket"].Content, "ListenStream="+wire.WatchSocket+"\nService=prego-agent-bench.service\nSocketUser=prego-agent\nSocketMode=0600\n")
	require.Contains(t, files["/etc/systemd/system/prego-agent-bench.socket"].Content, "ListenStream="+wire.BenchSocket+"\n")
	require.Contains(t, files["/etc/systemd/system/prego-agent-bench.socket"].Content, "SocketUser=prego-exec\nSocketMode=0600\n")
	require.Contains(t, files["/etc/systemd/system/prego-agent-prepare.service"].Content, "Before=docker.service ")
	require.Contains(t, files["/etc/docker/daemon.json"].Content, `"live-restore": true`, "a renewed certificate takes a restart")
	require.Contains(t, files["/usr/local/lib/prego/docker-stop.sh"].Content, `s/"live-restore": true/"live-restore": false/`, "a shutdown takes containers with it")
	require.Contains(t, files["/etc/systemd/system/prego-docker-stop.service"].Content, "After=docker.service\n", "and stops them before dockerd")
}

func TestAnyValidInputComesThroughUnchanged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := input()
		in.Host.ServerID = rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?`).Draw(t, "id")
		in.Host.Tags = rapid.SliceOfN(rapid.StringMatching("[!-~]{1,63}"), 0, 32).Draw(t, "tags")
		in.Volume = rapid.Bool().Draw(t, "volume")
		in.Limit = rapid.IntRange(14000, MaxUserData).Draw(t, "limit")
		for range rapid.IntRange(0, 200).Draw(t, "cidrs") {
			in.EgressCIDRs = append(in.EgressCIDRs, "198.51.100.0/24")
		}
		out, err := Render(in)
		require.NoError(t, err)
		require.LessOrEqual(t, len(out.UserData), in.Limit)
		files, d := read(t, out.UserData)
		require.Equal(t, in.Host.ServerID, d.Hostname)
		var host wire.HostConfig
		require.NoError(t, json.Unmarshal([]byte(files[wire.HostConfigPath].Content), &host))
		require.Equal(t, in.Host.Tags, host.Tags, "no character of a tag leaves the tag")
		require.Equal(t, in.Token, files[wire.BootstrapTokenPath].Content)
		require.Equal(t, 1, strings.Count(out.UserData, in.Token))
		require.Len(t, d.RunCmd, 1)
		if out.StageTwo == nil {
			return
		}
		sum := sha256.Sum256(out.StageTwo)
		require.Equal(t, hex.EncodeToString(sum[:]), out.StageTwoSHA256)
		require.Contains(t, files[wire.StageTwoPath].Content, out.StageTwoSHA256)
		names := unpack(t, out.StageTwo)
		require.Contains(t, names, "usr/local/lib/prego/bootstrap.sh")
		for name, content := range names {
			require.NotContains(t, content, in.Token, name)
		}
	})
}

func unpack(t require.TestingT, archive []byte) map[string]string {
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	out := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		out[h.Name] = string(b)
	}
}

func TestHostileInputIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Input){
		"id with YAML":            func(in *Input) { in.Host.ServerID = "a\nruncmd: [reboot]" },
		"id with a quote":         func(in *Input) { in.Host.ServerID = "a'; reboot #" },
		"environment":             func(in *Input) { in.Host.Environment = "p$(x)" },
		"gateway with a path":     func(in *Input) { in.Host.GatewayURL = "https://gw/x" },
		"gateway over http":       func(in *Input) { in.Host.GatewayURL = "http://gw" },
		"gateway with a quote":    func(in *Input) { in.Host.GatewayURL = "https://gw'x" },
		"gateway with a user":     func(in *Input) { in.Host.GatewayURL = "https://a:b@gw" },
		"server name":             func(in *Input) { in.Host.GatewayServerName = "a b" },
		"digest":                  func(in *Input) { in.Host.AgentSHA256 = "short" },
		"token with a newline":    func(in *Input) { in.Token = token + "\nx" },
		"no CA":                   func(in *Input) { in.GatewayCAPEM = "" },
		"no egress":               func(in *Input) { in.EgressCIDRs = nil },
		"egress that is no CIDR":  func(in *Input) { in.EgressCIDRs = []string{"0.0.0.0/0; drop"} },
		"tag with a newline":      func(in *Input) { in.Host.Tags = []string{"a\nb"} },
		"no time":                 func(in *Input) { in.Issued = 0 },
		"negative patience":       func(in *Input) { in.Patience = -1 },
		"port 0":                  func(in *Input) { in.Host.DockerPort = 0 },
		"too large in two stages": func(in *Input) { in.Limit = 1000 },
	} {
		in := input()
		change(&in)
		_, err := Render(in)
		require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err), name)
	}
}

// tool finds a program that the test can't do without. That it is missing is a
// failure: make test installs it.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if p, err := exec.LookPath(dir + name); err == nil {
			return p
		}
	}
	t.Fatalf("%s is not installed; make test installs what the tests need", name)
	return ""
}

func TestCloudInitTakesIt(t *testing.T) {
	t.Parallel()
	bin := tool(t, "cloud-init")
	dir := t.TempDir()
	check := func(doc string) ([]byte, error) {
		f := filepath.Join(dir, "user-data")
		require.NoError(t, os.WriteFile(f, []byte(doc), 0o600))
		return exec.Command(bin, "schema", "--config-file", f).CombinedOutput()
	}
	for _, limit := range []int{0, 12000} {
		in := input()
		in.Limit = limit
		in.Host.Tags = []string{`{{evil}}`, `#cloud-config`, `"'`, `-a:`, `!!python`}
		out, err := Render(in)
		require.NoError(t, err)
		text, err := check(out.UserData)
		require.NoError(t, err, "%s", text)
	}
	_, err := check("#cloud-config\nwrite_files: 7\n")
	require.Error(t, err, "the check can fail")
}

// requireEarlyStart holds two rules for units that start before the rest of the system. They start after the boot has
// emptied /tmp, where systemd before 255 (Debian 12) prepares PrivateDevices=: an earlier start may fail with
// 226/NAMESPACE. PrivateTmp= implies the order. And a command that the boot waits for has a deadline, which systemd
// gives to no oneshot by itself.
func requireEarlyStart(t *testing.T, name, unit string) {
	t.Helper()
	if !strings.Contains(unit, "\nDefaultDependencies=no\n") {
		return
	}
	if !strings.Contains(unit, "\nPrivateTmp=yes\n") {
		require.Regexp(t, `(?m)^After=.*\bsystemd-tmpfiles-setup\.service\b`, unit, name)
	}
	if strings.Contains(unit, "\nType=oneshot\n") {
		require.Contains(t, unit, "\nTimeoutStartSec=", name)
	}
}

func TestUnitsAreValidAndConfined(t *testing.T) {
	t.Parallel()
	bin := tool(t, "systemd-analyze")
	dir := t.TempDir()
	out, err := Render(input())
	require.NoError(t, err)
	written, _ := read(t, out.UserData)
	var units []string
	for path, f := range written {
		if filepath.Dir(path) != "/etc/systemd/system" {
			continue
		}
		// The programs are missing on this machine; their paths are not checked here.
		content := strings.NewReplacer("/usr/local/bin/prego-agent", "/bin/true", "/usr/sbin/nft", "/bin/true").Replace(f.Content)
		name := filepath.Join(dir, filepath.Base(path))
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		requireEarlyStart(t, path, f.Content)
		units = append(units, name)
	}
	require.Len(t, units, 12)
	const agents = "../../agent/rooted/units" // written by "prego-agent prepare"
	entries, err := os.ReadDir(agents)
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() { // an extension of another unit
			continue
		}
		b, err := os.ReadFile(filepath.Join(agents, e.Name()))
		require.NoError(t, err)
		requireEarlyStart(t, e.Name(), string(b))
		name := filepath.Join(dir, e.Name())
		require.NoError(t, os.WriteFile(name, []byte(strings.NewReplacer("/usr/local/bin/prego-agent", "/bin/true", "/var/lib/prego/updater", "/bin/true").Replace(string(b))), 0o600))
		units = append(units, name)
	}
	verify := func(unit string) (fine bool, text string) {
		cmd := exec.Command(bin, "verify", "--recursive-errors=no", unit)
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
		out, err := cmd.CombinedOutput()
		// By some versions typos are only mentioned.
		return err == nil && !strings.Contains(string(out), filepath.Base(unit)+":"), string(out)
	}
	for _, u := range units {
		fine, text := verify(u)
		require.True(t, fine, text)
	}
	typo := filepath.Join(dir, "typo.service")
	require.NoError(t, os.WriteFile(typo, []byte("[Service]\nExecStart=/bin/true\nRestrat=always\n"), 0o600))
	fine, text := verify(typo)
	require.False(t, fine, "the check can fail")
	require.Contains(t, text, "Restrat")
	for unit, threshold := range map[string]string{"prego-agent.service": "20", "prego-agent-exec.service": "20", "prego-agent-bench.service": "20", "prego-agent-prepare.service": "35", "prego-agent-bootstrap.service": "35", "prego-firewall.service": "60", "prego-agent-devices.service": "60"} {
		text, err := exec.Command(bin, "security", "--offline=yes", "--threshold="+threshold, filepath.Join(dir, unit)).CombinedOutput()
		require.NoError(t, err, "%s: %s", unit, text)
	}
}
