package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/app"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/keyset"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/workflows"
)

// devFlags are the flags of `prego-lab dev`.
type devFlags struct {
	demo, exit, reset, docker                              bool
	dir, agent, cloud, hosts, machines                     string
	apiPort, gwPort, temporalPort, uiPort, pgPort, simPort int
	dnsPort, acmePort, storagePort                         int
}

// standIn is the image that hosts with real engines run in place of all others, "" if
// engines are simulated.
func (f devFlags) standIn() string {
	switch {
	case f.hosts == "machine":
		return sim.RegistryName + "/" + sim.StandIn
	case f.docker:
		return sim.StandIn
	}
	return ""
}

func newDevCommand() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use: "dev", Short: "Run everything on this machine, with a simulated cloud", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDev(cmd.Context(), cmd.OutOrStdout(), f) },
	}
	f.add(cmd.Flags())
	return cmd
}

func (f *devFlags) add(fl *pflag.FlagSet) {
	fl.BoolVar(&f.demo, "demo", false, "provision one server of each role, a tenant of each plan, a fleet and process groups, and show each step and each kind of refusal")
	fl.BoolVar(&f.exit, "exit", false, "end after the demo, with its outcome as exit status")
	fl.BoolVar(&f.reset, "reset", false, "delete the data of earlier runs first")
	fl.StringVar(&f.dir, "data-dir", ".prego", "where data and logs are kept")
	fl.StringVar(&f.agent, "agent", "", "agent binary for hosts; empty takes prego-agent beside prego")
	fl.StringVar(&f.cloud, "cloud", "sim", "sim, or real for the Hetzner project of HCLOUD_TOKEN")
	fl.BoolVar(&f.docker, "docker", false, "give every simulated host a real dockerd (as root; docs/containers.md)")
	fl.StringVar(&f.hosts, "hosts", "process",
		"what simulated servers are: process, or machine for real Debians (as root; contributing/simulator.md)")
	fl.StringVar(&f.machines, "machines", ".prego/machines/current",
		"directory where make machines put the root file systems")
	fl.IntVar(&f.apiPort, "api-port", 8080, "port of the API")
	fl.IntVar(&f.gwPort, "gateway-port", 8444, "port of the agent gateway")
	fl.IntVar(&f.temporalPort, "temporal-port", 7233, "port of Temporal")
	fl.IntVar(&f.uiPort, "ui-port", 8233, "port of Temporal's UI")
	fl.IntVar(&f.pgPort, "postgres-port", 5433, "port of the private Postgres")
	fl.IntVar(&f.simPort, "sim-port", 8085, "port of the simulated cloud")
	fl.IntVar(&f.acmePort, "acme-port", 14000,
		"port of the ACME authority that issues certificates for sites; the next one is its management interface's")
	fl.IntVar(&f.storagePort, "storage-port", 9070,
		"port of the object storage that backups go to, and through which tenants move")
	fl.IntVar(&f.dnsPort, "dns-port", 8553, "port where the simulated cloud serves its DNS zones")
}

// newDemoCommand is dev --demo by another name.
func newDemoCommand() *cobra.Command {
	cmd := newDevCommand()
	cmd.Use, cmd.Short = "demo", "Run everything on this machine, and provision something of each kind"
	_ = cmd.Flags().Set("demo", "true")
	return cmd
}

// devZone is the zone of the simulated cloud that PREGO_SITE_DOMAIN's default is in.
const devZone = "prego.internal"

// stack are the processes of a development stack, in their start order.
type stack struct {
	f     devFlags
	dir   string
	self  string // this program
	prego string // the binary that it runs
	env   []string
	url   string // of the database
	out   io.Writer
	sites devSites
	// storage is the program of the object storage, "" if it is not here or hosts are no processes.
	storage string
	stored  chan struct{}          // closed when the object storage is in use; nil if it never will be
	died    chan *devstack.Process // processes that are not restarted
	client  *cli.Client            // of the API, as an operator

	mu       sync.Mutex
	procs    []*devstack.Process
	workerAt int               // the worker's place in procs
	replaced *devstack.Process // a worker that was stopped to get other settings
	stopping bool
}

func runDev(ctx context.Context, out io.Writer, f devFlags) (err error) {
	s := &stack{f: f, out: out, died: make(chan *devstack.Process, 16)}
	if err := s.prepare(); err != nil {
		return err
	}
	defer s.stop()
	if err := s.start(ctx, out); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	demoCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.stored != nil && s.storage == "" {
		go s.awaitStorage(demoCtx)
	}
	d := newDemo(demoCtx, out, s.client)
	d.cloud = cli.NewClient(fmt.Sprintf("http://127.0.0.1:%d", f.simPort), "")
	d.sites, d.stored, d.caller = s.sites, s.stored, s.caller
	if f.demo {
		done := make(chan error, 1)
		go func() {
			if f.hosts == "machine" {
				done <- d.machines()
				return
			}
			done <- d.play(f.standIn())
		}()
		select {
		case err = <-done:
		case p := <-s.died:
			return p.Err()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	apiURL, tokenFile := s.client.Base, s.tokenFile()
	fmt.Fprintf(out, "\nAPI          %s\nAPI docs     %s/docs\nTemporal UI  http://127.0.0.1:%d/namespaces/default/workflows?query=kind+IS+NULL\n", apiURL, apiURL, f.uiPort)
	if err := s.console(ctx); err != nil {
		return err
	}
	if d.customer != nil {
		link, err := s.link(ctx, d.customer)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "Customer     %s (the console as the owner of the org acme sees it; once, within 5 minutes)\n", link)
	}
	if f.cloud == "sim" {
		fmt.Fprintf(out, "Cloud        http://127.0.0.1:%d/v1 (simulated; its bill: http://127.0.0.1:%d/_sim/ledger?open=true)\n", f.simPort, f.simPort)
	}
	if s.sites.missing == "" {
		fmt.Fprintf(out, "DNS          %s (simulated: %s)\nSites        https://SLUG.sites.%s, with the roots in %s\n",
			s.sites.dns, devZone, devZone, s.sites.roots)
	}
	fmt.Fprintf(out, "Logs         %s\nToken        %s (role operator, 8 hours)\n\n  export PREGO_TOKEN_FILE=%s PREGO_API_URL=%s\n  %s server list\n",
		filepath.Join(s.dir, "log"), tokenFile, tokenFile, apiURL, s.prego)
	if f.demo && f.exit {
		return err
	}
	if err != nil {
		fmt.Fprintln(out, "\nThe demo did not go as it should:", err)
	}
	fmt.Fprintln(out, "\nCtrl-C stops everything; the data stays.")
	if f.demo && err == nil && d.moveLater {
		go d.moveWhenStored()
	}
	select {
	case <-ctx.Done():
		return nil
	case p := <-s.died:
		return p.Err()
	}
}

// console prints a link to the console that logs in once.
func (s *stack) console(ctx context.Context) error {
	link, err := s.link(ctx, s.client)
	if err == nil {
		fmt.Fprintf(s.out, "Console      %s (logs in once, within 5 minutes; another link: %s console)\n", link, s.prego)
	}
	return err
}

// link is a link to the console that logs a caller in once.
func (s *stack) link(ctx context.Context, c *cli.Client) (string, error) {
	var l api.ConsoleLogin
	err := c.Do(ctx, http.MethodPost, "/v1/console-logins", nil, nil, &l)
	return c.Base + l.Path, err
}

func (s *stack) tokenFile() string { return filepath.Join(s.dir, "operator.token") }

// prepare checks what can be checked before anything is started.
func (s *stack) prepare() error {
	f := s.f
	if f.cloud != "sim" && f.cloud != "real" {
		return fmt.Errorf("--cloud must be sim or real, not %q", f.cloud)
	}
	if f.cloud == "real" && (os.Getenv("HCLOUD_TOKEN") == "" || os.Getenv("PREGO_AGENTGW_URL") == "" ||
		os.Getenv("PREGO_EGRESS_CIDRS") == "") {
		return errors.New("--cloud real needs HCLOUD_TOKEN, PREGO_AGENTGW_URL (how hosts reach this machine's gateway) and PREGO_EGRESS_CIDRS (where this machine calls from)")
	}
	if f.hosts != "process" && f.hosts != "machine" {
		return fmt.Errorf("--hosts must be process or machine, not %q", f.hosts)
	}
	if f.docker {
		if err := dockerPossible(f.cloud); err != nil {
			return err
		}
	}
	var err error
	if s.dir, err = filepath.Abs(f.dir); err != nil {
		return err
	}
	if s.self, err = os.Executable(); err != nil {
		return err
	}
	if s.prego, err = findPrego(filepath.Dir(s.self)); err != nil {
		return err
	}
	s.findSites()
	for _, p := range s.ports() {
		if p.skip {
			continue
		}
		if err := devstack.PortFree(p.port, p.flag, p.what); err != nil {
			return err
		}
	}
	if f.reset {
		for _, d := range []string{
			"postgres", "postgres.log", "temporal.db", "temporal.db-wal", "temporal.db-shm",
			"sim", "objects", "pebble", "acme-roots.pem", "log", "keys", "keys-api", "keys-agentgw", "keys-worker",
			"master.key", "operator.token",
		} {
			if err := os.RemoveAll(filepath.Join(s.dir, d)); err != nil {
				return err
			}
		}
		if err := devstack.RemovePostgres(filepath.Join(s.dir, "postgres")); err != nil {
			return err
		}
	}
	return os.MkdirAll(s.dir, 0o755)
}

// listener is a port that something here listens on.
type listener struct {
	port       int
	flag, what string
	skip       bool // it is not started
}

// Beside the gateway's port are those of what people don't call.
func (f devFlags) gatewayMetrics() int { return f.gwPort + 10000 }
func (f devFlags) workerMetrics() int  { return f.gwPort + 10001 }
func (f devFlags) relayPort() int      { return f.gwPort + 10002 }
func (f devFlags) apiMetrics() int     { return f.gwPort + 10003 }

// ports lists every port that is needed here.
func (s *stack) ports() []listener {
	f := s.f
	return []listener{
		{f.apiPort, "--api-port", "the API", false},
		{f.gwPort, "--gateway-port", "the agent gateway", false},
		{f.temporalPort, "--temporal-port", "Temporal", false},
		{f.uiPort, "--ui-port", "Temporal's UI", false},
		{f.pgPort, "--postgres-port", "Postgres", os.Getenv("DATABASE_URL") != ""},
		{f.simPort, "--sim-port", "the simulated cloud", f.cloud != "sim"},
		{f.dnsPort, "--dns-port", "the simulated cloud's DNS", f.cloud != "sim"},
		{f.acmePort, "--acme-port", "the ACME authority", s.sites.missing != ""},
		{f.acmePort + 1, "--acme-port", "the ACME authority's management", s.sites.missing != ""},
		{f.storagePort, "--storage-port", "object storage", s.stored == nil},
		{f.gatewayMetrics(), "--gateway-port", "the gateway's metrics", false},
		{f.workerMetrics(), "--gateway-port", "the worker's metrics", false},
		{f.relayPort(), "--gateway-port", "the worker's relay", false},
		{f.apiMetrics(), "--gateway-port", "the API's metrics", false},
	}
}

func (s *stack) log(name string) string { return filepath.Join(s.dir, "log", name+".log") }

func (s *stack) keep(p *devstack.Process) {
	s.mu.Lock()
	s.procs = append(s.procs, p)
	s.mu.Unlock()
	go func() {
		<-p.Done()
		s.died <- p
	}()
}

const (
	// restarts bounds the restarts of one of our own processes: a process that dies right after its start would restart
	// forever.
	restarts = 20
	// restartAfter gives time to notice that everything stops: Ctrl-C reaches children and parent together.
	restartAfter = time.Second
)

// keepUp is keep for our own processes, which again restarts when they die, as in production. It is called with s.mu
// locked.
func (s *stack) keepUp(out io.Writer, p *devstack.Process, again func() (*devstack.Process, error)) {
	s.mu.Lock()
	at := len(s.procs)
	s.procs = append(s.procs, p)
	s.mu.Unlock()
	go func() {
		for n := 1; ; n++ {
			<-p.Done()
			time.Sleep(restartAfter)
			s.mu.Lock()
			stopping := s.stopping
			if stopping || n > restarts {
				s.mu.Unlock()
				s.died <- p
				return
			}
			if p != s.replaced {
				fmt.Fprintf(out, "\nstarted again: %v\n", p.Err())
			}
			next, err := again()
			if err == nil {
				p, s.procs[at] = next, next
			}
			s.mu.Unlock()
			if err != nil {
				s.died <- p
				return
			}
		}
	}()
}

// stop stops the processes in the reverse order of their start.
func (s *stack) stop() {
	s.mu.Lock()
	s.stopping = true
	procs := slices.Clone(s.procs)
	s.mu.Unlock()
	for _, p := range slices.Backward(procs) {
		p.Stop(25 * time.Second)
	}
}

func (s *stack) start(ctx context.Context, out io.Writer) error {
	began := time.Now()
	say := func(what string) { fmt.Fprintf(out, "%8.2fs  %s\n", time.Since(began).Seconds(), what) }
	url := os.Getenv("DATABASE_URL")
	// Programs that get this process's environment, such as databases, use no secret of it.
	s.env = os.Environ()
	for _, k := range config.Secrets() {
		if err := errors.Join(os.Unsetenv(k), os.Unsetenv(k+"_FILE")); err != nil {
			return err
		}
	}
	if url == "" {
		pg, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{
			Dir:  filepath.Join(s.dir, "postgres"),
			Port: s.f.pgPort, LogFile: s.log("postgres"),
		})
		if err != nil {
			return err
		}
		s.keep(pg.Process)
		if err := pg.EnsureDatabase(ctx, "prego"); err != nil {
			return err
		}
		url = pg.URL("prego")
		say("postgres is ready (" + pg.Dir + ")")
	}
	binary, err := devstack.FindTemporal(filepath.Join(s.dir, "bin"), filepath.Dir(s.self), ".prego/bin")
	if err != nil {
		return err
	}
	t, err := devstack.StartTemporal(ctx, devstack.TemporalConfig{
		Binary: binary, Dir: s.dir, Port: s.f.temporalPort, UIPort: s.f.uiPort, LogFile: s.log("temporal"),
		Keywords: workflows.SearchAttributes(),
	})
	if err != nil {
		return err
	}
	s.keep(t.Process)
	say("temporal is ready")
	if err := s.environment(url); err != nil {
		return err
	}
	s.url = url
	if err := migrations.Up(ctx, url); err != nil {
		return err
	}
	if err := s.authorize(ctx); err != nil {
		return err
	}
	say("database is migrated")
	if s.f.cloud == "sim" {
		var programs []string
		if s.sites.missing == "" {
			programs = []string{"--program", "caddy=" + s.sites.caddy, "--program", "haproxy=" + s.sites.haproxy}
		}
		if err := s.child(ctx, "sim", fmt.Sprintf("http://127.0.0.1:%d/_sim/faults", s.f.simPort),
			append(programs, "--listen", "127.0.0.1:"+strconv.Itoa(s.f.simPort), "--state-dir",
				filepath.Join(s.dir, "sim"), "--docker="+strconv.FormatBool(s.f.docker),
				"--hosts", s.f.hosts, "--machines", s.f.machines, "--dns", "127.0.0.1:"+strconv.Itoa(s.f.dnsPort),
				"--zone", devZone,
				"--loopback-networks="+strconv.FormatBool(s.f.hosts == "process"))...); err != nil {
			return err
		}
		if s.f.hosts == "machine" {
			if err := s.meetMachines(ctx); err != nil {
				return err
			}
		}
		say("simulated cloud is ready")
	}
	if s.sites.missing == "" {
		if err := s.startAuthority(ctx); err != nil {
			return err
		}
		say("certificate authority is ready")
	}
	switch {
	case s.storage != "":
		if err := s.startStorage(ctx); err != nil {
			return err
		}
		close(s.stored)
		say("object storage is ready")
	case s.stored != nil:
		say("object storage is not installed yet; backups and moves start with it (make versitygw)")
	}
	for _, c := range []struct {
		name string
		port int
	}{{"api", s.f.apiPort}, {"agentgw", s.f.gatewayMetrics()}, {"worker", s.f.workerMetrics()}} {
		if err := s.child(ctx, c.name, readyURL(c.port)); err != nil {
			return err
		}
		say(c.name + " is ready")
		if c.name == "api" {
			if err := s.console(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func readyURL(port int) string { return fmt.Sprintf("http://127.0.0.1:%d/readyz", port) }

// environment is the configuration of the project's own processes.
func (s *stack) environment(databaseURL string) error {
	keys := filepath.Join(s.dir, "keys")
	if err := errors.Join(pki.Init(keys, "demo"), token.InitKeys(keys)); err != nil {
		return err
	}
	master, err := secret(filepath.Join(s.dir, "master.key"))
	if err != nil {
		return err
	}
	agent := s.f.agent
	if agent == "" {
		agent = builtWith(filepath.Dir(s.prego), "prego-agent")
	}
	set := map[string]string{
		"PREGO_ENV": "demo", "PREGO_KEYS_DIR": keys, "PREGO_MASTER_KEY": master, "DATABASE_URL": databaseURL,
		"TEMPORAL_ADDRESS":     "127.0.0.1:" + strconv.Itoa(s.f.temporalPort),
		"TEMPORAL_UI_URL":      "http://127.0.0.1:" + strconv.Itoa(s.f.uiPort),
		"PREGO_API_LISTEN":     "127.0.0.1:" + strconv.Itoa(s.f.apiPort),
		"PREGO_API_PUBLIC_URL": "http://127.0.0.1:" + strconv.Itoa(s.f.apiPort),
		"PREGO_AGENTGW_LISTEN": "127.0.0.1:" + strconv.Itoa(s.f.gwPort),
		"PREGO_AGENTGW_URL":    "https://127.0.0.1:" + strconv.Itoa(s.f.gwPort), "PREGO_AGENTGW_AGENT_BINARY": agent,
		"PREGO_RELAY_LISTEN": "127.0.0.1:" + strconv.Itoa(s.f.relayPort()),
		"PREGO_RELAY_URL":    "https://127.0.0.1:" + strconv.Itoa(s.f.relayPort()),
	}
	if s.f.cloud == "sim" {
		maps.Copy(set, map[string]string{
			"HCLOUD_ENDPOINT": "http://127.0.0.1:" + strconv.Itoa(s.f.simPort) + "/v1", "HCLOUD_TOKEN": "simulated", "PREGO_SIMULATED": "true",
			"PREGO_DNS_ZONE": devZone, "PREGO_DNS_RESOLVERS": "127.0.0.1:" + strconv.Itoa(s.f.dnsPort), "PREGO_DNS_AUTHORITATIVE": "false",
			"PREGO_EGRESS_CIDRS": "127.0.0.1/32", "PREGO_AGENT_PORT": "8443",
			// A demo shows in a minute what takes four.
			"PREGO_PACE": cmp.Or(os.Getenv("PREGO_PACE"), "0.25"),
			// Simulated hosts measure this machine, whose other work says nothing about
			// them.
			"PLACEMENT_CPU_PCT_MAX": "0", "PLACEMENT_DB_DISK_PCT_MAX": "0",
		})
		if s.f.hosts == "process" {
			set["PREGO_NETWORK_RANGE"] = devstack.LoopbackRange(s.dir)
		}
		if image := s.f.standIn(); image != "" {
			if set["PREGO_STACK_FILE"], err = standInStack(s.dir, image); err != nil {
				return err
			}
		}
	} else {
		set["PREGO_AGENTGW_LISTEN"] = "0.0.0.0:" + strconv.Itoa(s.f.gwPort)
		set["PREGO_AGENTGW_URL"] = os.Getenv("PREGO_AGENTGW_URL")
	}
	return s.set(set)
}

// set adds to the configuration of our own processes.
func (s *stack) set(vars map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range vars {
		s.env = append(s.env, k+"="+v)
		if slices.Contains(config.Secrets(), k) {
			continue
		}
		if err := os.Setenv(k, v); err != nil { // for the tokens that this process issues
			return err
		}
	}
	return nil
}

// meetMachines lets the gateway and the machines reach each other on the bridge of the
// simulated cloud.
func (s *stack) meetMachines(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d/_sim/network", s.f.simPort), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("simulated network: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var network sim.NetworkInfo
	if err := json.NewDecoder(resp.Body).Decode(&network); err != nil {
		return fmt.Errorf("simulated network: %w", err)
	}
	gateway := net.JoinHostPort(network.Gateway, strconv.Itoa(s.f.gwPort))
	return s.set(map[string]string{
		"PREGO_AGENTGW_LISTEN": gateway, "PREGO_AGENTGW_URL": "https://" + gateway,
		"PREGO_EGRESS_CIDRS": network.Gateway + "/32",
	})
}

// findPrego finds the program whose processes are run: the one beside this program, or else the one on PATH.
func findPrego(dir string) (string, error) {
	for _, name := range []string{builtWith(dir, "prego"), "prego"} {
		if p, err := exec.LookPath(name); err == nil {
			return filepath.Abs(p)
		}
	}
	return "", fmt.Errorf("there is no prego in %s, where this program is, and none on PATH: make build, or chmod +x its release file", dir)
}

// builtWith is a program in a directory, which may have the name of its release file there.
func builtWith(dir, name string) string {
	file := filepath.Join(dir, name)
	if p, err := exec.LookPath(file + "-linux-" + runtime.GOARCH); err == nil {
		return p
	}
	return file
}

// child starts one of our own processes and waits until it is ready.
func (s *stack) child(ctx context.Context, name, ready string, args ...string) error {
	program, own := s.self, []string(nil)
	if slices.Contains(keyset.Processes(), name) { // each gets its own, as in production
		keys := filepath.Join(s.dir, "keys-"+name)
		if err := keyset.Share(filepath.Join(s.dir, "keys"), name, keys, -1); err != nil {
			return err
		}
		program, own = s.prego, []string{"PREGO_KEYS_DIR=" + keys}
	}
	switch name {
	case "api":
		own = append(own, "PREGO_METRICS_LISTEN=127.0.0.1:"+strconv.Itoa(s.f.apiMetrics()))
	case "agentgw":
		own = append(own, "PREGO_METRICS_LISTEN=127.0.0.1:"+strconv.Itoa(s.f.gatewayMetrics()))
	case "worker":
		own = append(own, "PREGO_METRICS_LISTEN=127.0.0.1:"+strconv.Itoa(s.f.workerMetrics()))
		s.workerAt = len(s.procs)
	}
	launch := func() (*devstack.Process, error) {
		return devstack.Start(devstack.Spec{
			Name: name, Path: program, Args: append([]string{name}, args...),
			Env: append(childEnvironment(name, s.env), own...), LogFile: s.log(name),
		})
	}
	p, err := launch()
	if err != nil {
		return err
	}
	s.keepUp(s.out, p, launch)
	return p.AwaitHTTP(ctx, ready, 60*time.Second)
}

// caller is a client of the API with an access role on an org, "" for the installation.
func (s *stack) caller(ctx context.Context, name, role string, org prego.OrgID) (*cli.Client, error) {
	token, err := app.NewToken(ctx, config.Config{DatabaseURL: s.url}, name, role, org, 8*time.Hour)
	return cli.NewClient("http://127.0.0.1:"+strconv.Itoa(s.f.apiPort), token), err
}

// authorize makes a client of the API, and leaves its token in a file.
func (s *stack) authorize(ctx context.Context) (err error) {
	s.client, err = s.caller(ctx, "demo-operator", "operator", "")
	return errors.Join(err, os.WriteFile(s.tokenFile(), []byte(s.client.Token+"\n"), 0o600))
}

// secret reads 32 random bytes as hex from a file, creating it the first time.
func secret(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err == nil {
		return string(b), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var raw [32]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", err
	}
	out := hex.EncodeToString(raw[:])
	return out, os.WriteFile(file, []byte(out), 0o600)
}
