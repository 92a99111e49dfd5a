package dockerhost_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/server"
)

// kindOf is how a container of the stack differs from its declaration. The engine also runs other tests' containers.
func kindOf(t *testing.T, h *dockerhost.Host, name string, specs ...server.ContainerSpec) server.DriftKind {
	t.Helper()
	drift, err := h.Check(t.Context(), specs)
	require.NoError(t, err)
	for _, d := range drift {
		if d.Container == name {
			return d.Kind
		}
	}
	return ""
}

func TestWhatRunsToItsEnd(t *testing.T) {
	t.Parallel()
	h := real(t).host(t)
	job := spec("once-job", "end")
	job.Once = true
	web, other := probed("once-web"), probed("once-other")
	web.After = []string{job.Name}
	specs := []server.ContainerSpec{job, web, other}
	require.NoError(t, up(t, h, specs...))
	started := func(name string) string {
		t.Helper()
		got, err := h.Inspect(t.Context(), name)
		require.NoError(t, err)
		return got.StartedAt.String()
	}
	state := func() []string {
		return []string{started(job.Name), started(web.Name), started(other.Name)}
	}
	first := state()
	got, err := h.Inspect(t.Context(), job.Name)
	require.NoError(t, err)
	require.Equal(t, []any{"exited", 0}, []any{got.State, got.ExitCode})
	require.Empty(t, kindOf(t, h, job.Name, specs...), "a finished container is as declared")
	require.NoError(t, h.Up(t.Context(), specs))
	require.Equal(t, first, state(), "it is not run again")

	// With another declaration it runs again, and the containers after it are restarted.
	job.Env = map[string]string{"WORD": "changed"}
	specs[0] = job
	require.Equal(t, server.DriftOutdated, kindOf(t, h, job.Name, specs...))
	require.NoError(t, h.Up(t.Context(), specs))
	second := state()
	require.NotEqual(t, first[0], second[0])
	require.NotEqual(t, first[1], second[1])
	require.Equal(t, first[2], second[2], "others keep running")

	// A failing container is not done, and nothing after it is started.
	job.Env = map[string]string{"END": "7"}
	specs[0] = job
	permanent(t, h.Up(t.Context(), specs), "it ended with status 7; its last lines: done")
	require.Equal(t, second[1], started(web.Name))
	require.Equal(t, server.DriftStopped, kindOf(t, h, job.Name, specs...))
	job.Env = map[string]string{"END": "0"}
	specs[0] = job
	require.NoError(t, h.Up(t.Context(), specs))

	// The wait for a container that does not end is limited.
	forever := spec("once-forever", "serve")
	forever.Once, forever.StartTimeout = true, prego.Duration(1)
	permanent(t, up(t, h, forever), "it has not ended")
}

// TestRegistriesAndDigests pulls from a registry that asks who it is.
func TestRegistriesAndDigests(t *testing.T) {
	t.Parallel()
	e := real(t)
	r := newRegistry(t, e)
	image := r.addr + "/stub:private"
	const secret = "registry-password"
	r.mu.Lock()
	r.user = secret
	r.mu.Unlock()
	s := probed("private")
	s.Image = image
	permanent(t, up(t, e.host(t), s), "")
	_, err := e.host(t).Resolve(t.Context(), image)
	permanent(t, err, "")

	asked := 0
	h := e.hostWith(t, func(_ context.Context, _ prego.OrgID, of string) (string, string, bool, error) {
		asked++
		return secret, secret, strings.HasPrefix(of, r.addr), nil
	})
	digest, err := h.Resolve(t.Context(), image)
	require.NoError(t, err)
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, digest)
	require.Equal(t, 1, asked)
	again, err := h.Resolve(t.Context(), image)
	require.NoError(t, err)
	require.Equal(t, []any{digest, 1}, []any{again, asked}, "it is there")
	loaded, err := h.Resolve(t.Context(), "stub:1")
	require.NoError(t, err)
	require.Empty(t, loaded, "it came from no registry")

	s.Image = dockerhost.Pinned(image, digest)
	require.Equal(t, image+"@"+digest, s.Image)
	require.Equal(t, s.Image, dockerhost.Pinned(s.Image, "sha256:other"))
	require.NoError(t, up(t, h, s))
	require.Empty(t, kindOf(t, h, s.Name, s))
	got, err := h.Inspect(t.Context(), s.Name)
	require.NoError(t, err)
	require.Equal(t, s.Image, got.Image)

	// The engine keeps what it was logged in with nowhere.
	require.NoError(t, filepath.WalkDir(e.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(name, "/overlay2/") {
			return nil //nolint:nilerr // it comes and goes
		}
		b, err := os.ReadFile(name)
		if err == nil {
			require.NotContains(t, string(b), secret, name)
		}
		return nil
	}))
}
