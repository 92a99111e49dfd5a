package dockerhost_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/server"
)

func spec(name, mode string) server.ContainerSpec {
	return server.ContainerSpec{
		Name: name, Image: "stub:1", Command: []string{"/stub", mode}, Env: map[string]string{"WORD": "hello"}, Network: "none", MemoryMB: 32, CPUs: 0.5, Pids: 64,
		StopTimeout: prego.Duration(time.Second), Volumes: []string{name + "-data:/data"},
	}
}

func probed(name string) server.ContainerSpec {
	s := spec(name, "serve")
	s.Probe = &server.ContainerProbe{Kind: server.ProbeProgram, Program: "/probe"}
	return s
}

// up makes specs run, and takes them down when the test ends.
func up(t *testing.T, h *dockerhost.Host, specs ...server.ContainerSpec) error {
	t.Helper()
	clean(t, h, specs...)
	return h.Up(t.Context(), specs)
}

func clean(t *testing.T, h *dockerhost.Host, specs ...server.ContainerSpec) {
	t.Helper()
	t.Cleanup(func() {
		for _, s := range specs {
			require.NoError(t, h.Remove(context.Background(), s.Name))
		}
	})
}

func permanent(t *testing.T, err error, contains string) {
	t.Helper()
	var ce *server.ContainerError
	require.ErrorAs(t, err, &ce)
	require.ErrorContains(t, err, contains)
}

func passing(t *testing.T, err error) {
	t.Helper()
	var ce *server.ContainerError
	require.Error(t, err)
	require.False(t, errors.As(err, &ce), "must be repeated: %v", err)
}

// named are the host's containers of that name, beside other tests' containers.
func named(t *testing.T, h *dockerhost.Host, name string) []server.ContainerInfo {
	t.Helper()
	list, err := h.List(t.Context())
	require.NoError(t, err)
	return slices.DeleteFunc(list, func(c server.ContainerInfo) bool { return c.Name != name })
}

func inspect(t *testing.T, e *engine, name string) container.InspectResponse {
	t.Helper()
	c, err := e.local()
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	got, err := c.ContainerInspect(t.Context(), "prego-"+serverID+"-"+name, client.ContainerInspectOptions{})
	require.NoError(t, err)
	return got.Container
}

func TestEveryCallOfAContainersLife(t *testing.T) {
	t.Parallel()
	e := real(t)
	h := e.host(t)
	ctx := t.Context()
	s := spec("life", "serve")
	clean(t, h, s)
	_, err := h.Inspect(ctx, "life")
	require.ErrorIs(t, err, dockerhost.ErrNoContainer)
	require.NoError(t, h.Stop(ctx, "life"), "a missing container is stopped")
	require.NoError(t, h.Remove(ctx, "life"))

	adopted, err := h.Create(ctx, s)
	require.NoError(t, err)
	require.False(t, adopted)
	got, err := h.Inspect(ctx, "life")
	require.NoError(t, err)
	require.Equal(t, "created", got.State)
	require.NoError(t, h.Start(ctx, "life"))
	require.NoError(t, h.Start(ctx, "life"), "a second start changes nothing")
	got, err = h.Inspect(ctx, "life")
	require.NoError(t, err)
	require.Equal(t, "running", got.State)
	require.Equal(t, dockerhost.Hash(s), got.SpecHash)
	require.WithinDuration(t, time.Now(), got.StartedAt, time.Minute)

	require.Len(t, named(t, h, "life"), 1)

	stats, err := h.Stats(ctx, "life")
	require.NoError(t, err)
	require.EqualValues(t, 32<<20, stats.MemoryLimit)
	require.Positive(t, stats.MemoryBytes)
	require.Positive(t, stats.Pids)

	var logs bytes.Buffer
	require.Eventually(t, func() bool {
		logs.Reset()
		return h.Logs(ctx, "life", dockerhost.LogOptions{Tail: 10}, &logs) == nil && strings.Count(logs.String(), "\n") == 2
	}, 5*time.Second, 50*time.Millisecond)
	require.ElementsMatch(t, []string{"serving hello", "and complaining"}, strings.Split(strings.TrimSpace(logs.String()), "\n"))

	require.NoError(t, h.Stop(ctx, "life"))
	got, err = h.Inspect(ctx, "life")
	require.NoError(t, err)
	require.Equal(t, []any{"exited", 0}, []any{got.State, got.ExitCode},
		"it ended by itself; a killed container has status 137")
	require.NoError(t, h.Remove(ctx, "life"))

	_, err = h.Stats(ctx, "life")
	require.ErrorIs(t, err, dockerhost.ErrNoContainer)
	require.ErrorIs(t, h.Logs(ctx, "life", dockerhost.LogOptions{}, &logs), dockerhost.ErrNoContainer)
}

func TestTheEngineIsAskedForWhatIsDeclared(t *testing.T) {
	t.Parallel()
	e := real(t)
	h := e.host(t)
	s := probed("declared")
	s.Labels = map[string]string{
		"mine": "yes", dockerhost.LabelSpec: "forged", dockerhost.LabelServerID: "another",
	}
	require.NoError(t, up(t, h, s))
	got := inspect(t, e, "declared")
	require.Equal(t, dockerhost.Hash(s), got.Config.Labels[dockerhost.LabelSpec], "no foreign label replaces ours")
	require.Equal(t, serverID, got.Config.Labels[dockerhost.LabelServerID])
	require.Equal(t, "yes", got.Config.Labels["mine"])
	require.EqualValues(t, 32<<20, got.HostConfig.Memory)
	require.EqualValues(t, 5e8, got.HostConfig.NanoCPUs)
	require.EqualValues(t, 64, *got.HostConfig.PidsLimit)
	require.Equal(t, container.RestartPolicyUnlessStopped, got.HostConfig.RestartPolicy.Name)
	require.Equal(t, []string{"no-new-privileges"}, got.HostConfig.SecurityOpt)
	require.Equal(t, "volume", string(got.Mounts[0].Type))
}

func TestTheSameSpecAdoptsAndAnotherReplaces(t *testing.T) {
	t.Parallel()
	e := real(t)
	h := e.host(t)
	s := probed("again")
	require.NoError(t, up(t, h, s))
	first := inspect(t, e, "again").ID
	require.NoError(t, h.Up(t.Context(), []server.ContainerSpec{s}))
	require.Equal(t, first, inspect(t, e, "again").ID)
	s.Image = "stub:2"
	adopted, err := h.Create(t.Context(), s)
	require.NoError(t, err)
	require.False(t, adopted)
	require.NoError(t, h.Up(t.Context(), []server.ContainerSpec{s}))
	second := inspect(t, e, "again")
	require.NotEqual(t, first, second.ID)
	require.Equal(t, "stub:2", second.Config.Image)

	// Somebody else's container of our name is looked at, not believed.
	require.NoError(t, h.Remove(t.Context(), "again"))
	c, err := e.local()
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: "prego-" + serverID + "-again", Config: &container.Config{Image: "stub:1", Labels: map[string]string{dockerhost.LabelSpec: dockerhost.Hash(s)}},
	})
	require.NoError(t, err)
	require.NoError(t, h.Up(t.Context(), []server.ContainerSpec{s}))
	require.Equal(t, "stub:2", inspect(t, e, "again").Config.Image)
}

func TestManyAtOnceMakeOneContainer(t *testing.T) {
	t.Parallel()
	e := real(t)
	s := probed("raced")
	clean(t, e.host(t), s)
	errs := make([]error, 6)
	var wg sync.WaitGroup
	for i := range errs {
		h := e.host(t)
		wg.Go(func() { errs[i] = h.Up(t.Context(), []server.ContainerSpec{s}) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, named(t, e.host(t), "raced"), 1)
}

func TestACrashLoopIsAFailureWithItsLastLines(t *testing.T) { // alone on the engine: what others make would be drift
	h := real(t).host(t)
	s := server.Stack{prego.RoleApp: {spec("crash", "crash")}}
	s[prego.RoleApp][0].Env["WORD"] = "${secret:w}"
	specs, err := s.For(prego.RoleApp, nil, func(string) string { return "never-print-this" })
	require.NoError(t, err)
	at := time.Now()
	err = up(t, h, specs...)
	permanent(t, err, "dies in a loop")
	require.ErrorContains(t, err, "status 3")
	require.ErrorContains(t, err, "giving up")
	require.Contains(t, err.Error(), prego.Redacted)
	require.NotContains(t, err.Error(), "never-print-this")
	require.NotContains(t, err.Error(), "\x00")
	require.LessOrEqual(t, len(err.Error()), 2<<10+200)
	require.Less(t, time.Since(at), 20*time.Second)
	require.Len(t, named(t, h, "crash"), 1, "kept for debugging")
	permanent(t, h.Up(t.Context(), specs), "dies in a loop")
	drift, err := h.Check(t.Context(), specs)
	require.NoError(t, err)
	require.Len(t, drift, 1)
	require.Contains(t, []server.DriftKind{server.DriftLooping, server.DriftStopped}, drift[0].Kind)
}

func TestWhatEndsOrNeverGetsHealthy(t *testing.T) {
	t.Parallel()
	h := real(t).host(t)
	once := spec("once", "once")
	once.Restart = server.RestartNo
	permanent(t, up(t, h, once), "ended with status 4")

	absent := spec("absent", "serve")
	absent.Command = []string{"/not-there"}
	permanent(t, up(t, h, absent), "not-there")

	sick := probed("sick")
	sick.Env["PROBE_EXIT"], sick.StartTimeout = "7", prego.Duration(time.Second)
	permanent(t, up(t, h, sick), "its probe ended with 7")
	require.ErrorContains(t, h.Up(t.Context(), []server.ContainerSpec{sick}), "serving")

	hung := probed("hung")
	hung.Env["PROBE_HANG"], hung.StartTimeout, hung.Probe.Timeout = "1", prego.Duration(time.Second), prego.Duration(300*time.Millisecond)
	permanent(t, up(t, h, hung), "did not end in time")

	ill := spec("ill", "serve")
	ill.Env["PROBE_EXIT"], ill.StartTimeout = "5", prego.Duration(2500*time.Millisecond)
	ill.Health = &server.ContainerHealth{Command: []string{"/probe"}, Interval: prego.Duration(300 * time.Millisecond), Retries: 2}
	permanent(t, up(t, h, ill), "its health check ended with 5")
	drift, err := h.Check(t.Context(), []server.ContainerSpec{ill})
	require.NoError(t, err)
	require.Contains(t, drift, server.ContainerDrift{Container: "ill", Kind: server.DriftUnhealthy, Detail: drift[0].Detail})

	well := spec("well", "serve")
	well.Health = &server.ContainerHealth{Command: []string{"/probe"}, Interval: prego.Duration(300 * time.Millisecond)}
	require.NoError(t, up(t, h, well))

	plain := spec("plain", "serve")
	at := time.Now()
	require.NoError(t, up(t, h, plain))
	require.Greater(t, time.Since(at), 2900*time.Millisecond, "without a check it must have run for a while")
}

func TestOneThatIgnoresItsSignalIsKilled(t *testing.T) {
	t.Parallel()
	e := real(t)
	h := e.host(t)
	s := spec("stubborn", "stubborn")
	clean(t, h, s)
	_, err := h.Create(t.Context(), s)
	require.NoError(t, err)
	require.NoError(t, h.Start(t.Context(), "stubborn"))
	require.Eventually(t, func() bool {
		var b bytes.Buffer
		return h.Logs(t.Context(), "stubborn", dockerhost.LogOptions{}, &b) == nil && b.Len() > 0
	}, 5*time.Second, 50*time.Millisecond)
	at := time.Now()
	require.NoError(t, h.Stop(t.Context(), "stubborn"))
	require.Greater(t, time.Since(at), 900*time.Millisecond)
	require.Equal(t, 137, inspect(t, e, "stubborn").State.ExitCode)
}

// lines receives the output line by line.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "\n")
}

func TestLogsAreFollowedUntilTheyAreCut(t *testing.T) {
	t.Parallel()
	e := real(t)
	s := spec("tick", "tick")
	require.NoError(t, up(t, e.host(t), s))
	p := newProxy(t, e.port)
	h, err := e.hosts(p.port, nil).Host(serverID, "127.0.0.1")
	require.NoError(t, err)
	defer h.Close()

	follow := func(ctx context.Context) (*lines, chan error) {
		var l lines
		done := make(chan error, 1)
		go func() { done <- h.Logs(ctx, "tick", dockerhost.LogOptions{Tail: 1, Follow: true}, &l) }()
		require.Eventually(t, func() bool { return l.count() > 4 }, 10*time.Second, 20*time.Millisecond)
		return &l, done
	}
	got, done := follow(t.Context())
	p.cut()
	passing(t, <-done)
	require.Positive(t, p.cuts)
	require.NotContains(t, got.b.String(), "\x00")

	ctx, cancel := context.WithCancel(t.Context())
	_, done = follow(ctx)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	_, done = follow(t.Context())
	require.NoError(t, h.Stop(t.Context(), "tick"))
	require.NoError(t, <-done, "it ended with the container")
}

func TestPulls(t *testing.T) { // alone on the engine: what others pulled is not pulled again
	e := real(t)
	r := newRegistry(t, e)
	h := e.host(t)
	permanent(t, h.Pull(t.Context(), r.addr+"/stub:absent"), "manifest unknown")
	passing(t, h.Pull(t.Context(), "127.0.0.1:1/stub:1"))

	s := probed("pulled")
	s.Image = r.addr + "/stub:absent"
	permanent(t, up(t, h, s), "manifest unknown")

	// The connection is cut while the layer is on its way.
	release := r.hold()
	p := newProxy(t, e.port)
	cut, err := e.hosts(p.port, nil).Host(serverID, "127.0.0.1")
	require.NoError(t, err)
	defer cut.Close()
	s.Image = r.addr + "/stub:1"
	done := make(chan error, 1)
	go func() { done <- cut.Up(t.Context(), []server.ContainerSpec{s}) }()
	<-r.held
	time.Sleep(200 * time.Millisecond) // let the engine report its progress
	p.cut()
	passing(t, <-done)
	require.Positive(t, p.cuts)
	release()
	require.NoError(t, cut.Up(t.Context(), []server.ContainerSpec{s}), "and again")
	require.NoError(t, h.Pull(t.Context(), s.Image), "an existing image needs no pull")
}

func TestTheEngineIsRestartedMidCreate(t *testing.T) {
	t.Parallel()
	needEngine(t)
	for name, sig := range map[string]syscall.Signal{"stopped": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			e, err := newEngine("{}")
			require.NoError(t, err)
			t.Cleanup(e.close)
			r := newRegistry(t, e)
			h := e.host(t)
			first, second := probed("first"), probed("second")
			second.Image = r.addr + "/stub:1"
			both := []server.ContainerSpec{first, second}
			release := r.hold()
			done := make(chan error, 1)
			go func() { done <- h.Up(t.Context(), both) }()
			<-r.held // first runs, second is being made
			e.stop(sig)
			passing(t, <-done)
			passing(t, h.Up(t.Context(), both))
			release()
			require.NoError(t, e.start())
			// An engine that was killed may still find what it ran, and the activity is tried again.
			up := h.Up(t.Context(), both)
			for until := time.Now().Add(time.Minute); up != nil && time.Now().Before(until); up = h.Up(t.Context(), both) {
				passing(t, up)
				time.Sleep(time.Second)
			}
			require.NoError(t, up)
			list, err := h.List(t.Context())
			require.NoError(t, err)
			require.Len(t, list, 2)
			drift, err := h.Check(t.Context(), both)
			require.NoError(t, err)
			require.Empty(t, drift)
		})
	}
}

func TestOnlyTheControlPlaneAndOnlyThatHost(t *testing.T) {
	t.Parallel()
	e := real(t)
	call := func(h *dockerhost.Hosts, id prego.ServerID) error {
		host, err := h.Host(id, "127.0.0.1")
		require.NoError(t, err)
		defer host.Close()
		_, err = host.List(t.Context())
		return err
	}
	require.NoError(t, call(e.hosts(e.port, nil), serverID))
	const refused = "do not accept each other's certificates"
	permanent(t, call(e.hosts(e.port, nil), "app-2"), refused)

	dir := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, pki.Init(dir, "test"))
	stranger, err := pki.Open(dir, "test")
	require.NoError(t, err)
	permanent(t, call(e.hosts(e.port, stranger.DockerClientTLS()), serverID), refused)

	// From here the client takes any host: it is the engine that must refuse.
	with := func(c *tls.Config) func(prego.ServerID) *tls.Config {
		c.InsecureSkipVerify, c.MinVersion = true, tls.VersionTLS12
		return func(prego.ServerID) *tls.Config { return c.Clone() }
	}
	permanent(t, call(e.hosts(e.port, with(&tls.Config{Certificates: []tls.Certificate{e.agent}})), serverID), refused)
	permanent(t, call(e.hosts(e.port, with(&tls.Config{})), serverID), refused)
	foreign := stranger.DockerClientTLS()(serverID).GetClientCertificate
	permanent(t, call(e.hosts(e.port, with(&tls.Config{GetClientCertificate: foreign})), serverID), refused)
	execs := e.ca.ExecClientTLS()(serverID).GetClientCertificate
	permanent(t, call(e.hosts(e.port, with(&tls.Config{GetClientCertificate: execs})), serverID), refused)

	wrong := func(string) error { return errors.New("not our address") }
	_, err = dockerhost.New(dockerhost.Config{CheckAddr: wrong}).Host(serverID, "127.0.0.1")
	permanent(t, err, "not our address")
	passing(t, call(e.hosts(1, nil), serverID))
}

func TestDriftIsFoundAndRepaired(t *testing.T) { // alone on the engine: what others make would be drift
	e := real(t)
	h := e.host(t)
	c, err := e.local()
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	ctx := t.Context()
	full := func(name string) string { return "prego-" + serverID + "-" + name }
	kept, gone, stopped, limits, forged, old := probed("kept"), probed("gone"), probed("stopped"), probed("limits"), probed("forged"), probed("old")
	all := []server.ContainerSpec{kept, gone, stopped, limits, forged}
	require.NoError(t, up(t, h, append(all, old)...))
	drift, err := h.Check(ctx, append(all, old))
	require.NoError(t, err)
	require.Empty(t, drift)

	_, err = c.ContainerRemove(ctx, full("gone"), client.ContainerRemoveOptions{Force: true})
	require.NoError(t, err)
	_, err = c.ContainerStop(ctx, full("stopped"), client.ContainerStopOptions{})
	require.NoError(t, err)
	_, err = c.ContainerUpdate(ctx, full("limits"), client.ContainerUpdateOptions{Resources: &container.Resources{Memory: 64 << 20, MemorySwap: 128 << 20}})
	require.NoError(t, err)
	// Made by hand with our labels, and more rights.
	labels := inspect(t, e, "forged").Config.Labels
	_, err = c.ContainerRemove(ctx, full("forged"), client.ContainerRemoveOptions{Force: true})
	require.NoError(t, err)
	_, err = c.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: full("forged"), Config: &container.Config{Image: "stub:1", Cmd: []string{"/stub", "serve"}, Env: []string{"WORD=bye"}, Labels: labels},
		HostConfig: &container.HostConfig{Privileged: true, NetworkMode: "none"},
	})
	require.NoError(t, err)
	kept.Env["WORD"] = "a new declaration"

	drift, err = h.Check(ctx, all)
	require.NoError(t, err)
	require.Equal(t, []server.ContainerDrift{
		{Container: "kept", Kind: server.DriftOutdated, Detail: "made from another declaration"},
		{Container: "gone", Kind: server.DriftMissing},
		{Container: "stopped", Kind: server.DriftStopped, Detail: "exited"},
		{Container: "limits", Kind: server.DriftChanged, Detail: "memory"},
		{Container: "forged", Kind: server.DriftChanged, Detail: "cpus, env WORD, memory, pids, privileges, restart, volumes"},
		{Container: "old", Kind: server.DriftUndeclared, Detail: "running"},
	}, drift)

	repaired, err := h.Repair(ctx, all)
	require.NoError(t, err)
	require.Equal(t, drift, repaired)
	drift, err = h.Check(ctx, all)
	require.NoError(t, err)
	require.Empty(t, drift)
	before := inspect(t, e, "limits").ID
	repaired, err = h.Repair(ctx, all)
	require.NoError(t, err)
	require.Empty(t, repaired)
	require.Equal(t, before, inspect(t, e, "limits").ID, "a container as declared is left alone")

	_, err = c.ContainerPause(ctx, full("kept"), client.ContainerPauseOptions{})
	require.NoError(t, err)
	drift, err = h.Repair(ctx, all)
	require.NoError(t, err)
	require.Equal(t, []server.ContainerDrift{{Container: "kept", Kind: server.DriftStopped, Detail: "paused"}}, drift)
}

func TestANetworkOfTheStacksOwn(t *testing.T) { // alone on the engine: what others make would be drift
	e := real(t)
	h := e.host(t)
	a, b := probed("neta"), probed("netb")
	a.Network, b.Network = "prego-test", "prego-test"
	require.NoError(t, up(t, h, a, b))
	got := inspect(t, e, "neta")
	require.Contains(t, got.NetworkSettings.Networks, "prego-test")
	require.Contains(t, got.NetworkSettings.Networks["prego-test"].Aliases, "neta")
	drift, err := h.Check(t.Context(), []server.ContainerSpec{a, b})
	require.NoError(t, err)
	require.Empty(t, drift)
}
