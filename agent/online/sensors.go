package online

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// sensors read the host's condition from the kernel.
type sensors struct {
	root string
}

type reading struct {
	bootID                    string
	load1, memoryPct, diskPct float64
	dockerState               string
}

func (s sensors) read(ctx context.Context) reading {
	r := reading{bootID: host.BootID(s.root), dockerState: dockerState(ctx, filepath.Join(s.root, dockerSocket))}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		if fields := strings.Fields(string(b)); len(fields) > 0 {
			r.load1, _ = strconv.ParseFloat(fields[0], 64)
		}
	}
	r.memoryPct = memoryPct()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.root, &fs); err == nil && fs.Blocks > 0 {
		r.diskPct = 100 * usedOf(fs)
	}
	return r
}

func memoryPct() float64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var total, available float64
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kb, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "MemTotal:":
			total = kb
		case "MemAvailable:":
			available = kb
		}
	}
	if total == 0 {
		return 0
	}
	return 100 * (1 - available/total)
}

// isAlive reports whether the process of a pid file exists, under any owner.
func isAlive(pidFile string) bool {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil || pid < 1 {
		return false
	}
	err = syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// dockerSocket is where dockerd listens locally. The agent can only check whether it exists: its user has no access
// to the API. A refusal means nothing, since systemd keeps the socket open after dockerd has ended.
const dockerSocket = "/run/docker.sock"

func dockerState(ctx context.Context, socket string) string {
	if _, err := os.Stat(socket); err != nil {
		return wire.DockerUnavailable
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
	if err != nil {
		return wire.DockerUnavailable
	}
	resp, err := client.Do(req)
	if errors.Is(err, fs.ErrPermission) && isAlive(filepath.Join(filepath.Dir(socket), "docker.pid")) {
		return wire.DockerRunning
	}
	if err != nil {
		return wire.DockerStopped
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return wire.DockerStopped
	}
	return wire.DockerRunning
}

// usedOf is how full a file system is, from 0 to 1, as df reports it, for users other than root. The reserve for root
// is not counted.
func usedOf(fs syscall.Statfs_t) float64 {
	used := fs.Blocks - fs.Bfree
	if used+fs.Bavail == 0 {
		return 1
	}
	return float64(used) / float64(used+fs.Bavail)
}
