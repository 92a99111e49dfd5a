package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
)

// A shard or a Redis pool has a separate server, unlike the benches, which share theirs: with its own root, its own
// certificate, and TLS at its private address. It starts at the first connection, from the agent or from another host.
//
// All hosts' connections come from one address of loopback, so that its users are let in
// from there.

// dataServer is the server of a process host with a data role.
type dataServer struct {
	service
	host *processHost
	port atomic.Int32 // on loopback, behind the private address; of its last start
	stop context.CancelFunc
	work sync.WaitGroup
}

// Ports at which data servers are reached.
var dataPorts = map[string]int{"db-shard": 3306, "redis-pool": 6379}

// role is the host's role, from its user_data.
func (h *processHost) role() string {
	var cfg wire.HostConfig
	if b, err := os.ReadFile(filepath.Join(h.root(), wire.HostConfigPath)); err == nil {
		_ = json.Unmarshal(b, &cfg) // checked by cloudInit
	}
	return cfg.Role
}

// hasData reports whether this is a shard or a pool that others can reach.
func (h *processHost) hasData() bool {
	a, err := netip.ParseAddr(h.privateAddress())
	return err == nil && a.IsLoopback() && dataPorts[h.role()] != 0
}

func (h *processHost) privateAddress() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.private
}

// startData prepares the host as its boot does, and listens for its server. A host without a
// private address, or that has the server already, is left alone.
func (h *processHost) startData(ctx context.Context) error {
	if !h.hasData() {
		return nil
	}
	h.dataMu.Lock()
	defer h.dataMu.Unlock()
	if h.data != nil {
		return nil
	}
	dir := filepath.Join(h.root(), "var/lib/docker/volumes")
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		_ = os.RemoveAll(filepath.Join(h.root(), wire.SecretsDir)) // of a bench: root's password of the shared server
	}
	prepare := exec.CommandContext(ctx, filepath.Join(h.root(), wire.AgentBinary), "prepare", "--root", h.root())
	if out, err := prepare.CombinedOutput(); err != nil {
		return fmt.Errorf("prepare: %w: %s", err, out)
	}
	d := &dataServer{host: h}
	var err error
	socket := wire.MariaDBSocket
	d.name, d.start = "mysqld", d.startMariaDB
	if h.role() == "redis-pool" {
		socket, d.name, d.start = wire.RedisSocket, "redis", d.startRedis
	}
	d.dir = filepath.Join(dir, d.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	sockets, err := os.MkdirTemp("", "prego-sim-")
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	d.socket = filepath.Join(sockets, d.name+".sock")
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = func() { stop(); d.work.Wait(); _ = os.RemoveAll(sockets) }
	link := filepath.Join(h.root(), socket)
	_ = os.Remove(link)
	err = errors.Join(os.Symlink(d.socket, link), d.listen(serving, &d.work),
		d.listenPrivate(serving, net.JoinHostPort(h.privateAddress(), strconv.Itoa(dataPorts[h.role()]))))
	if err != nil {
		d.stop()
		return fmt.Errorf("data: %w", err)
	}
	h.data = d
	return nil
}

// stopData ends the server, with the host.
func (h *processHost) stopData() {
	h.dataMu.Lock()
	defer h.dataMu.Unlock()
	if h.data != nil {
		h.data.stop()
		h.data = nil
	}
}

// listenPrivate passes on connections to the private address.
func (d *dataServer) listenPrivate(ctx context.Context, addr string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	d.work.Go(func() {
		<-ctx.Done()
		_ = l.Close()
	})
	d.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			d.work.Go(func() { d.passPrivate(ctx, conn) })
		}
	})
	return nil
}

func (d *dataServer) passPrivate(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	if d.ensure(ctx) != nil {
		return
	}
	server, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp",
		net.JoinHostPort("127.0.0.1", strconv.Itoa(int(d.port.Load()))))
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = conn.Close(), server.Close() })()
	go func() {
		_, _ = io.Copy(server, conn)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(conn, server)
}

// tls waits for the certificates, which come some time after the host has enrolled.
func (d *dataServer) tls(ctx context.Context, mount string) (ca, cert, key string, err error) {
	dir := filepath.Join(d.host.root(), mount, "tls")
	for end := time.Now().Add(time.Minute); ; {
		missing := 0
		for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				missing++
			}
		}
		if missing == 0 {
			return filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), nil
		}
		if time.Now().After(end) {
			return "", "", "", fmt.Errorf("there are no certificates in %s", dir)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return "", "", "", err
		}
	}
}

// startMariaDB starts a shard's server as the declared stack does, with root's password as
// its image sets it.
func (d *dataServer) startMariaDB(ctx context.Context, socket string) (*exec.Cmd, error) {
	ca, cert, key, err := d.tls(ctx, wire.MariaDBMount)
	if err != nil {
		return nil, err
	}
	if err := installMariaDB(ctx, d.dir); err != nil {
		return nil, err
	}
	mount := filepath.Join(d.host.root(), wire.MariaDBMount)
	root, err := os.ReadFile(filepath.Join(mount, "root-password"))
	if err != nil {
		return nil, err
	}
	initial, err := os.ReadFile(filepath.Join(mount, "init.sql"))
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%sALTER USER root@localhost IDENTIFIED BY '%s';\nDELETE FROM mysql.global_priv WHERE User = '';\nFLUSH PRIVILEGES;\n", initial, strings.TrimSpace(string(root)))
	if err := os.WriteFile(d.dir+"-init.sql", []byte(text), 0o600); err != nil {
		return nil, err
	}
	program, err := findProgram("mariadbd")
	if err != nil {
		return nil, err
	}
	port, err := d.newPort()
	if err != nil {
		return nil, err
	}
	return exec.Command(program, append(smallMariaDB(d.dir, socket, d.dir+"-init.sql"), //nolint:noctx // found above; ended by listen
		"--bind-address=127.0.0.1", "--port="+strconv.Itoa(port), "--skip-name-resolve",
		"--require-secure-transport=ON", "--ssl-ca="+ca, "--ssl-cert="+cert, "--ssl-key="+key)...), nil
}

func (d *dataServer) startRedis(ctx context.Context, socket string) (*exec.Cmd, error) {
	ca, cert, key, err := d.tls(ctx, wire.RedisMount)
	if err != nil {
		return nil, err
	}
	program, err := findProgram("redis-server")
	if err != nil {
		return nil, err
	}
	port, err := d.newPort()
	if err != nil {
		return nil, err
	}
	return exec.Command(program, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "777", "--save", "", "--dir", d.dir, //nolint:noctx // found above; ended by listen
		"--aclfile", filepath.Join(d.host.root(), wire.RedisUsersDir, "users.acl"), "--databases", "4096",
		"--maxmemory-policy", "allkeys-lru",
		"--bind", "127.0.0.1", "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "yes", "--tls-ca-cert-file",
		ca, "--tls-cert-file", cert, "--tls-key-file", key), nil
}

// newPort chooses a port for a start of the server.
func (d *dataServer) newPort() (int, error) {
	port, err := child.FreePort()
	d.port.Store(int32(port))
	return port, err
}

// installCertificates gives the host's services the certificate that its agent has, whenever
// that is another one, as a unit of root's does on a real host. A running MariaDB or Redis loads it.
func (h *processHost) installCertificates(ctx context.Context) {
	mount := map[string]string{
		"db-shard": wire.MariaDBMount, "redis-pool": wire.RedisMount,
		"app": wire.BenchMount,
	}[h.role()]
	if mount == "" {
		return
	}
	from, into := filepath.Join(h.root(), wire.ServiceTLSDir), filepath.Join(h.root(), mount, wire.TLSDir)
	var last time.Time
	for sleep(ctx, 200*time.Millisecond) == nil {
		info, err := os.Stat(filepath.Join(from, "cert.pem"))
		if err != nil || info.ModTime().Equal(last) {
			continue
		}
		if err := h.copyCertificates(ctx, from, into); err != nil {
			h.log.Warn("certificates are not installed", zap.Error(err))
			continue
		}
		last = info.ModTime()
	}
}

func (h *processHost) copyCertificates(ctx context.Context, from, into string) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"ca.pem", "key.pem", "cert.pem"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(into, name+".new"), b, 0o644)
		}
		if err == nil {
			err = os.Rename(filepath.Join(into, name+".new"), filepath.Join(into, name))
		}
		if err != nil {
			return err
		}
	}
	h.dataMu.Lock()
	running := h.data != nil && h.data.process.Load() != nil
	h.dataMu.Unlock()
	if !running {
		return nil
	}
	out, err := exec.CommandContext(ctx, filepath.Join(h.root(), wire.AgentBinary), "certs", "--root",
		h.root()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("certs: %w: %s", err, out)
	}
	return nil
}
