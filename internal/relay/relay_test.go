package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/server"
)

// fakeHosts give the answers of a test.
type fakeHosts struct {
	run    func(ctx context.Context, addr string, c server.Command, timeout time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error)
	list   func(serverID prego.ServerID, addr string) ([]server.ContainerInfo, error)
	logs   func(ctx context.Context, name string, tail int, follow bool, line func(string) error) error
	repair func(serverID prego.ServerID, role prego.Role) ([]server.ContainerDrift, error)
}

func (f *fakeHosts) Run(ctx context.Context, addr string, c server.Command, timeout time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error) {
	return f.run(ctx, addr, c, timeout, onLine)
}

func (f *fakeHosts) ListContainers(_ context.Context, serverID prego.ServerID, addr string) ([]server.ContainerInfo, error) {
	return f.list(serverID, addr)
}

func (f *fakeHosts) ContainerLogs(ctx context.Context, _ prego.ServerID, _ string, _ prego.Role, name string, tail int, follow bool, line func(string) error) error {
	return f.logs(ctx, name, tail, follow, line)
}

func (f *fakeHosts) RepairContainers(_ context.Context, serverID prego.ServerID, _ string, role prego.Role) ([]server.ContainerDrift, error) {
	return f.repair(serverID, role)
}

func (f *fakeHosts) IssueImport(_ context.Context, s server.Server) (string, error) {
	return string("bootstrap of "+s.ServerID+" ") + string(s.Role) + " " + string(s.Region) + " " + strings.Join(s.Tags, ",") + " " + strconv.Itoa(s.Attempt), nil
}

func (f *fakeHosts) Seal(_ context.Context, belongsTo string, secret []byte) (sealed []byte, keyID string, err error) {
	return []byte("sealed " + belongsTo + " " + string(secret)), "k1", nil
}

func (f *fakeHosts) Reseal(_ context.Context, belongsTo, keyID string, sealed []byte) (sealedAnew []byte, newKeyID string, err error) {
	if keyID != "k1" {
		return nil, "", &prego.Error{Code: prego.CodeSealed, Message: "m"}
	}
	return []byte("again " + belongsTo + " " + string(sealed)), "k2", nil
}

// bundle is an API and the workers that its relay's URL leads to.
type bundle struct {
	t      *testing.T
	ca     *pki.Authority
	client *Client
	// dial is where the next connection goes.
	dial atomic.Pointer[string]
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, ca: authority(t)}
	b.client = b.newClient(b.ca)
	return b
}

func (b *bundle) newClient(ca *pki.Authority) *Client {
	c := NewClient("https://workers:8446/", ca.RelayClientTLS(), zap.NewNop())
	c.pause = time.Millisecond
	transport(c).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr != "workers:8446" {
			return nil, errors.New("dialled " + addr)
		}
		return (&net.Dialer{}).DialContext(ctx, network, *b.dial.Load())
	}
	return c
}

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, pki.Init(dir, "test"))
	ca, err := pki.Open(dir, "test")
	require.NoError(t, err)
	return ca
}

// worker starts one; stop is SIGTERM, and waits for its end. The API is led to it.
func (b *bundle) worker(hosts Keyholder, ca *pki.Authority, drain time.Duration) (stop func(), l net.Listener) {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Keys: hosts, Log: zap.NewNop()}).Serve(ctx, l, ca.RelayTLS(), drain) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-done)
	})
	b.t.Cleanup(stop)
	b.leadsTo(l.Addr().String())
	return stop, l
}

func (b *bundle) leadsTo(addr string) { b.dial.Store(&addr) }

var command = server.Command{AuditID: "operator-1", ServerID: "app-1", Kind: "bench", Args: []string{"list-sites"}, Actor: prego.ActorOperator, By: "alice"}

// TestWhatTheHostsSayArrives: nothing of a request or an answer is lost on the way, errors
// of every kind included.
func TestWhatTheHostsSayArrives(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, three := t.Context(), 3
	outcome := server.CommandOutcome{ExitCode: &three, Duration: 1500 * time.Millisecond, Stdout: "out", Stderr: "err"}
	list := []server.ContainerInfo{{Name: "bench", Image: "i:1", State: "exited", ExitCode: 1, OOMKilled: true, StartedAt: time.Now().UTC().Round(0), Instance: "i-1"}}
	drift := []server.ContainerDrift{{Container: "bench", Kind: server.DriftMissing, Detail: "d"}}
	hosts := &fakeHosts{
		run: func(_ context.Context, addr string, c server.Command, timeout time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error) {
			require.Equal(t, []any{"192.0.2.7", command, 90 * time.Second}, []any{addr, c, timeout})
			onLine("stdout", "a\tb<&>\u2028")
			onLine("stderr", "")
			return outcome, nil
		},
		list: func(serverID prego.ServerID, addr string) ([]server.ContainerInfo, error) {
			require.Equal(t, "app-1 192.0.2.7", string(serverID+" ")+addr)
			return list, nil
		},
		logs: func(_ context.Context, name string, tail int, follow bool, line func(string) error) error {
			require.Equal(t, "bench 7 true", fmt.Sprint(name, " ", tail, " ", follow))
			return errors.Join(line("one"), line(""), line("three"))
		},
		repair: func(serverID prego.ServerID, role prego.Role) ([]server.ContainerDrift, error) {
			require.Equal(t, "app-1 app", string(serverID+" ")+string(role))
			return drift, nil
		},
	}
	b.worker(hosts, b.ca, time.Second)

	var lines []string
	got, err := b.client.Run(ctx, "192.0.2.7", command, 90*time.Second, func(stream, line string) { lines = append(lines, stream+":"+line) })
	require.NoError(t, err)
	require.Equal(t, outcome, got)
	require.Equal(t, []string{"stdout:a\tb<&>\u2028", "stderr:"}, lines)
	containers, err := b.client.ListContainers(ctx, "app-1", "192.0.2.7")
	require.NoError(t, err)
	require.Equal(t, list, containers)
	lines = nil
	require.NoError(t, b.client.ContainerLogs(ctx, "app-1", "192.0.2.7", prego.RoleApp, "bench", 7, true, func(l string) error { lines = append(lines, l); return nil }))
	require.Equal(t, []string{"one", "", "three"}, lines)
	repaired, err := b.client.RepairContainers(ctx, "app-1", "192.0.2.7", prego.RoleApp)
	require.NoError(t, err)
	require.Equal(t, drift, repaired)
	bootstrap, err := b.client.IssueImport(ctx, server.Server{ServerID: "app-1", Role: prego.RoleApp, Region: prego.RegionEU, Tags: []string{"gpu", "ssd"}, Attempt: 3})
	require.NoError(t, err)
	require.Equal(t, "bootstrap of app-1 app eu gpu,ssd 3", bootstrap)

	sealed, keyID, err := b.client.Seal(ctx, "registry/a", []byte{0xff, 0})
	require.NoError(t, err)
	require.Equal(t, "sealed registry/a \xff\x00 k1", string(sealed)+" "+keyID)
	sealed, keyID, err = b.client.Reseal(ctx, "registry/a", "k1", []byte{0xfe})
	require.NoError(t, err)
	require.Equal(t, "again registry/a \xfe k2", string(sealed)+" "+keyID)
	_, _, err = b.client.Reseal(ctx, "registry/a", "k0", nil)
	require.Equal(t, prego.CodeSealed, prego.CodeOf(err))

	for _, want := range []error{
		&server.CommandError{Kind: "bench", ExitCode: 2, Stderr: "s", Permanent: true, Code: server.CommandFailed, Message: "m"},
		&server.ContainerError{Container: "bench", Message: "m"},
		&prego.Error{Code: prego.CodeContainerNotFound, Message: "m", Field: "f"},
		errors.New("dial tcp 192.0.2.7:2376: i/o timeout"),
	} {
		hosts.repair = func(prego.ServerID, prego.Role) ([]server.ContainerDrift, error) { return drift, want }
		repaired, err := b.client.RepairContainers(ctx, "app-1", "192.0.2.7", prego.RoleApp)
		require.Equal(t, want, err)
		require.Equal(t, drift, repaired, "the repairs before the failure")
	}
	refused := &server.CommandError{Kind: "bench", Permanent: true, Code: "command_not_allowed", Message: "m"}
	hosts.run = func(context.Context, string, server.Command, time.Duration, func(string, string)) (server.CommandOutcome, error) {
		return server.CommandOutcome{}, fmt.Errorf("wrapped: %w", refused)
	}
	_, err = b.client.Run(ctx, "192.0.2.7", command, time.Second, func(string, string) {})
	require.Equal(t, refused, err)
}

// TestOnlyTheAPIAndOnlyAWorker: keys of another installation, and keys for another purpose
// of this one, open nothing on either side.
func TestOnlyTheAPIAndOnlyAWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	asked := 0
	hosts := &fakeHosts{list: func(prego.ServerID, string) ([]server.ContainerInfo, error) { asked++; return nil, nil }}
	b.worker(hosts, b.ca, time.Second)
	_, err := b.newClient(authority(t)).ListContainers(t.Context(), "app-1", "")
	var ce *server.CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, server.CommandMistrusted, ce.Code)

	for name, config := range map[string]func() *Client{
		"the worker's own certificate": func() *Client {
			c := b.newClient(b.ca)
			server := b.ca.RelayTLS()
			cert, err := server.GetCertificate(nil)
			require.NoError(t, err)
			cfg := b.ca.RelayClientTLS()
			cfg.GetClientCertificate = nil
			cfg.Certificates = append(cfg.Certificates, *cert)
			transport(c).TLSClientConfig = cfg
			return c
		},
		"a certificate for agents": func() *Client {
			c := b.newClient(b.ca)
			cfg := b.ca.RelayClientTLS()
			cfg.GetClientCertificate = b.ca.ExecClientTLS()("app-1").GetClientCertificate
			transport(c).TLSClientConfig = cfg
			return c
		},
		"none": func() *Client {
			c := b.newClient(b.ca)
			cfg := b.ca.RelayClientTLS()
			cfg.GetClientCertificate = nil
			transport(c).TLSClientConfig = cfg
			return c
		},
	} {
		_, err := config().ListContainers(t.Context(), "app-1", "")
		require.ErrorContains(t, err, "do not accept each other's certificates", name)
	}
	require.Zero(t, asked)
	_, err = b.client.ListContainers(t.Context(), "app-1", "")
	require.NoError(t, err)
	require.Equal(t, 1, asked)

	b.worker(hosts, authority(t), time.Second)
	transport(b.client).CloseIdleConnections()
	_, err = b.client.ListContainers(t.Context(), "app-1", "")
	require.ErrorAs(t, err, &ce)
	require.Equal(t, server.CommandMistrusted, ce.Code)
	require.Equal(t, 1, asked, "an impostor of a worker")
}

// TestAWorkerThatIsLost: a command is joined by way of another worker, under the same
// audit id, and the caller sees each line once.
func TestAWorkerThatIsLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	two := 2
	second := &fakeHosts{run: func(_ context.Context, _ string, c server.Command, _ time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error) {
		require.Equal(t, "operator-1", c.AuditID)
		for _, l := range []string{"1", "2", "3"} { // the lines that the host still keeps, and the new ones
			onLine("stdout", l)
			onLine("stderr", "e"+l)
		}
		return server.CommandOutcome{ExitCode: &two}, nil
	}}
	b.worker(second, b.ca, time.Second)
	other := *b.dial.Load()
	var killed func()
	first := &fakeHosts{run: func(ctx context.Context, _ string, _ server.Command, _ time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error) {
		onLine("stdout", "1")
		onLine("stderr", "e1")
		onLine("stdout", "2")
		b.leadsTo(other)
		go killed()
		<-ctx.Done()
		return server.CommandOutcome{}, ctx.Err()
	}}
	killed, _ = b.worker(first, b.ca, 10*time.Millisecond)
	var lines []string
	got, err := b.client.Run(t.Context(), "192.0.2.7", command, time.Minute, func(stream, line string) { lines = append(lines, line) })
	require.NoError(t, err)
	require.Equal(t, 2, *got.ExitCode)
	require.Equal(t, []string{"1", "e1", "2", "e2", "3", "e3"}, lines)
}

func TestNoWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.leadsTo("127.0.0.1:1")
	_, err := b.client.Run(t.Context(), "192.0.2.7", command, time.Minute, func(string, string) {})
	var ce *server.CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, server.CommandUnreachable, ce.Code)
	_, err = b.client.ListContainers(t.Context(), "app-1", "")
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err))
	_, err = b.client.RepairContainers(t.Context(), "app-1", "", prego.RoleApp)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err))
	_, _, err = b.client.Seal(t.Context(), "registry/a", nil)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err))
	_, _, err = b.client.Reseal(t.Context(), "registry/a", "k1", nil)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err))
	_, err = b.client.IssueImport(t.Context(), server.Server{ServerID: "app-1"})
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err))
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(b.client.ContainerLogs(t.Context(), "app-1", "", prego.RoleApp, "bench", 1, false, func(string) error { return nil })))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.client.ListContainers(ctx, "app-1", "")
	require.ErrorIs(t, err, context.Canceled)
}

// TestAWorkerThatStops: running requests may end, a followed log ends immediately, and a log with output is not
// restarted silently.
func TestAWorkerThatStops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	running, let, followed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	hosts := &fakeHosts{
		run: func(ctx context.Context, _ string, _ server.Command, _ time.Duration, _ func(stream, line string)) (server.CommandOutcome, error) {
			close(running)
			<-let
			return server.CommandOutcome{Stdout: "whole"}, ctx.Err()
		},
		logs: func(ctx context.Context, _ string, _ int, _ bool, line func(string) error) error {
			if err := line("first"); err != nil {
				return err
			}
			close(followed)
			<-ctx.Done()
			return ctx.Err()
		},
	}
	stop, _ := b.worker(hosts, b.ca, 20*time.Second)
	type result struct {
		out server.CommandOutcome
		err error
	}
	done, logs := make(chan result, 1), make(chan error, 1)
	go func() {
		out, err := b.client.Run(context.Background(), "192.0.2.7", command, time.Minute, func(string, string) {})
		done <- result{out, err}
	}()
	go func() {
		logs <- b.client.ContainerLogs(context.Background(), "app-1", "", prego.RoleApp, "bench", 1, true, func(string) error { return nil })
	}()
	<-running
	<-followed
	go stop()
	require.ErrorContains(t, <-logs, "context canceled")
	close(let)
	r := <-done
	require.NoError(t, r.err)
	require.Equal(t, "whole", r.out.Stdout)
}

// TestALogStopsWithItsCaller: when the caller stops reading, the worker stops reading the host.
func TestALogStopsWithItsCaller(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ended := make(chan struct{})
	b.worker(&fakeHosts{logs: func(ctx context.Context, _ string, _ int, _ bool, line func(string) error) error {
		defer close(ended)
		_ = line("first")
		<-ctx.Done()
		return ctx.Err()
	}}, b.ca, time.Second)
	enough := errors.New("enough")
	require.ErrorIs(t, b.client.ContainerLogs(t.Context(), "app-1", "", prego.RoleApp, "bench", 1, true, func(string) error { return enough }), enough)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the worker reads on")
	}
}

func transport(c *Client) *http.Transport { return c.http.Transport.(*http.Transport) }
