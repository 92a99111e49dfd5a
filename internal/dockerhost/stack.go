package dockerhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const (
	// settle is how long a container without a check must run to count as started.
	settle = 3 * time.Second
	// startTimeout is how soon a container must be healthy, unless it sets its own limit.
	startTimeout = 90 * time.Second
	// loops is how many restarts by the engine count as a crash loop.
	loops = 3
)

// Up starts containers, each once its dependencies are healthy, and otherwise in parallel. A container that runs to
// its end runs once per declaration. Then the containers after it are restarted, since they have read earlier data.
func (h *Host) Up(ctx context.Context, specs []server.ContainerSpec) error {
	for _, spec := range specs {
		// Beforehand: two parallel creates could make two networks of one name.
		if err := h.ensureNetwork(ctx, spec.Network); err != nil {
			return classify(spec.Name, err)
		}
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	w := h.watch(watching)
	ran := make(map[string]bool)
	for _, wave := range waves(specs) {
		errs, did := make([]error, len(wave)), make([]bool, len(wave))
		var work sync.WaitGroup
		for i, spec := range wave {
			again := slices.ContainsFunc(spec.After, func(name string) bool { return ran[name] })
			work.Go(func() { did[i], errs[i] = h.up(ctx, w, spec, again) })
		}
		work.Wait()
		if err := worstError(wave, errs); err != nil {
			return err
		}
		for i, spec := range wave {
			ran[spec.Name] = did[i] && spec.Once
		}
	}
	// The first may have failed because of the last.
	for _, spec := range specs {
		got, err := h.c.ContainerInspect(ctx, h.name(spec.Name), client.ContainerInspectOptions{})
		if err != nil {
			return classify(spec.Name, classifyError("inspect", err))
		}
		s := got.Container.State
		if spec.Once && hasFinished(s) {
			continue
		}
		if s == nil || !s.Running || s.Restarting {
			return &server.ContainerError{Container: spec.Name, Message: "it ended after it had started; " + h.lastLines(ctx, spec)}
		}
	}
	return nil
}

// worstError is the error of containers started in parallel. A passing error comes before a permanent one: an engine
// that stops fails them all.
func worstError(wave []server.ContainerSpec, errs []error) (out error) {
	for i, err := range errs {
		if err = classify(wave[i].Name, err); err == nil {
			continue
		}
		var lasts *server.ContainerError
		if !errors.As(err, &lasts) {
			return err
		}
		if out == nil {
			out = err
		}
	}
	return out
}

// waves groups containers so that each comes only after containers of earlier groups. The specs are already in a
// valid order.
func waves(specs []server.ContainerSpec) (out [][]server.ContainerSpec) {
	in := make(map[string]int, len(specs))
	for _, spec := range specs {
		wave := 0
		for _, name := range spec.After {
			if earlier, ok := in[name]; ok {
				wave = max(wave, earlier+1)
			}
		}
		in[spec.Name] = wave
		if wave == len(out) {
			out = append(out, nil)
		}
		out[wave] = append(out[wave], spec)
	}
	return out
}

// hasFinished reports whether a container that runs to its end has.
func hasFinished(s *container.State) bool {
	return s != nil && s.Status == container.StateExited && s.ExitCode == 0 && !s.OOMKilled
}

// up starts one container. did is false if it was already as it should be.
func (h *Host) up(ctx context.Context, w *watch, spec server.ContainerSpec, again bool) (did bool, err error) {
	id, adopted, err := h.ensure(ctx, "", spec)
	if err != nil {
		return false, err
	}
	if adopted {
		got, err := h.c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			return false, fmt.Errorf("inspect: %w", err)
		}
		switch s := got.Container.State; {
		case spec.Once && hasFinished(s) && !again:
			return false, nil
		case !spec.Once && again && s != nil && s.Running:
			if _, err := h.c.ContainerStop(ctx, id, client.ContainerStopOptions{}); err != nil {
				return false, fmt.Errorf("stop: %w", err)
			}
		}
	}
	if _, err := h.c.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return false, fmt.Errorf("start: %w", err)
	}
	return true, h.await(ctx, w, id, spec)
}

// await waits until a container is healthy. It checks after events of the engine, after the time that the container
// must run, and for its probe. A restarting container counts as running for the engine; here it never does.
func (h *Host) await(ctx context.Context, w *watch, id string, spec server.ContainerSpec) error {
	fail := func(format string, args ...any) error {
		message := fmt.Sprintf(format, args...) + "; " + h.lastLines(ctx, spec)
		return &server.ContainerError{Container: spec.Name, Message: message}
	}
	within := cmp.Or(spec.StartTimeout.D(), startTimeout)
	deadline := time.Now().Add(within)
	var started, last string
	var since time.Time
	base := -1
	for {
		got, err := h.c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			return fmt.Errorf("inspect: %w", err)
		}
		s := got.Container.State
		if s == nil {
			return errors.New("inspect: the host reports no state")
		}
		restarts := got.Container.RestartCount
		if base < 0 {
			base = restarts
		}
		switch {
		case restarts-base >= loops, s.Restarting && restarts >= loops:
			return fail("it dies in a loop: started again %d times, last with status %d%s",
				restarts, s.ExitCode, outOfMemory(s))
		case spec.Once && hasFinished(s):
			return nil
		case s.Status == container.StateExited, s.Status == container.StateDead:
			return fail("it ended with status %d%s", s.ExitCode, outOfMemory(s))
		case s.Restarting || !s.Running || s.Paused:
			since, last = time.Time{}, "it is "+string(s.Status)
		default:
			if s.StartedAt != started || since.IsZero() {
				started, since = s.StartedAt, time.Now()
			}
			ok, why, err := h.healthy(ctx, w, id, spec, s, time.Since(since))
			if err != nil {
				return err
			}
			if ok {
				return nil
			}
			last = why
		}
		if time.Now().After(deadline) {
			return fail("it was not healthy within %s: %s", within, last)
		}
		if err := pause(ctx, w, id, spec, since, deadline); err != nil {
			return err
		}
	}
}

// pause waits until a container must be checked again.
func pause(ctx context.Context, w *watch, id string, spec server.ContainerSpec, since, deadline time.Time) error {
	next := time.Until(deadline)
	switch {
	case since.IsZero():
	case spec.Probe != nil: // no event reports that it would pass now, and its own end is an event
		return prego.Sleep(ctx, min(next, look))
	case spec.Health == nil && !spec.Once:
		next = min(next, settle-time.Since(since))
	}
	return w.wait(ctx, id, next)
}

func outOfMemory(s *container.State) string {
	if s.OOMKilled {
		return " (out of memory)"
	}
	return ""
}

func (h *Host) healthy(
	ctx context.Context, w *watch, id string, spec server.ContainerSpec, s *container.State, running time.Duration,
) (ok bool, why string, err error) {
	if spec.Once {
		return false, "it has not ended", nil
	}
	if spec.Health != nil && (s.Health == nil || s.Health.Status != container.Healthy) {
		why := "its health check has not passed"
		if s.Health != nil && len(s.Health.Log) > 0 {
			r := s.Health.Log[len(s.Health.Log)-1]
			out := []rune(strings.TrimSpace(spec.Redact(r.Output)))
			why = fmt.Sprintf("its health check ended with %d: %s", r.ExitCode, string(out[:min(len(out), 200)]))
		}
		return false, why, nil
	}
	if spec.Probe != nil {
		return h.probe(ctx, w, id, *spec.Probe)
	}
	if spec.Health == nil && running < settle {
		return false, "it has not run for long enough", nil
	}
	return true, "", nil
}

// probe runs a declared probe in a container. It is the only use of exec on path C, and accepts only the kinds of
// probes that a stack can name. A probe that can't be run has failed: the container may not be running yet.
func (h *Host) probe(ctx context.Context, w *watch, id string, p server.ContainerProbe) (ok bool, why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.Timeout.D(), 5*time.Second))
	defer cancel()
	code, err := h.runProbe(ctx, w, id, p)
	switch {
	case err == nil:
		return code == 0, fmt.Sprintf("its probe ended with %d", code), nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return false, "its probe did not end in time", nil
	case cerrdefs.IsNotFound(err), cerrdefs.IsConflict(err), cerrdefs.IsInvalidArgument(err), cerrdefs.IsInternal(err):
		return false, "its probe can't be run: " + prego.Redact(err.Error()), nil
	}
	return false, "", classifyError("probe", err)
}

func (h *Host) runProbe(ctx context.Context, w *watch, id string, p server.ContainerProbe) (code int, err error) {
	made, err := h.c.ExecCreate(ctx, id, client.ExecCreateOptions{Cmd: p.Argv()})
	if err != nil {
		return 0, err
	}
	if _, err := h.c.ExecStart(ctx, made.ID, client.ExecStartOptions{Detach: true}); err != nil {
		return 0, err
	}
	for {
		got, err := h.c.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
		if err != nil || !got.Running {
			return got.ExitCode, err
		}
		if err := w.wait(ctx, id, look); err != nil {
			return 0, err
		}
	}
}

// Check compares a host with its declaration, and changes nothing.
func (h *Host) Check(ctx context.Context, specs []server.ContainerSpec) ([]server.ContainerDrift, error) {
	var out []server.ContainerDrift
	for _, spec := range specs {
		d, err := h.check(ctx, spec)
		if err != nil {
			return nil, classify(spec.Name, err)
		}
		if d != nil {
			out = append(out, *d)
		}
	}
	there, err := h.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range there {
		if c.Instance != "" {
			continue // instances have separate rows, and are handled elsewhere
		}
		if !slices.ContainsFunc(specs, func(s server.ContainerSpec) bool { return s.Name == c.Name }) {
			out = append(out, server.ContainerDrift{Container: c.Name, Kind: server.DriftUndeclared, Detail: c.State})
		}
	}
	return out, nil
}

func (h *Host) check(ctx context.Context, spec server.ContainerSpec) (*server.ContainerDrift, error) {
	drift := func(kind server.DriftKind, detail string) (*server.ContainerDrift, error) {
		return &server.ContainerDrift{Container: spec.Name, Kind: kind, Detail: detail}, nil
	}
	opts, err := h.options(spec)
	if err != nil {
		return nil, err
	}
	got, err := h.c.ContainerInspect(ctx, opts.Name, client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return drift(server.DriftMissing, "")
	}
	if err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	c := got.Container
	if c.Config != nil && c.Config.Labels[LabelSpec] != Hash(spec) {
		return drift(server.DriftOutdated, "made from another declaration")
	}
	if diff := changes(c, opts); len(diff) > 0 {
		return drift(server.DriftChanged, strings.Join(diff, ", "))
	}
	switch s := c.State; {
	case s == nil:
		return nil, errors.New("inspect: the host reports no state")
	case spec.Once && (hasFinished(s) || s.Running):
	case spec.Once:
		return drift(server.DriftStopped, fmt.Sprintf("not done: it ended with status %d%s", s.ExitCode, outOfMemory(s)))
	case s.Restarting:
		return drift(server.DriftLooping, fmt.Sprintf("started again %d times, last with status %d%s",
			c.RestartCount, s.ExitCode, outOfMemory(s)))
	case !s.Running || s.Paused:
		return drift(server.DriftStopped, string(s.Status))
	case s.Health != nil && s.Health.Status == container.Unhealthy:
		return drift(server.DriftUnhealthy, fmt.Sprintf("failed %d times", s.Health.FailingStreak))
	}
	return nil, nil
}

// Repair restores a host to its declaration, and returns the differences. Matching containers keep running; volumes
// are never touched.
func (h *Host) Repair(ctx context.Context, specs []server.ContainerSpec) ([]server.ContainerDrift, error) {
	found, err := h.Check(ctx, specs)
	if err != nil || len(found) == 0 {
		return found, err
	}
	for _, d := range found {
		switch d.Kind {
		case server.DriftUndeclared, server.DriftLooping, server.DriftUnhealthy:
			// Declared ones are recreated below: after a passing cause, a crash loop would wait up to a minute, and
			// an unhealthy container would stay so.
			if err := h.Remove(ctx, d.Container); err != nil {
				return found, err
			}
		case server.DriftStopped:
			if d.Detail == string(container.StatePaused) {
				if err := h.Remove(ctx, d.Container); err != nil {
					return found, err
				}
			}
		}
	}
	return found, h.Up(ctx, specs)
}
