package dockerhost_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// TestInstancesAreNoPartOfTheStack runs an instance beside a declared container: it is
// limited to the byte, met when it is asked for again, and left alone by who checks and
// repairs the stack.
func TestInstancesAreNoPartOfTheStack(t *testing.T) {
	t.Parallel()
	e := real(t)
	h := e.host(t)
	declared := spec("declared", "serve")
	w := workload.Spec{Image: "stub:1", Command: []string{"/stub", "serve"}, MemoryLimitBytes: 40<<20 + 4096, CPURequest: 0.5}
	instance := w.Container("ins-0123456789ab-1", "grp-0123456789ab", nil, nil)
	instance.Network = "none" // the tests' engine has no bridge
	require.NoError(t, up(t, h, declared))
	require.NoError(t, up(t, h, instance))
	before, err := h.Inspect(t.Context(), instance.Name)
	require.NoError(t, err)
	require.Equal(t, instance.Name, before.Instance)

	adopted, err := h.Create(t.Context(), instance)
	require.NoError(t, err)
	require.True(t, adopted)
	c, err := e.local()
	require.NoError(t, err)
	got, err := c.ContainerInspect(t.Context(), wire.ContainerName(serverID, instance.Name), client.ContainerInspectOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 40<<20+4096, got.Container.HostConfig.Memory)
	require.EqualValues(t, 40<<20+4096, got.Container.HostConfig.MemorySwap, "swap does not stretch it")
	require.EqualValues(t, 512, got.Container.HostConfig.CPUShares)
	// Other tests also have containers here: a repair would treat them as undeclared.
	drift, err := h.Check(t.Context(), []server.ContainerSpec{declared})
	require.NoError(t, err)
	for _, d := range drift {
		require.NotEqual(t, instance.Name, d.Container)
	}
}

// TestAVolumeThatIsNotMountedKeepsAnInstanceFromStarting: the engine makes no directory in
// its place.
func TestAVolumeThatIsNotMountedKeepsAnInstanceFromStarting(t *testing.T) {
	t.Parallel()
	e := real(t)
	h := e.host(t)
	volume := filepath.Join(t.TempDir(), "prego")
	w := workload.Spec{Image: "stub:1", Command: []string{"/stub", "serve"}, MemoryLimitBytes: 40 << 20}
	instance := w.Container("ins-0123456789ab-2", "grp-0123456789ab", nil, []string{volume + ":/data"})
	instance.Network = "none"
	err := up(t, h, instance)
	require.ErrorContains(t, err, "does not exist")
	require.NoDirExists(t, volume)
	require.NoError(t, os.Mkdir(volume, 0o755))
	require.NoError(t, up(t, h, instance))
	adopted, err := h.Create(t.Context(), instance)
	require.NoError(t, err)
	require.True(t, adopted, "the same mounts are recognized")
	instance.Mounts = []string{volume + ":/other"}
	adopted, err = h.Create(t.Context(), instance)
	require.NoError(t, err)
	require.False(t, adopted)
	require.NoError(t, os.Remove(volume)) // unmounted meanwhile
	require.ErrorContains(t, h.Start(t.Context(), instance.Name), "does not exist")
	require.NoDirExists(t, volume)
}
