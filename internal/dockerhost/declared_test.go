package dockerhost_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
)

// image collects the files of an image.
type image struct {
	t     *testing.T
	w     *tar.Writer
	b     bytes.Buffer
	there map[string]bool
}

func newImage(t *testing.T) *image {
	i := &image{t: t, there: map[string]bool{}}
	i.w = tar.NewWriter(&i.b)
	return i
}

func (i *image) add(name string, kind byte, mode int64, uid int, content []byte) {
	name = strings.TrimPrefix(name, "/")
	if i.there[name] {
		return
	}
	i.there[name] = true
	require.NoError(i.t, i.w.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Mode: mode, Uid: uid, Gid: uid, Size: int64(len(content))}))
	_, err := i.w.Write(content)
	require.NoError(i.t, err)
}

func (i *image) dir(name string, mode int64, uid int) { i.add(name+"/", tar.TypeDir, mode, uid, nil) }

func (i *image) file(name, from string) {
	b, err := os.ReadFile(from)
	require.NoError(i.t, err)
	i.add(name, tar.TypeReg, 0o755, 0, b)
}

// tree adds what is below a directory of this machine.
func (i *image) tree(name, from string, uid int) {
	require.NoError(i.t, filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := name + strings.TrimPrefix(p, from)
		switch {
		case d.IsDir():
			i.dir(to, 0o755, uid)
		case d.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			i.add(to, tar.TypeReg, 0o644, uid, b)
		}
		return nil
	}))
}

var library = regexp.MustCompile(`(?m)(/[^ ]+) \(0x`)

// program adds a program of this machine with its libraries.
func (i *image) program(name string) {
	i.t.Helper()
	path, err := lookPath(name)
	require.NoError(i.t, err, "%s: make packages installs it", name)
	i.file(path, path)
	out, err := exec.Command("ldd", path).Output() //nolint:noctx // short
	require.NoError(i.t, err)
	for _, m := range library.FindAllSubmatch(out, -1) {
		i.file(string(m[1]), string(m[1]))
	}
}

func (i *image) load(e *engine, tag string, changes ...string) {
	i.t.Helper()
	require.NoError(i.t, i.w.Close())
	c, err := e.local()
	require.NoError(i.t, err)
	defer func() { _ = c.Close() }()
	r, err := c.ImageImport(i.t.Context(), client.ImageImportSource{Source: &i.b, SourceName: "-"}, tag, client.ImageImportOptions{Changes: changes})
	require.NoError(i.t, err)
	_, _ = io.Copy(io.Discard, r)
	require.NoError(i.t, r.Close())
}

func static(t *testing.T, dir, pkg string) string {
	t.Helper()
	bin := filepath.Join(dir, filepath.Base(pkg))
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, pkg) //nolint:noctx // short
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// declared is a host with the built-in stack, in images made of what Debian has, and
// the processes that run commands on it.
type declared struct {
	t       *testing.T
	root    string
	program string // the agent's
	engine  *engine
	host    *dockerhost.Host
	client  *client.Client
}

func newDeclared(t *testing.T) *declared {
	t.Helper()
	need(t, "mariadbd", "mariadb-install-db", "redis-server", "redis-cli", "ldd")
	e, err := newEngine(`{"live-restore": true}`)
	require.NoError(t, err)
	t.Cleanup(e.close)
	d := &declared{t: t, root: filepath.Join(e.dir, "root"), engine: e}
	d.host = e.host(t)
	d.client, err = e.local()
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.client.Close() })
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
	out, err := exec.Command(d.program, "prepare", "--root", d.root).CombinedOutput() //nolint:noctx // short
	require.NoError(d.t, err, "%s", out)
}

// images makes what the stack names. The entrypoints of the real ones are not in
// them: data is there from the start, and users have the numbers that theirs have.
func (d *declared) images() {
	d.t.Helper()
	standIn := static(d.t, d.engine.dir, "./testdata/bench")
	data := filepath.Join(d.engine.dir, "mysql")
	out, err := exec.Command("mariadb-install-db", "--no-defaults", "--user=root", "--datadir="+data, "--skip-test-db", "--auth-root-authentication-method=normal").CombinedOutput() //nolint:noctx // short
	require.NoError(d.t, err, "%s", out)
	db := newImage(d.t)
	db.program("mariadbd")
	db.tree("/usr/share/mysql", "/usr/share/mysql", 0)
	db.tree("/var/lib/mysql", data, 999)
	db.dir("/tmp", 0o777, 0)
	db.file("/usr/bin/healthcheck.sh", standIn)
	db.load(d.engine, "mariadb:10.6", "USER 999:999", `ENTRYPOINT ["/usr/sbin/mariadbd","--no-defaults","--datadir=/var/lib/mysql","--socket=/run/mysqld/mysqld.sock"]`)
	redis := newImage(d.t)
	redis.program("redis-server")
	redis.program("redis-cli")
	redis.dir("/data", 0o755, 999)
	redis.load(d.engine, "redis:7-alpine", "USER 999:1000", "WORKDIR /data")
	bench := newImage(d.t)
	bench.add("/etc/passwd", tar.TypeReg, 0o644, 0, []byte("root:x:0:0::/root:/bin/false\nfrappe:x:1000:1000::/home/frappe:/bin/false\n"))
	bench.add("/etc/group", tar.TypeReg, 0o644, 0, []byte("root:x:0:\nfrappe:x:1000:\n"))
	for _, dir := range []string{"/home/frappe", "/home/frappe/frappe-bench", "/home/frappe/frappe-bench/sites", "/home/frappe/frappe-bench/logs"} {
		bench.dir(dir, 0o755, 1000)
	}
	bench.file(wire.BenchBinary, standIn)
	bench.file("/usr/bin/wait-for-it", standIn)
	bench.load(d.engine, "bench:1", "USER 1000:1000", `CMD ["`+wire.BenchBinary+`","serve"]`)
}

// specs are the declared containers, less what this machine can't give: as many
// processors, a network, and the root directory for directories of the host.
func (d *declared) specs() []prego.ContainerSpec {
	d.t.Helper()
	stack, err := config.Worker{}.Stack()
	require.NoError(d.t, err)
	specs, err := stack.For(prego.RoleApp, map[string]string{"server_id": serverID, "role": "app", "bench_image": "bench:1"}, func(name string) string {
		d.t.Errorf("the control plane made the secret %s", name)
		return ""
	})
	require.NoError(d.t, err)
	for i := range specs {
		specs[i].CPUs, specs[i].Network, specs[i].Ports = 1, "none", nil
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
	cmd := exec.Command(d.program, append([]string{verb, "--root", d.root}, args...)...) //nolint:noctx // killed below
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
	resp, err := d.caller().Post("http://exec"+wire.PathExec, "application/json", bytes.NewReader(b)) //nolint:noctx // see caller
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

// inBench counts the processes in bench's container.
func (d *declared) inBench() int {
	top, err := d.client.ContainerTop(d.t.Context(), wire.ContainerName(serverID, wire.BenchContainer), client.ContainerTopOptions{})
	require.NoError(d.t, err)
	return len(top.Processes)
}

func (d *declared) eventually(what string, ok func() bool) {
	d.t.Helper()
	require.Eventually(d.t, ok, time.Minute, 20*time.Millisecond, what)
}

func site(name string) []string { return []string{"--site", name + ".example.com", "list-apps"} }

// TestTheDeclaredStack runs the built-in stack, and commands of all kinds on it, with
// the agent's real program. Nothing but "prego-agent prepare" made its secrets.
func TestTheDeclaredStack(t *testing.T) {
	t.Parallel()
	d := newDeclared(t)
	d.images()
	specs := d.specs()
	require.NoError(t, d.host.Up(t.Context(), specs))
	drift, err := d.host.Check(t.Context(), specs)
	require.NoError(t, err)
	require.Empty(t, drift)
	helper, executor := d.startBench(), d.start("exec")
	idle := d.inBench()
	require.Equal(t, 1, idle)

	t.Run("bench", func(t *testing.T) {
		d := d.in(t)
		out := d.ask(wire.ExecRequest{Args: site("one")})
		require.Equal(t, http.StatusOK, out.status, out.detail)
		require.Equal(t, "frappe\nerpnext\n", out.result.StdoutTruncated)
		require.Empty(t, out.result.StderrTruncated)
		out = d.ask(wire.ExecRequest{Args: site("fails")})
		require.Equal(t, []any{3, "one\n", "it failed\n"}, []any{out.result.ExitCode, out.result.StdoutTruncated, out.result.StderrTruncated})
		out = d.ask(wire.ExecRequest{Args: []string{"--site", "tells.example.com", "set-config", "k", `$(id); "x" é`}, WorkingDir: wire.BenchDir + "/sites"})
		require.Contains(t, out.result.StdoutTruncated, "uid 1000 in /home/frappe/frappe-bench/sites\n")
		require.Contains(t, out.result.StdoutTruncated, fmt.Sprintf("%q\n", []string{"set-config", "k", `$(id); "x" é`}))
		var names []string
		for line := range strings.Lines(out.result.StdoutTruncated) {
			if name, _, ok := strings.Cut(line, "="); ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		require.Equal(t, []string{"HOME", "LANG", "PATH"}, names, "nothing of the container's own")
	})
	t.Run("its output is streamed", func(t *testing.T) {
		d := d.in(t)
		b, err := json.Marshal(wire.ExecRequest{ServerID: serverID, Kind: wire.KindBench, Args: site("ticks")})
		require.NoError(t, err)
		resp, err := d.caller().Post("http://exec"+wire.PathExecStream, "application/json", bytes.NewReader(b)) //nolint:noctx // see caller
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		var first, last time.Time
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			if strings.Contains(s.Text(), "tick 0") && first.IsZero() {
				first = time.Now()
			}
			if strings.Contains(s.Text(), "tick 4") && last.IsZero() {
				last = time.Now()
			}
		}
		require.Greater(t, last.Sub(first), 400*time.Millisecond, "as it is written")
	})
	t.Run("whose sites are whose", func(t *testing.T) {
		d := d.in(t)
		give := []string{"--site", "one.example.com", "set-config", wire.SiteOwnerFile, "t1"}
		require.Equal(t, http.StatusOK, d.ask(wire.ExecRequest{Args: give}).status)
		require.Equal(t, http.StatusOK, d.ask(wire.ExecRequest{Args: site("one"), TenantID: "t1"}).status)
		require.Equal(t, "site_not_owned", d.ask(wire.ExecRequest{Args: site("one"), TenantID: "t2"}).code)
		require.Equal(t, http.StatusOK, d.ask(wire.ExecRequest{Args: site("two"), TenantID: "t2"}).status, "it is nobody's")
	})
	t.Run("a timeout ends everything in the container", func(t *testing.T) {
		d := d.in(t)
		began := time.Now()
		out := d.ask(wire.ExecRequest{Args: site("unruly"), TimeoutSeconds: 3})
		require.Equal(t, 124, out.result.ExitCode, out.detail)
		require.Equal(t, "up\n", out.result.StdoutTruncated)
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
			ask := wire.ExecRequest{Args: site("unruly"), AuditID: name, TimeoutSeconds: 300}
			go func() { answers <- d.ask(ask) }()
			d.eventually("they run", func() bool { return d.inBench() > 20 })
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
		go func() { answers <- d.ask(wire.ExecRequest{Args: site("unruly"), TimeoutSeconds: 300}) }()
		d.eventually("they run", func() bool { return d.inBench() > 20 })
		before, err := d.host.Inspect(t.Context(), wire.BenchContainer)
		require.NoError(t, err)
		d.engine.stop(syscall.SIGTERM)
		require.NoError(t, d.engine.start())
		require.Equal(t, wire.CodeOutcomeUnknown, (<-answers).code)
		d.eventually("nothing is left", func() bool { return d.inBench() == idle })
		after, err := d.host.Inspect(t.Context(), wire.BenchContainer)
		require.NoError(t, err)
		require.Equal(t, before.StartedAt, after.StartedAt)
		require.Equal(t, http.StatusOK, d.ask(wire.ExecRequest{Args: site("one")}).status)
	})
	t.Run("the services", func(t *testing.T) { d.in(t).services() })
	t.Run("nothing to run it in", func(t *testing.T) {
		d := d.in(t)
		require.NoError(t, os.Remove(d.at(wire.ProgramsDir+"/prego-agent")))
		out := d.ask(wire.ExecRequest{Args: site("one"), AuditID: "later"})
		require.Equal(t, []any{http.StatusServiceUnavailable, "service_unavailable"}, []any{out.status, out.code})
		require.Contains(t, out.detail, "the container can't run it")
		d.prepare()
		require.Equal(t, http.StatusOK, d.ask(wire.ExecRequest{Args: site("one"), AuditID: "later"}).status, "it had not begun")
		require.NoError(t, d.host.Stop(t.Context(), wire.BenchContainer))
		require.Equal(t, "service_unavailable", d.ask(wire.ExecRequest{Args: site("one")}).code)
	})
}

// in is the same host for a part of the test.
func (d *declared) in(t *testing.T) *declared {
	part := *d
	part.t = t
	return &part
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
	open := func(user, password string) *sql.DB {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = user, password, "unix", d.at(wire.MariaDBSocket)
		db, err := sql.Open("mysql", cfg.FormatDSN())
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	root := open("root", "") // as the image's entrypoint finds it, and sets the password
	for _, q := range []string{"CREATE TABLE pool_a.t (x INT)", "INSERT INTO pool_a.t VALUES (7)"} {
		_, err := root.Exec(q)
		require.NoError(t, err, q)
	}
	user := open(s.MariaDB.User, s.MariaDB.Password)
	for _, q := range []string{"SELECT x FROM pool_a.t", "GRANT ALL ON *.* TO `prego-exec`@localhost", "CREATE USER x", "SELECT 1 INTO OUTFILE '/tmp/x'"} {
		_, err := user.Exec(q)
		require.Error(t, err, q)
	}
	conn, err := net.Dial("unix", d.at(wire.RedisSocket)) //nolint:noctx // short
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "PING\r\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "NOAUTH", "nobody gets in without a password")
}

// TestOnlyTheTableReachesTheEngine asks the process that holds the engine's socket
// for what it must not do.
func TestOnlyTheTableReachesTheEngine(t *testing.T) {
	t.Parallel()
	need(t)
	dir, err := os.MkdirTemp("", "prego-bench-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // another user is to come near
	d := &declared{t: t, root: filepath.Join(dir, "root"), engine: &engine{dir: dir}, program: static(t, dir, "../../cmd/prego-agent")}
	require.NoError(t, os.MkdirAll(filepath.Dir(d.at(wire.HostConfigPath)), 0o755))
	require.NoError(t, os.WriteFile(d.at(wire.HostConfigPath), []byte(`{"server_id":"app-1","environment":"test","gateway_server_name":"gateway","gateway_url":"https://127.0.0.1:1","agent_port":1,"docker_port":1,"role":"app"}`), 0o600))
	l, err := net.Listen("unix", filepath.Join(dir, "sock")) //nolint:noctx // closed below
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
		conn, err := net.Dial("unix", d.at(wire.BenchSocket)) //nolint:noctx // short
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
	require.Positive(t, reached.Load(), "what is in the table reaches it")

	before := reached.Load()
	require.NoError(t, os.Chmod(d.at(wire.BenchSocket), 0o777))                          //nolint:gosec // the kernel would not let the stranger so far
	stranger := exec.Command(static(t, dir, "./testdata/bench"), d.at(wire.BenchSocket)) //nolint:noctx // short
	stranger.Args[0], stranger.Dir = "ask", "/"
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := stranger.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "connected and turned away\n", string(out), "one user may ask")
	require.Equal(t, before, reached.Load())
}
