package sim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prego/prego/lab/child"
)

// The sites of a cloud's hosts are stored in one MariaDB and one Redis, shared by all
// its hosts: a server for each would cost seconds and megabytes per host. Database
// names are unique across hosts, so sharing is only visible to someone who looks for
// another host's.
//
// Both listen on Unix sockets only, and start on the first connection: most clouds of
// tests never have a site.

// service is a server program that starts at the first connection to its socket, and again at the
// first one after its death, as units of a real host do.
type service struct {
	name   string
	dir    string
	socket string // that clients connect to
	start  func(ctx context.Context, socket string) (*exec.Cmd, error)

	process atomic.Pointer[child.Process] // nil until it runs
	mu      sync.Mutex
	failed  error // to start for the first time; guarded by mu
}

// services are what a cloud's hosts share.
type services struct {
	mariadb, redis *service
	rootPassword   string
	stop           context.CancelFunc
	work           sync.WaitGroup
}

// maxSocketPath is what the address of a Unix socket holds.
const maxSocketPath = 100

// startServices listens for the servers of this cloud. They end with close.
func (s *Sim) startServices() (*services, error) {
	dir, err := filepath.Abs(filepath.Join(s.cfg.StateDir, "services"))
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	out := &services{}
	if out.rootPassword, err = keptSecret(filepath.Join(dir, "mariadb-root")); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, out.stop = context.WithCancel(context.Background())
	sockets := dir
	if len(dir) > maxSocketPath-len("/mysqld-server.sock") {
		if sockets, err = os.MkdirTemp("", "prego-sim-"); err != nil {
			return nil, fmt.Errorf("services: %w", err)
		}
		context.AfterFunc(ctx, func() { _ = os.RemoveAll(sockets) })
	}
	out.mariadb = &service{name: "mysqld", dir: filepath.Join(dir, "mariadb"), start: out.startMariaDB}
	out.redis = &service{name: "redis", dir: filepath.Join(dir, "redis"), start: startRedis}
	for _, v := range []*service{out.mariadb, out.redis} {
		v.socket = filepath.Join(sockets, v.name+".sock")
		if err := v.listen(ctx, &out.work); err != nil {
			out.close()
			return nil, err
		}
	}
	return out, nil
}

func (s *services) close() {
	s.stop()
	s.work.Wait()
}

// listen passes connections on to the server, and starts it for the first.
func (v *service) listen(ctx context.Context, work *sync.WaitGroup) error {
	_ = os.Remove(v.socket)
	l, err := net.Listen("unix", v.socket) //nolint:noctx // ends with ctx
	if err != nil {
		return fmt.Errorf("service %s: %w", v.name, err)
	}
	if err := os.Chmod(v.socket, 0o777); err != nil {
		return fmt.Errorf("service %s: %w", v.name, err)
	}
	work.Go(func() {
		<-ctx.Done()
		_ = l.Close()
		v.mu.Lock()
		v.failed = ctx.Err() // it is never started again
		v.mu.Unlock()
		if p := v.process.Load(); p != nil {
			p.Stop(syscall.SIGTERM, 10*time.Second)
		}
	})
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { v.pass(ctx, conn) })
		}
	})
	return nil
}

func (v *service) pass(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	if v.ensure(ctx) != nil {
		return
	}
	server, err := net.Dial("unix", v.behind()) //nolint:noctx // local
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = conn.Close(), server.Close() })()
	go func() {
		_, _ = io.Copy(server, conn)
		_ = server.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(conn, server)
}

// behind is the server's own socket.
func (v *service) behind() string { return strings.TrimSuffix(v.socket, ".sock") + "-server.sock" }

// ensure starts the server unless it runs.
func (v *service) ensure(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.process.Load()
	if v.failed != nil || p != nil && !ended(p) {
		return v.failed
	}
	err := v.begin(ctx, v.behind())
	if err != nil {
		sayTo(v.dir+".log", err.Error())
	}
	if v.process.Load() == nil {
		v.failed = err // it can't be installed; what started and ended is retried
	}
	return err
}

func ended(p *child.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// begin starts the server and waits until it takes connections. It dies with this
// process, however that ends.
func (v *service) begin(ctx context.Context, socket string) error {
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return fmt.Errorf("service %s: %w", v.name, err)
	}
	cmd, err := v.start(ctx, socket)
	if err != nil {
		return fmt.Errorf("service %s: %w", v.name, err)
	}
	log, err := os.OpenFile(filepath.Clean(v.dir)+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("service %s: %w", v.name, err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("service %s: %w", v.name, err)
	}
	v.process.Store(p)
	for end := time.Now().Add(time.Minute); ; {
		if conn, err := net.Dial("unix", socket); err == nil { //nolint:noctx // local
			return conn.Close()
		}
		select {
		case <-p.Done():
			return fmt.Errorf("service %s: it ended; see %s.log", v.name, v.dir)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("service %s: it takes no connections; see %s.log", v.name, v.dir)
		}
	}
}

// mariadbOptions make a small server that loses data when the power goes off, which
// is no loss here, and is as fast as it can be.
func mariadbOptions(dir string) []string {
	return append([]string{
		"--no-defaults", "--datadir=" + dir, "--innodb-log-file-size=4M",
		"--innodb-data-file-path=ibdata1:10M:autoextend", "--innodb-undo-tablespaces=0",
		"--innodb-autoextend-increment=4", "--innodb-flush-method=nosync", "--debug-no-sync", "--sync-frm=0",
		// A server that starts removes the temporary tables in this directory, another's too.
		"--tmpdir=" + filepath.Dir(dir),
	}, child.MariaDBUser()...)
}

// installMariaDB makes the data of a server, unless there is some.
func installMariaDB(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "ibdata1")); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	install, err := findProgram("mariadb-install-db")
	if err != nil {
		return err
	}
	fresh := dir + ".new"
	_ = os.RemoveAll(fresh)
	cmd := exec.CommandContext(ctx, install, append(mariadbOptions(fresh), "--auth-root-authentication-method=normal",
		"--skip-test-db")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mariadb-install-db: %w: %s", err, out)
	}
	_ = os.Remove(dir)
	return os.Rename(fresh, dir)
}

// smallMariaDB are the options of a server for some sites.
func smallMariaDB(dir, socket, initFile string) []string {
	return slices.Concat(mariadbOptions(dir), child.DeclaredMariaDB(), []string{
		"--socket=" + socket, "--pid-file=" + dir + ".pid", "--init-file=" + initFile, "--skip-log-bin",
		"--performance-schema=OFF", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0",
		"--innodb-doublewrite=0", "--key-buffer-size=1M", "--aria-pagecache-buffer-size=2M",
	})
}

func (s *services) startMariaDB(ctx context.Context, socket string) (*exec.Cmd, error) {
	dir := s.mariadb.dir
	if err := installMariaDB(ctx, dir); err != nil {
		return nil, err
	}
	// Root may come from every host, as the image of a real host has it.
	password := "IDENTIFIED BY '" + s.rootPassword + "'"
	initial := "SET sql_log_bin = 0;\nALTER USER root@localhost " + password +
		";\nCREATE USER IF NOT EXISTS root@'%' " + password + ";\n" +
		"ALTER USER root@'%' " + password +
		";\nGRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;\nDELETE FROM mysql.global_priv WHERE User = '';\nFLUSH PRIVILEGES;\n"
	if err := os.WriteFile(dir+"-init.sql", []byte(initial), 0o600); err != nil {
		return nil, err
	}
	program, err := findProgram("mariadbd")
	if err != nil {
		return nil, err
	}
	return exec.Command(program, append(smallMariaDB(dir, socket, dir+"-init.sql"), "--skip-networking")...), nil //nolint:noctx // found above; ended by listen
}

func startRedis(_ context.Context, socket string) (*exec.Cmd, error) {
	program, err := findProgram("redis-server")
	if err != nil {
		return nil, err
	}
	return exec.Command(program, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "777", "--save", ""), nil //nolint:noctx // found above; ended by listen
}

// findProgram finds a server's program, which may be where only root's PATH leads.
func findProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/libexec"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: sites of simulated hosts need it", name)
}

// keptSecret is a file's secret, made when there is none.
func keptSecret(path string) (string, error) {
	b, err := os.ReadFile(filepath.Clean(path))
	if errors.Is(err, os.ErrNotExist) {
		b = []byte(rand.Text() + rand.Text())
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("secret: %w", err)
	}
	return string(b), nil
}
