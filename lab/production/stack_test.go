package production

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/sim"
)

// replicas are how many of a service there are: of our own processes two each, since one
// of each is killed at a time.
func replicas(service string) int {
	switch service {
	case "api", "agentgw", "worker":
		return 2
	}
	return 1
}

// stack is a running installation.
type stack struct {
	t       *testing.T
	repo    string
	dir     string
	secrets string
	file    composeFile
	id      string // of this run, in names of the kernel's things
	nets    []string
	image   string // our own image, as a directory
	env     []string
	entry   words
	bin     string
	sim     *sim.Sim
	real    string // directory of Temporal's server; "" where the dev server stands in

	mu    sync.Mutex
	boxes map[string]*box // by name of the replica
}

const (
	subnet = "10.213." // and one octet for the network, one for the container
	// gateway is the address that hosts call: in front of all gateways, as a balancer of
	// connections that keeps their source.
	gateway = "10.213.250.1"
)

// command runs a program of the host.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

func newStack(t *testing.T) *stack {
	t.Helper()
	repo, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("/var/tmp", "prego-production-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	var raw [2]byte
	_, _ = rand.Read(raw[:])
	s := &stack{t: t, repo: repo, dir: dir, id: "pp" + hex.EncodeToString(raw[:]), secrets: filepath.Join(dir, "secrets"), boxes: map[string]*box{}}
	t.Cleanup(func() {
		if t.Failed() {
			s.showLogs()
		}
		_ = os.RemoveAll(dir)
	})
	s.env, s.entry, _ = dockerfile(t, repo)
	s.buildImage()
	s.real = os.Getenv("TEMPORAL_SERVER")
	return s
}

// buildImage builds the programs and lays out the image as tools/image.sh does.
func (s *stack) buildImage() {
	s.bin, s.image = filepath.Join(s.repo, "bin"), filepath.Join(s.dir, "image")
	command(s.t, filepath.Join(s.repo, "tools", "image-context.sh"), s.image)
}

// settings make the stack small and quick; the others are as declared.
const settings = `
PREGO_SIMULATED=true
PREGO_PACE=0.1
PREGO_AGENT_PORT=8443
PREGO_AGENTGW_HEARTBEAT=1s
PREGO_DEGRADED_AFTER=60s
PREGO_FAILED_AFTER=5m
PREGO_SHARED_PLACEMENT_LEGACY=yes
PREGO_RECONCILE_EVERY=5s
PREGO_SITE_DOMAIN=sites.test
PREGO_API_RATE_PER_SECOND=500
`

// configure follows docs/production.md: secrets, .env, settings.
func (s *stack) configure() {
	t := s.t
	require.NoError(t, os.MkdirAll(s.secrets, 0o700))
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	token := hex.EncodeToString(raw[:])
	require.NoError(t, os.WriteFile(filepath.Join(s.secrets, "hcloud_token"), []byte(token+"\n"), 0o440))
	require.NoError(t, os.Chown(filepath.Join(s.secrets, "hcloud_token"), -1, 65532))
	var err error
	s.sim, err = sim.New(sim.Config{
		Listen: subnet + "2.1:0", StateDir: filepath.Join(s.dir, "sim"), Token: token, RatePerHour: 360_000, AgentPort: 8443, DockerPort: 2376, LoopbackNetworks: true,
		Profile: sim.Profile{Action: 50 * time.Millisecond, Boot: 200 * time.Millisecond, Restart: 200 * time.Millisecond},
	})
	require.NoError(t, err)
	require.NoError(t, s.sim.Start())
	t.Cleanup(s.sim.Close)
	base, err := os.ReadFile(filepath.Join(s.repo, "deploy", "settings.env"))
	require.NoError(t, err)
	file := filepath.Join(s.dir, "settings.env")
	require.NoError(t, os.WriteFile(file, []byte(string(base)+settings+"HCLOUD_ENDPOINT="+s.sim.URL()+"\nPREGO_NETWORK_RANGE="+devstack.LoopbackRange(s.dir)+"\n"), 0o600))

	example, err := os.ReadFile(filepath.Join(s.repo, "deploy", "example.env"))
	require.NoError(t, err)
	env := string(example)
	for name, value := range map[string]string{
		"PREGO_AGENTGW_URL": "https://" + gateway + ":8443", "PREGO_EGRESS_CIDRS": subnet + "2.0/24",
	} {
		lines := strings.Split(env, "\n")
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+"=") })
		require.GreaterOrEqual(t, i, 0, "deploy/example.env lacks %s", name)
		lines[i] = name + "=" + value
		env = strings.Join(lines, "\n")
	}
	env += "\nPREGO_SETTINGS=" + file + "\nPREGO_SECRETS=" + s.secrets + "\n"
	dotenv := filepath.Join(s.dir, ".env")
	require.NoError(t, os.WriteFile(dotenv, []byte(env), 0o600))

	cmd := exec.CommandContext(t.Context(), filepath.Join(s.repo, "deploy", "secrets.sh"))
	cmd.Env = append(os.Environ(), "PREGO_SECRETS="+s.secrets, "PREGO_ENV=prod", "PREGO="+filepath.Join(s.bin, "prego"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	// As after a change of the master key, and where there is an adviser.
	for _, name := range []string{"master_key_earlier", "adviser_token"} {
		file := filepath.Join(s.secrets, name)
		_, _ = rand.Read(raw[:])
		require.NoError(t, os.Chmod(file, 0o640))
		require.NoError(t, os.WriteFile(file, []byte(strings.Repeat(hex.EncodeToString(raw[:]), 2)+"\n"), 0o440))
	}
	s.file = render(t, s.repo, dotenv)
}

// network numbers: database, edge and temporal, in the order of their names.
func (s *stack) octet(network string) int {
	return 1 + slices.Index(slices.Sorted(maps.Keys(s.file.Networks)), network)
}

// address is a replica's in a network.
func (s *stack) address(network, service string, n int) string {
	return fmt.Sprintf("%s%d.%d", subnet, s.octet(network), 10+10*slices.Index(slices.Sorted(maps.Keys(s.file.Services)), service)+n)
}

// bridge makes the network that leads out; the others follow once the file is known.
func (s *stack) bridge(octet int) {
	name := fmt.Sprintf("%sn%d", s.id, octet)
	command(s.t, "ip", "link", "add", name, "type", "bridge")
	s.nets = append(s.nets, name)
	s.t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
	command(s.t, "ip", "addr", "add", fmt.Sprintf("%s%d.1/24", subnet, octet), "dev", name)
	command(s.t, "ip", "link", "set", name, "up")
	// Simulated hosts are on loopback: from a container they are reached through its host.
	command(s.t, "sysctl", "-qw", "net.ipv4.conf."+name+".route_localnet=1")
}

// connect makes a replica's network namespace, joined to the networks that it declares.
func (s *stack) connect(service string, n int) (file string) {
	ns := fmt.Sprintf("%s%s%d", s.id, service, n)
	command(s.t, "ip", "netns", "add", ns)
	s.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	command(s.t, "ip", "-n", ns, "link", "set", "lo", "up")
	for _, network := range slices.Sorted(maps.Keys(s.file.Services[service].Networks)) {
		octet := s.octet(network)
		outside, inside := fmt.Sprintf("%s%x%d%d", s.id, slices.Index(slices.Sorted(maps.Keys(s.file.Services)), service), n, octet), "e"+network
		command(s.t, "ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", ns)
		command(s.t, "ip", "link", "set", outside, "master", fmt.Sprintf("%sn%d", s.id, octet), "up")
		command(s.t, "ip", "-n", ns, "addr", "add", s.address(network, service, n)+"/24", "dev", inside)
		command(s.t, "ip", "-n", ns, "link", "set", inside, "up")
		if s.file.Networks[network].Internal {
			continue
		}
		out := fmt.Sprintf("%s%d.1", subnet, octet)
		command(s.t, "ip", "-n", ns, "route", "add", "default", "via", out)
		command(s.t, "ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv4.conf."+inside+".route_localnet=1")
		command(s.t, "ip", "-n", ns, "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local")
		command(s.t, "ip", "-n", ns, "route", "add", "127.0.0.0/8", "via", out, "dev", inside, "src", s.address(network, service, n))
	}
	return "/run/netns/" + ns
}

// hosts are the names that a service can resolve: of services that share a network with it.
func (s *stack) hosts(service string, n int) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n")
	for _, network := range slices.Sorted(maps.Keys(s.file.Services[service].Networks)) {
		for _, other := range slices.Sorted(maps.Keys(s.file.Services)) {
			if _, ok := s.file.Services[other].Networks[network]; !ok {
				continue
			}
			for i := range replicas(other) {
				fmt.Fprintf(&b, "%s %s\n", s.address(network, other, i), other)
			}
		}
	}
	fmt.Fprintf(&b, "%s %s-%d\n", "127.0.0.1", service, n)
	return b.String()
}

// boxed is a service as it is declared.
func (s *stack) boxed(name string, n int) boxed {
	t, d := s.t, s.file.Services[name]
	require.True(t, d.ReadOnly && slices.Equal(d.CapDrop, []string{"ALL"}) && slices.Equal(d.SecurityOpt, []string{"no-new-privileges:true"}), "%s is not hardened", name)
	b := boxed{Name: fmt.Sprintf("%s-%d", name, n), Lower: s.image, Tmpfs: d.Tmpfs, Files: map[string]string{"/etc/hosts": s.hosts(name, n), "/etc/resolv.conf": ""}}
	b.Scratch, b.Netns = filepath.Join(s.dir, "containers", b.Name), fmt.Sprintf("/run/netns/%s%s%d", s.id, name, n)
	uid, gid, ok := strings.Cut(d.User, ":")
	require.True(t, ok, "%s: user %q", name, d.User)
	var err error
	b.UID, err = strconv.Atoi(uid)
	require.NoError(t, err)
	b.GID, err = strconv.Atoi(gid)
	require.NoError(t, err)
	for _, g := range d.GroupAdd {
		id, err := strconv.Atoi(g)
		require.NoError(t, err)
		b.Groups = append(b.Groups, id)
	}
	env := map[string]string{"HOSTNAME": b.Name}
	if strings.HasPrefix(d.Image, "prego:") {
		b.Args = append(slices.Clone(s.entry), d.Command...)
		env["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		for _, v := range s.env {
			k, v, _ := strings.Cut(v, "=")
			env[k] = v
		}
	} else {
		s.standIn(name, d, &b, env)
	}
	for k, v := range d.Environment {
		if v != nil {
			env[k] = *v
		}
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		b.Env = append(b.Env, k+"="+env[k])
	}
	for _, secret := range d.Secrets {
		b.Binds = append(b.Binds, bind{Source: s.file.Secrets[string(secret)].File, Target: "/run/secrets/" + string(secret), ReadOnly: true})
	}
	for _, v := range d.Volumes {
		source := v.Source
		if v.Volume { // Docker makes it, with the owner that the image's directory has
			source = filepath.Join(s.dir, "volumes", v.Source)
			require.NoError(t, os.MkdirAll(source, 0o700))
			require.NoError(t, os.Chown(source, b.UID, b.GID))
		}
		b.Binds = append(b.Binds, bind{Source: source, Target: v.Target, ReadOnly: v.ReadOnly})
	}
	return b
}

// standInPrograms is where containers find the programs that stand in for an image's.
const standInPrograms = "/opt/stand-in"

// standIn is for an image that can't be had here: the same program, as it is installed on this machine. What this
// repository brings or builds is mounted, because its place may be a home that the container's user can't enter:
// programs are built once for all checkouts, in a cache.
func (s *stack) standIn(name string, d service, b *boxed, env map[string]string) {
	t := s.t
	b.Lower = "/"
	mount := func(source, target string) {
		source, err := filepath.EvalSymlinks(source)
		require.NoError(t, err)
		b.Binds = append(b.Binds, bind{Source: source, Target: target, ReadOnly: true})
	}
	server := filepath.Join(standInPrograms, "server")
	temporal := func() { // the command line, and the server if it is built
		mount(filepath.Join(s.repo, ".prego", "bin", "temporal"), filepath.Join(standInPrograms, "temporal"))
		if s.real != "" {
			mount(s.real, server)
		}
	}
	env["PATH"] = server + ":" + standInPrograms + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	b.Args = append(slices.Clone(d.Entrypoint), d.Command...)
	image, _, _ := strings.Cut(d.Image, ":")
	switch image {
	case "postgres":
		b.Files["/etc/passwd"] = "root:x:0:0::/root:/bin/sh\npostgres:x:999:999::/var/lib/postgresql:/bin/bash\n"
		entrypoint := filepath.Join(standInPrograms, "postgres.sh")
		mount(filepath.Join(s.repo, "lab", "production", "testdata", "postgres.sh"), entrypoint)
		b.Args = append([]string{entrypoint}, d.Command...)
	case "temporalio/admin-tools":
		temporal()
	case "temporalio/server":
		temporal()
		if s.real != "" {
			b.Args = []string{"temporal-server", "start"}
			return
		}
		env["HOME"] = "/tmp"
		b.Args = strings.Fields("temporal server start-dev --headless --ip 0.0.0.0 --port 7233 --log-level warn --db-filename /tmp/temporal.db" +
			" --sqlite-pragma journal_mode=wal --sqlite-pragma synchronous=1")
		text, err := os.ReadFile(filepath.Join(s.repo, "deploy", "temporal", "dynamic.yaml"))
		require.NoError(t, err)
		var dynamic map[string][]struct{ Value any }
		require.NoError(t, yaml.Unmarshal(text, &dynamic))
		for _, key := range slices.Sorted(maps.Keys(dynamic)) {
			b.Args = append(b.Args, "--dynamic-config-value", fmt.Sprintf("%s=%v", key, dynamic[key][0].Value))
		}
	default:
		t.Fatalf("%s: nothing stands in for the image %s", name, d.Image)
	}
}

// absent is a service that can't be tried here.
func (s *stack) absent(name string) bool {
	return name == "temporal-ui" || (name == "temporal-schema" && s.real == "")
}

func (s *stack) logFile(name string) string { return filepath.Join(s.dir, name+".log") }

// start starts a replica in its namespace.
func (s *stack) start(b boxed) *box {
	s.t.Helper()
	x, err := startBox(b, s.logFile(b.Name))
	require.NoError(s.t, err)
	s.mu.Lock()
	s.boxes[b.Name] = x
	s.mu.Unlock()
	return x
}

func (s *stack) box(name string) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[name]
}

// healthy runs a container's own health check until it succeeds.
func (s *stack) healthy(service string, x *box) error {
	h := s.file.Services[service].Healthcheck
	if h.Disable || len(h.Test) == 0 {
		return nil
	}
	if h.Test[0] != "CMD" {
		return fmt.Errorf("%s: the health check needs a shell", service)
	}
	// What Compose would wait until it calls the container unhealthy.
	deadline := time.Now().Add(time.Duration(h.Start) + time.Duration(h.Retries)*time.Duration(h.Interval))
	for {
		said, err := x.exec(h.Test[1:])
		switch {
		case err == nil:
			return nil
		case !x.running():
			return fmt.Errorf("%s ended: %w%s", x.Name, x.err, tail(x.log))
		case time.Now().After(deadline):
			return fmt.Errorf("%s is not healthy: %s%s", x.Name, said, tail(x.log))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// up starts everything, each service when its dependencies are in their declared state.
func (s *stack) up() {
	t := s.t
	s.bridge(2) // the simulated cloud is there before the file names it
	s.configure()
	for _, network := range slices.Sorted(maps.Keys(s.file.Networks)) {
		if s.octet(network) != 2 {
			s.bridge(s.octet(network))
		} else {
			require.Equal(t, "edge", network)
		}
	}
	t.Cleanup(func() {
		for _, x := range s.boxes {
			x.kill()
		}
	})
	for name := range s.file.Services {
		if !s.absent(name) {
			for n := range replicas(name) {
				s.connect(name, n)
			}
		}
	}
	s.balance()
	began, met := time.Now(), map[string]string{}
	for len(met) < len(s.file.Services) {
		progress := false
		for _, name := range slices.Sorted(maps.Keys(s.file.Services)) {
			d := s.file.Services[name]
			if met[name] != "" {
				continue
			}
			ready := true
			for on, c := range d.DependsOn {
				ready = ready && (met[on] == c.Condition || (s.absent(on) && met[on] != ""))
			}
			if !ready {
				continue
			}
			progress = true
			if s.absent(name) {
				met[name] = "absent"
				t.Logf("%6.1fs  %s is not tried: nothing stands in for %s", time.Since(began).Seconds(), name, d.Image)
				continue
			}
			for n := range replicas(name) {
				x := s.start(s.boxed(name, n))
				if d.Restart == "no" {
					select {
					case <-x.done:
					case <-time.After(2 * time.Minute):
						t.Fatalf("%s does not end%s", name, tail(x.log))
					}
					require.NoError(t, x.err, "%s%s", name, tail(x.log))
					met[name] = "service_completed_successfully"
					continue
				}
				require.NoError(t, s.healthy(name, x))
				met[name] = "service_healthy"
			}
			t.Logf("%6.1fs  %s: %s", time.Since(began).Seconds(), name, met[name])
		}
		require.True(t, progress, "services wait for each other: %v of %d", met, len(s.file.Services))
	}
}

// balance leads connections to the gateway's address to the gateways that answer.
func (s *stack) balance() {
	t := s.t
	table := s.id
	command(t, "ip", "addr", "add", gateway+"/32", "dev", s.nets[0])
	command(t, "nft", "add", "table", "ip", table)
	t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "ip", table).Run() })
	command(t, "nft", "add", "chain", "ip", table, "out", "{ type nat hook output priority -100; }")
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var now string
		for {
			var alive []string
			for n := range replicas("agentgw") {
				if answers("http://" + s.address("edge", "agentgw", n) + ":9090/readyz") {
					alive = append(alive, fmt.Sprintf("%d : %s", len(alive), s.address("edge", "agentgw", n)))
				}
			}
			if next := strings.Join(alive, ", "); next != now {
				now = next
				rules := "flush chain ip " + table + " out\n"
				if next != "" {
					rules += fmt.Sprintf("add rule ip %s out ip daddr %s tcp dport 8443 dnat to numgen inc mod %d map { %s }\n", table, gateway, len(alive), next)
				}
				cmd := exec.Command("nft", "-f", "-")
				cmd.Stdin = strings.NewReader(rules)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("balancer: %v %s", err, out)
				}
			}
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { close(quit); <-ended })
}

func (s *stack) showLogs() {
	files, _ := filepath.Glob(filepath.Join(s.dir, "*.log"))
	for _, f := range files {
		s.t.Logf("--- %s%s", filepath.Base(f), tail(f))
	}
}

func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return ":\n  " + strings.Join(lines[max(0, len(lines)-15):], "\n  ")
}

// restart ends a replica with a signal and starts it again, according to its policy. It returns once the new one is
// healthy.
func (s *stack) restart(service string, n int, sig syscall.Signal) error {
	d := s.file.Services[service]
	x := s.box(fmt.Sprintf("%s-%d", service, n))
	began := time.Now()
	if err := x.signal(sig, time.Duration(d.StopGrace)); err != nil {
		return err
	}
	if sig == syscall.SIGTERM && x.err != nil {
		return fmt.Errorf("%s ends with %w after SIGTERM%s", x.Name, x.err, tail(x.log))
	}
	ended := time.Since(began)
	next := s.start(s.boxed(service, n))
	if err := s.healthy(service, next); err != nil {
		return err
	}
	s.t.Logf("%s: %s, ended after %s, healthy again after %s", x.Name, sig, ended.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return nil
}
