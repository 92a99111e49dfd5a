package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
)

// What containers of process hosts run for real: the servers of an edge, as programs of
// this machine, and a bench's web server, behind the port that its frontend publishes.
// Other published ports answer each request with the container's name.

// restartPause is how long a program that ended stays ended: containers of the stack are
// restarted until they are stopped.
const restartPause = 200 * time.Millisecond

// program is the program of this machine that a container runs, "" if none.
func (d *docker) program(c *container) string {
	image := path.Base(strings.SplitN(c.Image, ":", 2)[0])
	return d.host.sim.cfg.Programs[image]
}

// run starts what a container really is, if it is anything. Call it with the lock held.
func (d *docker) run(c *container) {
	ctx, stop := context.WithCancel(d.host.sim.ctx)
	c.stop = stop
	if p := d.program(c); p != "" {
		go d.keepProgram(ctx, c, p)
	}
	if c.Fault == "unhealthy" {
		return
	}
	if strings.HasSuffix(c.Name, backend) && d.host.hasBench() {
		d.serveBench(ctx, c)
	}
	for port, at := range c.published() {
		l, err := net.Listen("tcp", at) //nolint:noctx // ends with the container
		if err != nil {
			d.host.say(fmt.Sprintf("container %s: port %s: %v", c.Name, at, err))
			continue
		}
		c.open = append(c.open, l)
		var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintln(w, c.Name)
		})
		if strings.HasSuffix(c.Name, frontend) && port == frontendPort && d.host.hasBench() {
			handler = d.host.bench(ctx)
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		context.AfterFunc(ctx, func() { _ = server.Close() })
		go func() { _ = server.Serve(l) }()
	}
}

// How the name of a bench's frontend ends, and where it listens in its container.
const (
	frontend     = "-frontend"
	frontendPort = "8080/tcp"
	// The container in which commands run, and whose image is the bench's code.
	backend = "-backend"
)

// serveBench gives the bench the code of its container's image, and its commands a web server,
// at webserver_port of the common configuration.
func (d *docker) serveBench(ctx context.Context, c *container) {
	fail := func(err error) { d.host.say(fmt.Sprintf("container %s: %v", c.Name, err)) }
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // ends with the container
	if err != nil {
		fail(err)
		return
	}
	c.open = append(c.open, l)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	common, err := d.host.mergedConfig(map[string]any{"webserver_port": json.Number(port)})
	if err != nil {
		fail(err)
		return
	}
	if err := errors.Join(d.host.write(wire.BenchDir+"/.sim/image", c.Image+"\n", 0o644),
		d.host.write(wire.BenchDir+"/sites/common_site_config.json", common, 0o644)); err != nil {
		fail(err)
		return
	}
	server := &http.Server{Handler: d.host.bench(ctx), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(l) }()
}

// hasBench reports whether sites are made on this host.
func (h *processHost) hasBench() bool { return h.role() == "app" || h.role() == "node" }

// published are a container's published ports with their addresses. All process hosts are
// on this machine, so only addresses that are one host's alone can be listened on.
func (c *container) published() map[string]string {
	out := map[string]string{}
	bindings, _ := c.Host["PortBindings"].(map[string]any)
	for port, list := range bindings {
		list, _ := list.([]any)
		for _, b := range list {
			b, _ := b.(map[string]any)
			host, _ := b["HostIp"].(string)
			number, _ := b["HostPort"].(string)
			if a, err := netip.ParseAddr(host); err == nil && a.IsLoopback() && host != "127.0.0.1" &&
				dataPort(number) == "" {
				out[port] = net.JoinHostPort(host, number)
			}
		}
	}
	return out
}

// dataPort is a role whose server listens at a port by itself, see process_data.go.
func dataPort(number string) string {
	for role, port := range dataPorts {
		if number == fmt.Sprint(port) {
			return role
		}
	}
	return ""
}

// keepProgram runs a program until ctx ends. Absolute paths of its arguments are the
// host's.
func (d *docker) keepProgram(ctx context.Context, c *container, program string) {
	root := d.host.shortRoot()
	for _, dir := range []string{wire.EdgeDir, wire.EdgeRunDir} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			d.host.say(err.Error())
		}
	}
	var args []string
	if path.Base(program) == "haproxy" {
		args = []string{"-W", "-db"} // as the entry point of its image does
	}
	words, _ := c.Config["Cmd"].([]any)
	for _, w := range words[min(1, len(words)):] {
		word := fmt.Sprint(w)
		if path.IsAbs(word) {
			word = filepath.Join(root, word)
		}
		args = append(args, word)
	}
	for ctx.Err() == nil {
		if err := d.runProgram(ctx, c.Name, program, args); err != nil && ctx.Err() == nil {
			d.host.say(fmt.Sprintf("container %s ended: %v", c.Name, err))
		}
		_ = sleep(ctx, restartPause)
	}
}

func (d *docker) runProgram(ctx context.Context, name, program string, args []string) error {
	log, err := os.OpenFile(filepath.Join(d.host.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, args...) //nolint:noctx // ended below, as its container is
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, d.host.dir
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/bin", "HOME=" + d.host.dir, "XDG_CONFIG_HOME=" + d.host.dir,
		"XDG_DATA_HOME=" + d.host.dir,
	}
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return p.Wait()
	case <-ctx.Done():
		p.Stop(syscall.SIGTERM, time.Second)
		return ctx.Err()
	}
}

// shortRoot is another name of the host's root: the paths of Unix sockets below it must fit
// in their addresses.
func (h *processHost) shortRoot() string {
	root, err := filepath.Abs(h.root())
	if err != nil {
		return h.root()
	}
	name := fnv.New64a()
	_, _ = name.Write([]byte(root)) // never fails
	link := filepath.Join(os.TempDir(), fmt.Sprintf("prego-host-%x", name.Sum64()))
	if was, err := os.Readlink(link); err == nil && was == root {
		return link
	}
	_ = os.Remove(link)
	if err := os.Symlink(root, link); err != nil {
		return root
	}
	context.AfterFunc(h.sim.ctx, func() { _ = os.Remove(link) })
	return link
}

// serveSites is the bench's web server: one application for all its sites, as gunicorn runs
// it.
const serveSites = `
import sys
sys.path[:0] = [sys.argv[1], "/usr/lib/python3/dist-packages"]
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from frappe.app import application

class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

class Handler(WSGIRequestHandler):
    def address_string(self):
        return self.client_address[0]
    def log_message(self, *args):
        pass

server = make_server("127.0.0.1", 0, application, Server, Handler)
print(server.server_port, flush=True)
server.serve_forever()
`

// bench is the web server of the host's bench, which is started for the first request.
func (h *processHost) bench(ctx context.Context) http.Handler {
	start := sync.OnceValues(func() (*httputil.ReverseProxy, error) {
		cmd := exec.CommandContext(ctx, "/usr/bin/python3", "-IS", "-c", serveSites, h.sim.benchDir)
		cmd.Dir = filepath.Join(h.root(), wire.BenchDir, "sites")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if _, err := child.Start(cmd, syscall.SIGKILL); err != nil {
			return nil, err
		}
		port, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			return nil, err
		}
		to := &url.URL{Scheme: "http", Host: "127.0.0.1:" + strings.TrimSpace(port)}
		return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		}}, nil
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/socket.io") {
			serveEvents(w, r)
			return
		}
		proxy, err := start()
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}
