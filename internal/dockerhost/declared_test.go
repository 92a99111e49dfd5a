package dockerhost_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/server"
)

func static(t *testing.T, dir, pkg string) string {
	t.Helper()
	bin := filepath.Join(dir, filepath.Base(pkg))
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// declared is a host with the built-in stack, in the images that stand in for the
// official ones and are laid out like them, and the processes that run commands on it.
type declared struct {
	t       *testing.T
	root    string
	program string // the agent's
	engine  *engine
	host    *dockerhost.Host
	client  *client.Client
	port    int // where the frontend is published
}

// declaredImages is what "make images" builds.
const declaredImages = "../../.prego/images/current/images.tar"

func newDeclared(t *testing.T) *declared {
	t.Helper()
	needEngine(t)
	images, err := os.Open(declaredImages)
	if err != nil {
		need.Missing(t, declaredImages+" is missing: make images builds it")
	}
	defer func() { _ = images.Close() }()
	e, err := newEngine(`{"live-restore": true}`)
	require.NoError(t, err)
	t.Cleanup(e.close)
	d := &declared{t: t, root: filepath.Join(e.dir, "root"), engine: e}
	d.host = e.host(t)
	d.client, err = e.local()
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.client.Close() })
	loaded, err := d.client.ImageLoad(t.Context(), images)
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, loaded)
	require.NoError(t, loaded.Close())
	d.port = need.Port(t)
	d.program = static(t, e.dir, "../../cmd/prego-agent")
	b, err := json.Marshal(wire.HostConfig{ServerID: serverID, Environment: "test", GatewayServerName: "gateway", GatewayURL: "https://127.0.0.1:1", AgentPort: 1, DockerPort: 1, Role: "app"})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(d.at(wire.HostConfigPath)), 0o755))
	require.NoError(t, os.WriteFile(d.at(wire.HostConfigPath), b, 0o600))
	d.prepare()
	return d
}

func (d *declared) at(name string) string { return filepath.Join(d.root, name) }

func (d *declared) prepare() {
	d.t.Helper()
	out, err := exec.Command(d.program, "prepare", "--root", d.root).CombinedOutput()
	require.NoError(d.t, err, "%s", out)
}

// specs are the declared containers, less what this machine can't give: as many
// processors, one port for all tests, and the root directory for directories of the host.
func (d *declared) specs() []server.ContainerSpec {
	d.t.Helper()
	w := config.Worker{}
	stack, err := w.Stack()
	require.NoError(d.t, err)
	specs, err := stack.For(prego.RoleApp, map[string]string{"server_id": serverID, "role": "app", "bench_image": "frappe/erpnext:v15", "private_address": "127.0.0.1"}, func(name string) string {
		d.t.Errorf("the control plane made the secret %s", name)
		return ""
	})
	require.NoError(d.t, err)
	for i := range specs {
		specs[i].CPUs = 1
		for n, p := range specs[i].Ports {
			require.Equal(d.t, "127.0.0.1:8080:8080", p)
			specs[i].Ports[n] = fmt.Sprintf("127.0.0.1:%d:8080", d.port)
		}
		for n, v := range specs[i].Volumes {
			if strings.HasPrefix(v, "/") {
				specs[i].Volumes[n] = d.root + v
			}
		}
	}
	return specs
}

// start runs the agent's program until the test ends, or it is killed.
func (d *declared) start(verb string, args ...string) *exec.Cmd {
	d.t.Helper()
	cmd := exec.Command(d.program, append([]string{verb, "--root", d.root}, args...)...)
	pipe, err := cmd.StderrPipe()
	require.NoError(d.t, err)
	require.NoError(d.t, cmd.Start())
	d.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	log := bufio.NewScanner(pipe)
	require.True(d.t, log.Scan(), "%s ended", verb)
	require.Contains(d.t, log.Text(), "running")
	go func() {
		for log.Scan() {
		}
	}()
	return cmd
}

func (d *declared) startBench() *exec.Cmd {
	return d.start("bench", "--docker", "unix://"+filepath.Join(d.engine.dir, "sock"), "--lock", filepath.Join(d.engine.dir, "lock"))
}

type answer struct {
	status int
	code   string
	result wire.ExecResult
	detail string
}

// ask asks the process that runs commands, as the agent does.
func (d *declared) ask(in wire.ExecRequest) answer {
	in.ServerID = serverID
	if in.Kind == "" {
		in.Kind = wire.KindBench
	}
	b, err := json.Marshal(in)
	require.NoError(d.t, err)
	resp, err := d.caller().Post("http://exec"+wire.PathExec, "application/json", bytes.NewReader(b))
	if err != nil {
		return answer{detail: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	out := answer{status: resp.StatusCode}
	if resp.StatusCode == http.StatusOK {
		require.NoError(d.t, json.NewDecoder(resp.Body).Decode(&out.result))
		return out
	}
	var p wire.Problem
	require.NoError(d.t, json.NewDecoder(resp.Body).Decode(&p))
	out.code, out.detail = p.Code, p.Detail
	return out
}

func (d *declared) caller() *http.Client {
	return &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.at(wire.ExecSocket))
	}}}
}

// good asks for a verb that succeeds, and returns what it printed.
func (d *declared) good(args ...string) string {
	d.t.Helper()
	out := d.ask(wire.ExecRequest{Args: args})
	require.Equal(d.t, http.StatusOK, out.status, out.detail)
	require.Zero(d.t, out.result.ExitCode, "%q: %s", args, out.result.StderrTruncated)
	return strings.TrimSpace(out.result.StdoutTruncated)
}

// page requests a site from the frontend, as the edge does. Without an answer the status is 0 and the body says why:
// eventually calls it in a goroutine, where a failed test would end without a result.
func (d *declared) page(site string) (status int, body string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", d.port), nil)
	require.NoError(d.t, err)
	req.Host = site
	resp, err := need.HTTP.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// inBench counts the processes in bench's container; -1 if the engine does not answer.
func (d *declared) inBench() int { return d.processes(wire.BenchContainer) }

func (d *declared) processes(container string) int {
	name := wire.ContainerName(serverID, container)
	top, err := d.client.ContainerTop(d.t.Context(), name, client.ContainerTopOptions{})
	if err != nil {
		return -1
	}
	return len(top.Processes)
}

// confirm does what the agent does when a gateway accepts a heartbeat, or refuses the host.
func (d *declared) confirm(confirmed bool) {
	d.t.Helper()
	if !confirmed {
		require.NoError(d.t, os.Remove(d.at(wire.ConfirmedPath)))
		return
	}
	require.NoError(d.t, os.MkdirAll(d.at(wire.ConfirmedDir), 0o755))
	require.NoError(d.t, os.WriteFile(d.at(wire.ConfirmedPath), nil, 0o600))
}

func (d *declared) eventually(what string, ok func() bool) {
	d.t.Helper()
	require.Eventually(d.t, ok, time.Minute, 20*time.Millisecond, what)
}

// rootOfMariaDB connects with the password that the host made.
func (d *declared) rootOfMariaDB() *sql.DB {
	d.t.Helper()
	password, err := os.ReadFile(d.at(wire.SecretsDir + "/mariadb-root"))
	require.NoError(d.t, err)
	return d.mariadb("root", strings.TrimSpace(string(password)))
}

func (d *declared) mariadb(user, password string) *sql.DB {
	d.t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = user, password, "unix", d.at(wire.MariaDBSocket)
	db, err := sql.Open("mysql", cfg.FormatDSN())
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestTheDeclaredStack runs the built-in stack with its own command lines, and verbs of
// all kinds on it, with the agent's real program. Nothing but "prego-agent prepare" made
// its secrets.
func TestTheDeclaredStack(t *testing.T) {
	t.Parallel()
	d := newDeclared(t)
	specs := d.specs()
	d.confirm(true)
	began := time.Now()
	require.NoError(t, d.host.Up(t.Context(), specs))
	t.Logf("%d containers stand after %s", len(specs), time.Since(began).Round(time.Millisecond))
	drift, err := d.host.Check(t.Context(), specs)
	require.NoError(t, err)
	require.Empty(t, drift)
	require.NoError(t, d.host.Up(t.Context(), specs), "a second time changes nothing")
	helper, executor := d.startBench(), d.start("exec")
	idle := 0
	d.eventually("gunicorn stands", func() bool { idle = d.inBench(); return idle >= 3 })

	const site, db = "one.example.com", "pool_one"
	t.Run("a site lives", func(t *testing.T) { d.in(t).life(site, db) })
	t.Run("the services", func(t *testing.T) { d.in(t).services() })
	t.Run("jobs of a host that was given up", func(t *testing.T) {
		d := d.in(t)
		jobs := func(run bool) {
			t.Helper()
			for _, name := range []string{"queue-short", "queue-long", "scheduler"} {
				d.eventually(name, func() bool { n := d.processes(name); return n > 0 && n > 1 == run })
			}
		}
		jobs(true)
		d.confirm(false)
		jobs(false)
		status, _ := d.page(site)
		require.Equal(t, http.StatusOK, status)
		// As at a boot, the engine starts the containers by itself: nothing runs in them.
		for _, name := range []string{"queue-short", "scheduler"} {
			name = wire.ContainerName(serverID, name)
			_, err := d.client.ContainerRestart(t.Context(), name, client.ContainerRestartOptions{})
			require.NoError(t, err)
		}
		jobs(false)
		d.confirm(true)
		jobs(true)
		d.eventually("all are healthy again", func() bool {
			drift, err := d.host.Check(t.Context(), specs)
			return err == nil && len(drift) == 0
		})
	})
	t.Run("whose sites are whose", func(t *testing.T) {
		d := d.in(t)
		d.good("--site", site, "configure", `{"prego_tenant_id":"t1"}`)
		usage := []string{"--site", site, "usage"}
		require.Equal(t, http.StatusOK, d.ask(wire.ExecRequest{Args: usage, TenantID: "t1"}).status)
		require.Equal(t, "site_not_owned", d.ask(wire.ExecRequest{Args: usage, TenantID: "t2"}).code)
		unowned := d.ask(wire.ExecRequest{Args: []string{"--site", "two.example.com", "usage"}, TenantID: "t2"})
		require.Equal(t, http.StatusOK, unowned.status, "the site has no owner")
	})

	// A verb that waits for a lock in the database keeps waiting for as long as the lock is held.
	held := d.rootOfMariaDB()
	held.SetMaxOpenConns(1)
	_, err = held.Exec("LOCK TABLES " + db + ".tabSingles WRITE")
	require.NoError(t, err)
	waits := []string{"--site", site, "enable-scheduler"}
	t.Run("a timeout ends everything in the container", func(t *testing.T) {
		d := d.in(t)
		began := time.Now()
		out := d.ask(wire.ExecRequest{Args: waits, TimeoutSeconds: 3})
		require.Equal(t, 124, out.result.ExitCode, out.detail)
		require.Contains(t, out.result.StderrTruncated, "killed after 3s")
		require.Less(t, time.Since(began), 12*time.Second)
		require.Equal(t, idle, d.inBench(), "when it is answered, nothing is left")
	})
	t.Run("so does the end of who asked", func(t *testing.T) {
		whole, d := d, d.in(t)
		for name, end := range map[string]func(){
			"the helper is killed":   func() { require.NoError(t, helper.Process.Kill()); _ = helper.Wait() },
			"the executor is killed": func() { require.NoError(t, executor.Process.Kill()); _ = executor.Wait() },
		} {
			answers := make(chan answer, 1)
			ask := wire.ExecRequest{Args: waits, AuditID: name, TimeoutSeconds: 300}
			go func() { answers <- d.ask(ask) }()
			d.eventually("it runs", func() bool { return d.inBench() >= idle+3 })
			end()
			d.eventually(name+": nothing is left", func() bool { return d.inBench() == idle })
			if got := <-answers; helper.ProcessState != nil {
				require.Equal(t, wire.CodeOutcomeUnknown, got.code, got.detail)
				helper = whole.startBench()
			} else {
				executor = whole.start("exec")
				require.Equal(t, wire.CodeOutcomeUnknown, d.ask(ask).code)
			}
		}
	})
	t.Run("a restart of the engine ends commands and no container", func(t *testing.T) {
		d := d.in(t)
		answers := make(chan answer, 1)
		go func() { answers <- d.ask(wire.ExecRequest{Args: waits, TimeoutSeconds: 300}) }()
		d.eventually("it runs", func() bool { return d.inBench() >= idle+3 })
		before, err := d.host.Inspect(t.Context(), wire.BenchContainer)
		require.NoError(t, err)
		d.engine.stop(syscall.SIGTERM)
		require.NoError(t, d.engine.start())
		require.Equal(t, wire.CodeOutcomeUnknown, (<-answers).code)
		d.eventually("nothing is left", func() bool { return d.inBench() == idle })
		after, err := d.host.Inspect(t.Context(), wire.BenchContainer)
		require.NoError(t, err)
		require.Equal(t, before.StartedAt, after.StartedAt)
	})
	_, err = held.Exec("UNLOCK TABLES")
	require.NoError(t, err)
	t.Run("a killed verb is repeated", func(t *testing.T) {
		whole, d := d, d.in(t)
		d.good(waits...)
		answers := make(chan answer, 1)
		make2 := []string{"new-site", "two.example.com", "--db-name", "pool_two"}
		go func() { answers <- d.ask(wire.ExecRequest{Args: make2}) }()
		d.eventually("it runs", func() bool { return d.inBench() >= idle+3 })
		require.NoError(t, helper.Process.Kill())
		_ = helper.Wait()
		<-answers
		d.eventually("nothing is left", func() bool { return d.inBench() == idle })
		helper = whole.startBench()
		d.good(make2...)
		status, body := d.page("two.example.com")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, "two.example.com")
	})
	t.Run("erased sites leave nothing", func(t *testing.T) { d.in(t).erase(site, db) })
	t.Run("another configuration", func(t *testing.T) {
		d := d.in(t)
		for i := range specs {
			if specs[i].Once {
				specs[i].Env = map[string]string{"ANOTHER": "declaration"}
			}
		}
		before, err := d.host.Inspect(t.Context(), "websocket")
		require.NoError(t, err)
		drift, err := d.host.Repair(t.Context(), specs)
		require.NoError(t, err)
		require.Equal(t, []server.ContainerDrift{{Container: "configurator", Kind: server.DriftOutdated, Detail: "made from another declaration"}}, drift)
		after, err := d.host.Inspect(t.Context(), "websocket")
		require.NoError(t, err)
		require.NotEqual(t, before.StartedAt, after.StartedAt, "who read the configuration reads it again")
		d.eventually("the site is served again", func() bool { status, _ := d.page("two.example.com"); return status == http.StatusOK })
	})
	t.Run("nothing to run it in", func(t *testing.T) {
		d := d.in(t)
		list := []string{"list-sites"}
		require.NoError(t, os.Remove(d.at(wire.ProgramsDir+"/prego-agent")))
		out := d.ask(wire.ExecRequest{Args: list, AuditID: "later"})
		require.Equal(t, []any{http.StatusServiceUnavailable, "service_unavailable"}, []any{out.status, out.code})
		require.Contains(t, out.detail, "the container can't run it")
		d.prepare()
		require.Equal(t, http.StatusOK, d.ask(wire.ExecRequest{Args: list, AuditID: "later"}).status, "it had not begun")
		require.NoError(t, d.host.Stop(t.Context(), wire.BenchContainer))
		require.Equal(t, "service_unavailable", d.ask(wire.ExecRequest{Args: list}).code)
	})
}

// in is the same host for a part of the test.
func (d *declared) in(t *testing.T) *declared {
	part := *d
	part.t = t
	return &part
}

// life makes a site, gives it its name, and brings it back to a backup.
func (d *declared) life(site, db string) {
	t := d.t
	status, _ := d.page(site)
	require.Equal(t, http.StatusNotFound, status)
	require.JSONEq(t, `{"site":"pool.example.com","db_name":"`+db+`","made":true}`, d.good("new-site", "pool.example.com", "--db-name", db))
	d.good("promote-site", "pool.example.com", site)
	d.good("--site", site, "configure", `{"host_name":"https://`+site+`"}`)
	d.good("--site", site, "install-app", "erpnext")
	require.JSONEq(t, `["frappe","erpnext"]`, d.good("--site", site, "list-apps"))
	d.good("--site", site, "migrate")
	status, body := d.page(site)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, site)
	status, _ = d.page("pool.example.com")
	require.Equal(t, http.StatusNotFound, status)

	const password = "an Admin's ütterly s3cret"
	out := d.ask(wire.ExecRequest{Args: []string{"--site", site, "set-admin-password"}, Secrets: map[string]string{wire.SecretAdminPassword: password}})
	require.Equal(t, []any{http.StatusOK, 0}, []any{out.status, out.result.ExitCode}, out.detail+out.result.StderrTruncated)
	require.NotContains(t, out.result.StdoutTruncated+out.result.StderrTruncated, password)
	require.Equal(t, http.StatusOK, d.login(site, "Administrator", password))
	require.Equal(t, http.StatusUnauthorized, d.login(site, "Administrator", "another"))
	out = d.ask(wire.ExecRequest{Args: []string{"--site", site, "add-user", "kim@example.com", "Kim Park"}, Secrets: map[string]string{wire.SecretUserPassword: password}})
	require.Zero(t, out.result.ExitCode, out.result.StderrTruncated)
	require.Equal(t, http.StatusOK, d.login(site, "kim@example.com", password))

	d.good("--site", site, "set-maintenance-mode", "on")
	status, _ = d.page(site)
	require.Equal(t, http.StatusServiceUnavailable, status)
	d.good("--site", site, "set-maintenance-mode", "off")
	require.Contains(t, d.good("--site", site, "backup", "snap-1", "--with-files"), site+"/"+wire.SnapshotsDir+"/snap-1/snap-1-database.sql.gz")
	root := d.rootOfMariaDB()
	_, err := root.Exec("INSERT INTO " + db + ".tabToDo (name) VALUES ('later')")
	require.NoError(t, err)
	_, body = d.page(site)
	require.Contains(t, body, "rows: 1")
	d.good("--site", site, "restore", "snap-1", "--with-files")
	_, body = d.page(site)
	require.Contains(t, body, "rows: 0")
	require.Contains(t, d.good("--site", site, "usage"), `"users":1}`)

	// The password of MariaDB's root is in nothing that the application's containers see.
	secret, err := os.ReadFile(d.at(wire.SecretsDir + "/mariadb-root"))
	require.NoError(t, err)
	for _, name := range []string{"backend", "queue-short", "scheduler", "frontend", "websocket"} {
		got, err := d.client.ContainerInspect(t.Context(), wire.ContainerName(serverID, name), client.ContainerInspectOptions{})
		require.NoError(t, err)
		text, err := json.Marshal(got.Container)
		require.NoError(t, err)
		require.NotContains(t, string(text), strings.TrimSpace(string(secret)))
		for _, m := range got.Container.HostConfig.Binds {
			// Only the app server's own certificate is mounted by path.
			require.NotContains(t, strings.TrimSuffix(m, wire.BenchMount+"/"+wire.TLSDir+":/etc/prego/tls:ro"), "/mounts/", name)
		}
	}
}

func (d *declared) login(site, user, password string) int {
	d.t.Helper()
	form := strings.NewReader("usr=" + user + "&pwd=" + strings.NewReplacer(" ", "%20", "'", "%27", "ü", "%C3%BC").Replace(password))
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/api/method/login", d.port), form)
	require.NoError(d.t, err)
	req.Host = site
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := need.HTTP.Do(req)
	require.NoError(d.t, err)
	_ = resp.Body.Close()
	return resp.StatusCode
}

func (d *declared) erase(site, db string) {
	t := d.t
	require.Contains(t, d.good("erase-site", site, "--db-name", db), `"directory":true`)
	status, _ := d.page(site)
	require.Equal(t, http.StatusNotFound, status)
	root := d.rootOfMariaDB()
	var n int
	require.NoError(t, root.QueryRow("SELECT (SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?) + (SELECT COUNT(*) FROM mysql.user WHERE User = ?)", db, db).Scan(&n))
	require.Zero(t, n)
	require.NotContains(t, d.good("list-sites"), site)
	require.Contains(t, d.good("erase-site", site, "--db-name", db), `"directory":false`)
}

// services asks MariaDB and Redis in their containers.
func (d *declared) services() {
	t := d.t
	mariadb := func(args ...string) answer { return d.ask(wire.ExecRequest{Kind: wire.KindMariaDB, Args: args}) }
	redis := func(args ...string) answer { return d.ask(wire.ExecRequest{Kind: wire.KindRedisCLI, Args: args}) }
	require.Zero(t, mariadb("create-database", "pool_a").result.ExitCode)
	require.Contains(t, mariadb("databases").result.StdoutTruncated, "pool_a\n")
	require.Contains(t, mariadb("processlist").result.StdoutTruncated, "prego-exec\tlocalhost\t")
	require.Equal(t, "PONG\n", redis("ping").result.StdoutTruncated)
	require.Contains(t, redis("info", "server").result.StdoutTruncated, "redis_version:")

	b, err := os.ReadFile(d.at(wire.ServicesPath))
	require.NoError(t, err)
	var s wire.Services
	require.NoError(t, json.Unmarshal(b, &s))
	root := d.rootOfMariaDB()
	for _, q := range []string{"CREATE TABLE pool_a.t (x INT)", "INSERT INTO pool_a.t VALUES (7)"} {
		_, err := root.Exec(q)
		require.NoError(t, err, q)
	}
	require.ErrorContains(t, d.mariadb("root", "").Ping(), "Error 1045", "root has a password")
	user := d.mariadb(s.MariaDB.User, s.MariaDB.Password)
	for q, refusal := range map[string]string{
		"SELECT x FROM pool_a.t":                     "Error 1142",
		"GRANT ALL ON *.* TO `prego-exec`@localhost": "Error 1045",
		"CREATE USER x":                              "Error 1227",
		"SELECT 1 INTO OUTFILE '/tmp/x'":             "Error (1045|1227)", // the latter with MariaDB 11.8.9
	} {
		_, err := user.Exec(q)
		require.Error(t, err, q)
		require.Regexp(t, refusal, err.Error(), q)
	}
	conn, err := net.Dial("unix", d.at(wire.RedisSocket))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "PING\r\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "NOAUTH", "there is no access without a password")
}

// TestOnlyTheTableReachesTheEngine asks the process that holds the engine's socket
// for what it must not do.
func TestOnlyTheTableReachesTheEngine(t *testing.T) {
	t.Parallel()
	needEngine(t)
	dir, err := os.MkdirTemp("", "prego-bench-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	d := &declared{t: t, root: filepath.Join(dir, "root"), engine: &engine{dir: dir}, program: static(t, dir, "../../cmd/prego-agent")}
	require.NoError(t, os.MkdirAll(filepath.Dir(d.at(wire.HostConfigPath)), 0o755))
	require.NoError(t, os.WriteFile(d.at(wire.HostConfigPath), []byte(`{"server_id":"app-1","environment":"test","gateway_server_name":"gateway","gateway_url":"https://127.0.0.1:1","agent_port":1,"docker_port":1,"role":"app"}`), 0o600))
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	var reached atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_ = conn.Close()
		}
	}()
	d.startBench()
	ask := func(request string) string {
		conn, err := net.Dial("unix", d.at(wire.BenchSocket))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, request+"\n")
		require.NoError(t, err)
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		b, _ := io.ReadAll(conn)
		return string(b)
	}
	for _, request := range []string{
		`{}`, `{"args":["console"]}`, `{"args":["--site","a.b","console"]}`, `{"args":["sh","-c","id"]}`, `{"args":["list-sites"],"working_dir":"/etc"}`,
		`{"args":["list-sites"],"timeout_seconds":-1}`, `{"args":["list-sites"],"container":"x"}`, `{"args":["list-sites"],"give_to":"t"}`, `{"args":["list-sites"],"owner_of":"a.b"}`,
		`{"owner_of":"../../etc"}`, `{"owner_of":"-x"}`, `{"owner_of":"a.b","give_to":"../t"}`, `[]`, `x`,
		`POST /containers/create HTTP/1.1`,
	} {
		require.Contains(t, ask(request), `"refused":`, request)
	}
	require.Zero(t, reached.Load())
	require.Contains(t, ask(`{"args":["list-sites"]}`), `"refused":`, "the engine is gone")
	require.Positive(t, reached.Load(), "verbs of the table reach it")

	before := reached.Load()
	require.NoError(t, os.Chmod(d.at(wire.BenchSocket), 0o777))
	stranger := exec.Command(static(t, dir, "./testdata/stranger"), d.at(wire.BenchSocket))
	stranger.Dir = "/"
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := stranger.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "connected and turned away\n", string(out), "one user may ask")
	require.Equal(t, before, reached.Load())
}
