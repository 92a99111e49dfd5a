package app

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/agentclient"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/relay"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/server"
)

// newRelayClient lets the API do what takes keys that only a worker has.
func newRelayClient(p *Process) (*relay.Client, error) {
	ca, err := pki.Open(p.cfg.KeysDir, p.cfg.Environment)
	if err != nil {
		return nil, err
	}
	if err := ca.Need([]pki.Purpose{pki.RelayClient}, []pki.Purpose{pki.RelayServer}); err != nil {
		return nil, err
	}
	return relay.NewClient(p.cfg.Relay.URL, ca.RelayClientTLS(), p.log.Named("relay")), nil
}

// keyholder is what a worker does for the API.
type keyholder struct {
	shell
	*containers
	importer
	*token.Box
}

// newRelay serves the API's requests that need keys.
func newRelay(p *Process, ca *pki.Authority, engines *containers) (*relay.Server, error) {
	agents, err := newAgents(p, ca)
	if err != nil {
		return nil, err
	}
	if err := ca.Need([]pki.Purpose{pki.RelayServer}, []pki.Purpose{pki.RelayClient}); err != nil {
		return nil, err
	}
	imports, err := newImporter(p, ca)
	if err != nil {
		return nil, err
	}
	box, err := token.NewBox(p.cfg.Worker.MasterKey, p.cfg.Worker.MasterKeysEarlier...)
	if err != nil {
		return nil, err
	}
	return &relay.Server{Keys: keyholder{shell{agents}, engines, imports, box}, Log: p.log.Named("relay")}, nil
}

// shell runs operators' commands through the agents.
type shell struct{ agents *agentclient.Client }

func (s shell) Run(ctx context.Context, addr string, c server.Command, timeout time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error) {
	r, err := s.agents.Stream(ctx, c.ServerID, addr, wire.ExecRequest{
		Kind: wire.CommandKind(c.Kind), Args: c.Args, AuditID: c.AuditID, TenantID: string(c.TenantID), Secrets: c.Secrets, TimeoutSeconds: int((timeout + time.Second - 1) / time.Second),
	}, onLine)
	if err != nil {
		return server.CommandOutcome{}, err
	}
	return server.CommandOutcome{
		ExitCode: &r.ExitCode, Duration: time.Duration(r.DurationMs) * time.Millisecond, Stdout: r.StdoutTruncated, Stderr: r.StderrTruncated,
	}, nil
}

func (c *containers) ListContainers(ctx context.Context, serverID prego.ServerID, addr string) ([]server.ContainerInfo, error) {
	h, err := c.hosts.Host(serverID, addr)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.List(ctx)
	slices.SortFunc(list, func(x, y server.ContainerInfo) int { return strings.Compare(x.Name, y.Name) })
	return list, err
}

func (c *containers) StartInstance(ctx context.Context, serverID prego.ServerID, addr string, org prego.OrgID, spec server.ContainerSpec) error {
	h, err := c.hosts.Host(serverID, addr)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Run(ctx, org, spec)
}

func (c *containers) RemoveInstance(ctx context.Context, serverID prego.ServerID, addr, name string) error {
	h, err := c.hosts.Host(serverID, addr)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Remove(ctx, name)
}

func (c *containers) ContainerLogs(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role, name string, tail int, follow bool, line func(string) error) error {
	return c.on(ctx, serverID, addr, role, false, func(h *dockerhost.Host, specs []server.ContainerSpec) error {
		mask := prego.Redact // an undeclared container has no known secrets
		for _, s := range specs {
			if s.Name == name {
				mask = s.Redact
			}
		}
		w := &lines{each: func(s string) error { return line(mask(s)) }}
		err := h.Logs(ctx, name, dockerhost.LogOptions{Tail: tail, Follow: follow}, w)
		if errors.Is(err, dockerhost.ErrNoContainer) {
			return prego.Errorf(prego.CodeContainerNotFound, "server %s has no container %s", serverID, name)
		}
		if err != nil {
			return err
		}
		return w.end()
	})
}

// maxLine is the maximum length of a log line, in bytes; longer lines are split.
const maxLine = 64 << 10

// lines calls each with every line written to it.
type lines struct {
	each func(string) error
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 && len(l.rest) < maxLine {
			return len(p), nil
		}
		line, after := l.rest, []byte(nil)
		if i >= 0 {
			line, after = l.rest[:i], l.rest[i+1:]
		}
		if err := l.each(strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "?")); err != nil {
			return 0, err
		}
		l.rest = append([]byte(nil), after...)
	}
}

// end is called when nothing more is written.
func (l *lines) end() error {
	if len(l.rest) == 0 {
		return nil
	}
	return l.each(strings.ToValidUTF8(string(l.rest), "?"))
}
