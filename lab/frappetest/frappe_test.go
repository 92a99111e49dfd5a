//go:build frappe

// Package frappetest runs the verbs on sites, as a host runs them, in containers of an image with Frappe 15: the
// official one, your own, or the stand-in's. make test-frappe calls it; docs/frappe.md has the details.
package frappetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/site"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

const rootPassword = "r00t-of-this-test"

// stack is the containers of a site host, with the command lines of frappe_docker's
// compose.yaml, and MariaDB's options as they are declared.
type stack struct {
	t      *testing.T
	image  string
	prefix string
	url    string // of the frontend
}

// docker runs Docker's command line and returns what it wrote to stdout.
func (s *stack) docker(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("docker %s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

func (s *stack) must(args ...string) string {
	s.t.Helper()
	out, err := s.docker("", args...)
	require.NoError(s.t, err)
	return strings.TrimSpace(out)
}

func (s *stack) name(container string) string { return s.prefix + "-" + container }

// run starts a container, which others reach by its name.
func (s *stack) run(name, image string, options []string, command ...string) {
	s.t.Helper()
	args := append([]string{"run", "-d", "--name", s.name(name), "--network", s.prefix, "--network-alias", name}, options...)
	s.must(append(append(args, image), command...)...)
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func start(t *testing.T) *stack {
	t.Helper()
	s := &stack{t: t, image: os.Getenv("PREGO_TEST_FRAPPE_IMAGE"), prefix: fmt.Sprintf("prego-frappe-%d", os.Getpid())}
	agent, err := filepath.Abs(os.Getenv("PREGO_TEST_AGENT"))
	require.NoError(t, err)
	require.NotEmpty(t, s.image, "make test-frappe names the image")
	t.Cleanup(s.remove)
	s.must("network", "create", s.prefix)
	mariadb, redis := env("PREGO_TEST_MARIADB_IMAGE", "mariadb:11.8"), env("PREGO_TEST_REDIS_IMAGE", "redis:7-alpine")
	s.run("mariadb", mariadb, []string{
		"-e", "MARIADB_ROOT_PASSWORD=" + rootPassword, "--health-cmd", "healthcheck.sh --connect --innodb_initialized", "--health-interval", "1s", "--health-retries", "60",
	}, child.DeclaredMariaDB()...)
	s.run("redis-cache", redis, nil, "redis-server", "--save", "", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
	s.run("redis-queue", redis, nil, "redis-server", "--appendonly", "yes")
	require.Eventually(t, func() bool {
		return s.must("inspect", "-f", "{{.State.Health.Status}}", s.name("mariadb")) == "healthy"
	}, 3*time.Minute, 500*time.Millisecond)

	volumes := []string{"-v", s.prefix + "-sites:" + wire.BenchDir + "/sites", "-v", s.prefix + "-logs:" + wire.BenchDir + "/logs"}
	s.must(append(append([]string{"run", "--rm", "--network", s.prefix, "--entrypoint", "bash"}, volumes...), s.image, "-c",
		"ls -1 apps > sites/apps.txt; bench set-config -g db_host mariadb; bench set-config -gp db_port 3306; bench set-config -g redis_cache redis://redis-cache:6379;"+
			"bench set-config -g redis_queue redis://redis-queue:6379; bench set-config -g redis_socketio redis://redis-queue:6379; bench set-config -gp socketio_port 9000")...)
	s.run("backend", s.image, append(volumes, "-v", filepath.Dir(agent)+":"+filepath.Dir(wire.ContainerAgent)+":ro"))
	s.run("websocket", s.image, volumes, "node", wire.BenchDir+"/apps/frappe/socketio.js")
	s.run("queue-short", s.image, volumes, "bench", "worker", "--queue", "short,default")
	s.run("queue-long", s.image, volumes, "bench", "worker", "--queue", "long,default,short")
	s.run("scheduler", s.image, volumes, "bench", "schedule")
	s.run("frontend", s.image, append(volumes, "-p", "127.0.0.1::8080", "-e", "BACKEND=backend:8000", "-e", "SOCKETIO=websocket:9000", "-e", "FRAPPE_SITE_NAME_HEADER=$host"), "nginx-entrypoint.sh")
	s.url = "http://" + strings.Fields(s.must("port", s.name("frontend"), "8080"))[0]
	require.Eventually(t, func() bool {
		status, _, _ := s.ask("unknown.example.com", "/", "")
		return status == http.StatusNotFound
	}, 2*time.Minute, 500*time.Millisecond, "the frontend asks the backend")
	return s
}

// remove leaves nothing; the containers' output is shown after a failure.
func (s *stack) remove() {
	out, _ := s.docker("", "ps", "-aq", "--filter", "name="+s.prefix)
	for id := range strings.FieldsSeq(out) {
		if s.t.Failed() {
			cmd := exec.Command("docker", "logs", "--tail", "15", id)
			text, _ := cmd.CombinedOutput()
			s.t.Logf("%s\n%s", id, text)
		}
		_, _ = s.docker("", "rm", "-fv", id)
	}
	for _, volume := range []string{"sites", "logs"} {
		_, _ = s.docker("", "volume", "rm", s.prefix+"-"+volume)
	}
	_, _ = s.docker("", "network", "rm", s.prefix)
}

// verb runs a verb as the host's helper does: in the container, the secrets on the
// first line of its input.
func (s *stack) verb(args string, secrets map[string]string) (string, error) {
	all := map[string]string{policy.SecretRootPassword: rootPassword}
	maps.Copy(all, secrets)
	line, err := json.Marshal(all)
	require.NoError(s.t, err)
	command := append([]string{"exec", "-i", "-u", wire.BenchUser, "-w", wire.BenchDir, s.name("backend"), wire.ContainerAgent, site.Verb}, strings.Split(args, " ")...)
	return s.docker(string(line)+"\n", command...)
}

// do runs a verb twice: each may be repeated.
func (s *stack) do(args string, secrets map[string]string) string {
	s.t.Helper()
	began := time.Now()
	out, err := s.verb(args, secrets)
	require.NoError(s.t, err)
	s.t.Logf("%s: %s", args, time.Since(began).Round(10*time.Millisecond))
	_, err = s.verb(args, secrets)
	require.NoError(s.t, err, "once more")
	return out
}

// ask asks a site for a path; fields make it a POST, session is its cookie.
func (s *stack) ask(host, path, session string, fields ...string) (int, string, http.Header) {
	method, body := http.MethodGet, io.Reader(nil)
	if len(fields) > 0 {
		method, body = http.MethodPost, strings.NewReader(strings.Join(fields, "&"))
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, body)
	require.NoError(s.t, err)
	req.Host = host
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if session != "" {
		req.Header.Set("Cookie", session)
	}
	resp, err := need.HTTP.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return resp.StatusCode, string(text), resp.Header
}

func (s *stack) want(status int, says, host, path, session string, fields ...string) {
	s.t.Helper()
	got, body, _ := s.ask(host, path, session, fields...)
	require.Equal(s.t, status, got, "%s%s: %s", host, path, body)
	require.Contains(s.t, body, says)
}

func (s *stack) login(host, user, password string) (status int, session string) {
	s.t.Helper()
	status, _, header := s.ask(host, "/api/method/login", "", "usr="+url.QueryEscape(user), "pwd="+url.QueryEscape(password))
	for _, c := range header.Values("Set-Cookie") {
		if cookie, _, _ := strings.Cut(c, ";"); strings.HasPrefix(cookie, "sid=") {
			session = cookie
		}
	}
	return status, session
}

func (s *stack) rows(host, session string) int {
	s.t.Helper()
	status, body, _ := s.ask(host, "/api/method/frappe.client.get_count?doctype=ToDo", session)
	require.Equal(s.t, http.StatusOK, status, body)
	var out struct{ Message int }
	require.NoError(s.t, json.Unmarshal([]byte(body), &out))
	return out.Message
}

func (s *stack) sql(text string) []string {
	s.t.Helper()
	return strings.Fields(s.must("exec", "-e", "MYSQL_PWD="+rootPassword, s.name("mariadb"), "mariadb", "-uroot", "-N", "-e", text))
}

// inBench runs a shell line as the user of the sites.
func (s *stack) inBench(line string) string {
	s.t.Helper()
	return s.must("exec", "-u", wire.BenchUser, "-w", wire.BenchDir, s.name("backend"), "bash", "-c", line)
}

func TestFrappe(t *testing.T) {
	const (
		pool, tenant   = "pool-1.example.com", "acme-1.example.com"
		db             = "pool_1"
		admin, changed = "Adm1n-of-acme!", "Chang3d-by-them!"
	)
	s := start(t)
	t.Logf("image %s: %s", s.image, s.must("exec", s.name("backend"), "bash", "-c", "bench --version"))

	s.do("new-site "+pool+" --db-name "+db, nil)
	s.want(200, "pong", pool, "/api/method/ping", "")
	s.do("promote-site "+pool+" "+tenant, nil)
	s.want(404, "", pool, "/api/method/ping", "")
	s.want(200, "pong", tenant, "/api/method/ping", "")
	s.do("--site "+tenant+" configure {\"host_name\":\"https://"+tenant+"\"}", nil)
	s.do("--site "+tenant+" configure {\"prego_plan\":\"starter\"}", nil)
	require.Contains(t, s.inBench("cat sites/"+tenant+"/site_config.json"), `"host_name": "https://`+tenant)

	if strings.Contains(s.inBench("cat sites/apps.txt"), "erpnext") {
		s.do("--site "+tenant+" install-app erpnext", nil)
		require.Contains(t, s.do("--site "+tenant+" list-apps", nil), `"erpnext"`)
	}
	_, err := s.verb("--site "+tenant+" install-app nosuch", nil)
	require.ErrorContains(t, err, "No module named 'nosuch'")
	s.do("--site "+tenant+" migrate", nil)
	s.do("--site "+tenant+" enable-scheduler", nil)

	s.do("--site "+tenant+" set-admin-password", map[string]string{wire.SecretAdminPassword: admin})
	status, session := s.login(tenant, "Administrator", admin)
	require.Equal(t, 200, status)
	require.NotEmpty(t, session)
	status, _ = s.login(tenant, "Administrator", "wrong")
	require.Equal(t, 401, status)
	s.do("--site "+tenant+" add-user joe@example.com Joe", map[string]string{wire.SecretUserPassword: "J0e-of-acme-corp!"})
	status, _ = s.login(tenant, "joe@example.com", "J0e-of-acme-corp!")
	require.Equal(t, 200, status)
	s.want(200, "", tenant, "/socket.io/?EIO=4&transport=polling", "")

	// The old content is there again, and nothing else.
	files := "sites/" + tenant + "/public/files/"
	s.want(200, "", tenant, "/api/resource/ToDo", session, "description=first")
	s.inBench("echo first > " + files + "kept.txt")
	s.do("--site "+tenant+" backup before-1 --with-files", nil)
	s.want(200, "", tenant, "/api/resource/ToDo", session, "description=second")
	s.do("--site "+tenant+" set-admin-password", map[string]string{wire.SecretAdminPassword: changed})
	s.inBench("echo second > " + files + "kept.txt; echo late > " + files + "late.txt")
	_, session = s.login(tenant, "Administrator", changed) // a new password ends all sessions
	require.Equal(t, 2, s.rows(tenant, session))
	s.do("--site "+tenant+" restore before-1 --with-files", nil)
	status, session = s.login(tenant, "Administrator", admin)
	require.Equal(t, 200, status, "the password of the backup")
	require.Equal(t, 1, s.rows(tenant, session))
	s.want(200, "first", tenant, "/files/kept.txt", "")
	s.want(404, "", tenant, "/files/late.txt", "")

	s.do("--site "+tenant+" set-maintenance-mode on", nil)
	s.want(503, "", tenant, "/api/method/ping", "")
	s.do("--site "+tenant+" set-maintenance-mode off", nil)
	s.want(200, "pong", tenant, "/api/method/ping", "")
	var usage map[string]int64
	require.NoError(t, json.Unmarshal([]byte(s.do("--site "+tenant+" usage", nil)), &usage))
	for _, what := range []string{"database_bytes", "files_bytes", "backups_bytes", "users"} {
		require.Positive(t, usage[what], what)
	}
	for _, name := range []string{"backend", "frontend", "websocket", "queue-short", "queue-long", "scheduler"} {
		require.Equal(t, "true", s.must("inspect", "-f", "{{.State.Running}}", s.name(name)), name)
	}

	require.Equal(t, `["`+tenant+`"]`, strings.TrimSpace(s.do("list-sites", nil)))
	s.do("erase-site "+tenant+" --db-name "+db, nil)
	s.do("erase-site "+pool+" --db-name "+db, nil)
	s.want(404, "", tenant, "/api/method/ping", "")
	require.Equal(t, "[]", strings.TrimSpace(s.do("list-sites", nil)))
	require.Empty(t, s.inBench("ls -d sites/*.example.com archived/sites/* 2>/dev/null || true"))
	require.Empty(t, s.sql("SHOW DATABASES LIKE '"+db+"'"))
	require.Empty(t, s.sql("SELECT User FROM mysql.user WHERE User = '"+db+"'"))

	// No secret is left where it may be read.
	said := s.inBench("cat logs/*.log")
	for _, name := range []string{"backend", "frontend", "queue-short", "queue-long", "scheduler"} {
		out, err := exec.CommandContext(t.Context(), "docker", "logs", s.name(name)).CombinedOutput()
		require.NoError(t, err)
		said += string(out)
	}
	for _, secret := range []string{rootPassword, admin, changed, "J0e-of-acme-corp!"} {
		require.NotContains(t, said, secret)
	}
}
