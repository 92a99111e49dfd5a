package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
)

// StandIn is the image that every simulated host with a real engine has, since
// none can be pulled: one static program, at StandInProgram.
const (
	StandIn        = "prego/stand-in:1"
	StandInProgram = "/stand-in"
)

// dockerd is a real engine on a simulated host, with the certificates that the
// host's agent got for it. Its containers have no network but what they ask for.
type dockerd struct {
	process *child.Process
	data    string
	run     string // sockets have short paths, so not below the host's directory
}

func (h *processHost) startRealDocker(ctx context.Context) (*dockerd, error) {
	run, err := os.MkdirTemp("", "prego-docker-")
	if err != nil {
		return nil, err
	}
	dir, certs := filepath.Join(h.dir, "docker"), filepath.Join(h.root(), wire.DockerTLSDir)
	d := &dockerd{run: run, data: filepath.Join(dir, "data")}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	config, logFile := filepath.Join(dir, "daemon.json"), filepath.Join(dir, "log")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("dockerd", "--config-file", config, "--data-root", d.data, "--exec-root", filepath.Join(run, "exec"), //nolint:noctx // ends with close
		"--pidfile", filepath.Join(run, "pid"), "--bridge=none", "--iptables=false", "--ip-forward=false",
		"--ip-masq=false", "--shutdown-timeout=5", "-H", "unix://"+filepath.Join(run, "sock"), "-H",
		"tcp://"+net.JoinHostPort(h.addr, strconv.Itoa(h.sim.cfg.DockerPort)),
		"--tlsverify", "--tlscacert", filepath.Join(certs, "ca.pem"), "--tlscert", filepath.Join(certs, "cert.pem"),
		"--tlskey", filepath.Join(certs, "key.pem"))
	cmd.Stdout, cmd.Stderr = log, log
	if d.process, err = child.StartDaemon(cmd, run); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if err := d.prepare(ctx, logFile, h.sim.cfg.StandIn); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// prepare waits until the engine answers, and gives it its image.
func (d *dockerd) prepare(ctx context.Context, logFile, program string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := client.New(client.WithHost("unix://" + filepath.Join(d.run, "sock")))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for {
		_, err := c.Ping(ctx, client.PingOptions{})
		if err == nil {
			break
		}
		select {
		case <-d.process.Done():
			return fmt.Errorf("docker: dockerd ended; see %s", logFile)
		case <-ctx.Done():
			return fmt.Errorf("docker: %w; see %s", err, logFile)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if _, err := c.ImageInspect(ctx, StandIn); err == nil || !cerrdefs.IsNotFound(err) {
		return err
	}
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(tarOf(w, program, StandInProgram[1:])) }()
	out, err := c.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, StandIn,
		client.ImageImportOptions{})
	if err != nil {
		return fmt.Errorf("docker: import: %w", err)
	}
	defer func() { _ = out.Close() }()
	_, err = io.Copy(io.Discard, out)
	return err
}

func (d *dockerd) close() {
	d.process.Stop(syscall.SIGTERM, 20*time.Second)
	// dockerd leaves its data mounted, and so the host's directory in use.
	_ = syscall.Unmount(d.data, 2) // MNT_DETACH
	_ = os.RemoveAll(d.run)
}
