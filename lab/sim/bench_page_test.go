package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

// page serves a bench's sites as gunicorn does in the image, from one process.
type page struct {
	t    *testing.T
	addr string
}

const serve = `
import sys
sys.path[:0] = [sys.argv[1], "/usr/lib/python3/dist-packages"]
from wsgiref.simple_server import make_server
from frappe.app import application
server = make_server("127.0.0.1", 0, application)
print(server.server_port, flush=True)
server.serve_forever()
`

func (b *bench) serve() *page {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "/usr/bin/python3", "-IS", "-c", serve, b.host.sim.benchDir)
	cmd.Dir = b.path("sites")
	out, err := cmd.StdoutPipe()
	require.NoError(b.t, err)
	p, err := child.Start(cmd, syscall.SIGKILL)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = p.Wait() }) // the context has ended it
	port, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b.t, err)
	return &page{b.t, "http://127.0.0.1:" + strings.TrimSpace(port)}
}

// ask asks a site for a path; fields make it a POST, session is its cookie.
func (p *page) ask(host, path, session string, fields ...string) (int, string, http.Header) {
	p.t.Helper()
	method, body := http.MethodGet, io.Reader(nil)
	if len(fields) > 0 {
		method, body = http.MethodPost, strings.NewReader(strings.Join(fields, "&"))
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.addr+path, body)
	require.NoError(p.t, err)
	req.Host = host
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if session != "" {
		req.Header.Set("Cookie", session)
	}
	resp, err := need.HTTP.Do(req)
	require.NoError(p.t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	require.NoError(p.t, resp.Body.Close())
	return resp.StatusCode, string(text), resp.Header
}

func (p *page) login(host, user, password string) (status int, session, message string) {
	p.t.Helper()
	status, body, header := p.ask(host, "/api/method/login", "", "usr="+url.QueryEscape(user), "pwd="+url.QueryEscape(password))
	var out struct{ Message string }
	require.NoError(p.t, json.Unmarshal([]byte(body), &out), body)
	session, _, _ = strings.Cut(header.Get("Set-Cookie"), ";")
	return status, session, out.Message
}

func TestStandInServesSites(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	b.newSite("b.example.com", "_b")
	b.run(0, "--site "+site+" set-admin-password s3cret%")
	b.run(0, "--site "+site+" add-system-manager joe@example.com --first-name Joe --password pw")
	b.write("sites/"+site+"/public/files/hello.txt", "hello")
	p := b.serve()
	want := func(status int, says, host, path, session string, fields ...string) {
		t.Helper()
		got, body, _ := p.ask(host, path, session, fields...)
		require.Equal(t, status, got, body)
		require.Contains(t, body, says)
	}
	want(200, "<h1>a.example.com</h1>\n<p>rows: 0</p>", site, "/", "")
	want(200, "<h1>a.example.com</h1>", site+":8080", "/", "")
	want(200, `{"message": "pong"}`, site, "/api/method/ping", "")
	want(404, "<p>x.example.com does not exist</p>", "x.example.com", "/", "")
	want(404, "does not exist", "x.example.com", "/api/method/ping", "")
	want(404, "does not exist", "..", "/", "")
	want(404, "Page not found", site, "/nothing", "")
	want(417, "Failed to get method for command", site, "/api/method/nothing", "")
	want(200, "hello", site, "/files/hello.txt", "")
	want(404, "", "b.example.com", "/files/hello.txt", "")
	want(404, "", site, "/files/../../site_config.json", "")
	want(403, "", site, "/private/files/x", "")

	for _, wrong := range [][2]string{{"Administrator", "first"}, {"unknown@example.com", "s3cret%"}} {
		status, session, message := p.login(site, wrong[0], wrong[1])
		require.Equal(t, 401, status)
		require.Empty(t, session)
		require.Equal(t, "Invalid login credentials", message)
	}
	status, _, message := p.login(site, "Administrator", "")
	require.Equal(t, 401, status)
	require.Equal(t, "Incomplete login details", message)
	status, session, message := p.login(site, "Administrator", "s3cret%")
	require.Equal(t, 200, status)
	require.Equal(t, "Logged In", message)
	status, _, _ = p.login("b.example.com", "Administrator", "first")
	require.Equal(t, 200, status, "each site has its own")
	status, _, _ = p.login(site, "joe@example.com", "pw")
	require.Equal(t, 200, status)
	b.run(0, "--site "+site+" disable-user joe@example.com")
	status, _, _ = p.login(site, "joe@example.com", "pw")
	require.Equal(t, 401, status)

	want(200, "Administrator", site, "/api/method/frappe.auth.get_logged_user", session)
	want(403, "PermissionError", site, "/api/method/frappe.auth.get_logged_user", "")
	want(403, "PermissionError", "b.example.com", "/api/method/frappe.auth.get_logged_user", session)
	want(403, "PermissionError", site, "/api/resource/ToDo", "", "description=x")
	want(200, `"doctype": "ToDo"`, site, "/api/resource/ToDo", session, "description=x")
	want(200, `{"message": 1}`, site, "/api/method/frappe.client.get_count?doctype=ToDo", session)
	want(404, "DoesNotExistError", site, "/api/method/frappe.client.get_count?doctype=No", session)
	want(200, "<p>rows: 1</p>", site, "/", "")
	want(200, "<p>rows: 0</p>", "b.example.com", "/", "")
	upload := func(status int, says, session string, size int) {
		t.Helper()
		body := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n\r\n" + strings.Repeat("z", size) + "\r\n--x--\r\n"
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.addr+"/api/method/upload_file", strings.NewReader(body))
		require.NoError(t, err)
		req.Host = site
		req.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		req.Header.Set("Cookie", session)
		resp, err := need.HTTP.Do(req)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
		require.Equal(t, status, resp.StatusCode, "%s", text)
		require.Contains(t, string(text), says)
	}
	upload(200, `"file_size": 3000000`, session, 3_000_000)
	upload(403, "PermissionError", "", 10)
	upload(417, "MaxFileSizeReachedError", session, 26<<20)

	b.run(0, "--site "+site+" set-maintenance-mode on")
	want(503, "SessionStopped", site, "/", "")
	want(503, "SessionStopped", site, "/api/method/ping", "")
	want(200, "pong", "b.example.com", "/api/method/ping", "")
	b.run(0, "--site "+site+" set-config allow_reads_during_maintenance 1")
	want(200, "pong", site, "/api/method/ping", "")
	want(200, "<p>rows: 1</p>", site, "/", "")
	want(503, "InReadOnlyMode", site, "/api/resource/ToDo", session, "description=x")
	want(503, "InReadOnlyMode", site, "/api/method/login", "", "usr=Administrator", "pwd=s3cret%25")
	want(200, "<p>rows: 1</p>", site, "/", "")
	b.run(0, "--site "+site+" set-maintenance-mode off")
	want(200, `"doctype": "ToDo"`, site, "/api/resource/ToDo", session, "description=x")

	// Promoted by moving: the old name is free immediately, sessions stay.
	cmd := exec.CommandContext(t.Context(), "mv", b.path("sites/"+site), b.path("sites/new.example.com"))
	require.NoError(t, cmd.Run())
	want(404, "", site, "/", "")
	want(200, "<h1>new.example.com</h1>\n<p>rows: 2</p>", "new.example.com", "/", "")
	want(200, "Administrator", "new.example.com", "/api/method/frappe.auth.get_logged_user", session)

	b.query("DROP DATABASE _b")
	want(500, "OperationalError", "b.example.com", "/api/method/ping", "")
}
