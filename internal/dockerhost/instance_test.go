package dockerhost_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/dockerhost"
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

// TestAnImageOnAHostIsNotEveryOrgs: what an org pulled with its credentials is on the host, and another org starts it
// neither by its tag nor by its digest, unless the registry lets that org have it. Nothing that runs is touched.
func TestAnImageOnAHostIsNotEveryOrgs(t *testing.T) {
	t.Parallel()
	e := real(t)
	r := newRegistry(t, e)
	const secret = "acmes-password"
	login := func(user string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.user = user
	}
	login(secret)
	asked := map[prego.OrgID]int{}
	h := e.hostWith(t, func(_ context.Context, org prego.OrgID, of string) (string, string, bool, error) {
		asked[org]++
		return secret, secret, (org == "acme" || org == "") && strings.HasPrefix(of, r.addr), nil
	})
	image := r.addr + "/stub:private"
	instance := func(org, n, image string) server.ContainerSpec {
		w := workload.Spec{Image: image, Command: []string{"/stub", "serve"}, MemoryLimitBytes: 40 << 20}
		c := w.Container(prego.InstanceID("ins-"+org+"-"+n), prego.GroupID("grp-"+org), nil, nil)
		c.Network = "none" // the tests' engine has no bridge
		return c
	}
	acme := instance("acme", "1", image)
	require.NoError(t, h.Run(t.Context(), "acme", acme))
	digest, err := h.Resolve(t.Context(), image) // the stack's, with the installation's credentials
	require.NoError(t, err)
	require.Equal(t, 1, asked["acme"])

	for n, named := range []string{image, image + "@" + digest, r.addr + "/stub@" + digest} {
		other := instance("other", strconv.Itoa(n), named)
		err := h.Run(t.Context(), "other", other)
		permanent(t, err, "org other has no credentials for "+r.addr)
		_, err = h.Inspect(t.Context(), other.Name)
		require.ErrorIs(t, err, dockerhost.ErrNoContainer, named)
	}
	got, err := h.Inspect(t.Context(), acme.Name)
	require.NoError(t, err)
	require.Equal(t, "running", got.State)

	login("changed") // acme's are not valid any more: it runs on, and starts again, and starts nothing new
	require.NoError(t, h.Run(t.Context(), "acme", acme))
	require.NoError(t, h.Stop(t.Context(), acme.Name))
	require.NoError(t, h.Run(t.Context(), "acme", acme), "the same instance on the same host")
	permanent(t, h.Run(t.Context(), "acme", instance("acme", "2", image)), "")
	login("")
	require.NoError(t, h.Run(t.Context(), "other", instance("other", "9", image)), "it is public now")
	require.NoError(t, h.Run(t.Context(), "other", instance("other", "10", "stub:1")), "it was loaded by hand")
}

// TestARegistryThatIsDownStopsNothing: a group whose container has an image on a host starts another one there; any other
// group waits.
func TestARegistryThatIsDownStopsNothing(t *testing.T) {
	t.Parallel()
	e := real(t)
	r := newRegistry(t, e)
	at, err := strconv.Atoi(r.addr[strings.LastIndexByte(r.addr, ':')+1:])
	require.NoError(t, err)
	down := newProxy(t, at)
	image := "127.0.0.1:" + strconv.Itoa(down.port) + "/stub:down"
	h := e.host(t)
	instance := func(group, n string) server.ContainerSpec {
		w := workload.Spec{Image: image, Command: []string{"/stub", "serve"}, MemoryLimitBytes: 40 << 20}
		c := w.Container(prego.InstanceID("ins-"+group+"-"+n), prego.GroupID("grp-"+group), nil, nil)
		c.Network = "none"
		return c
	}
	require.NoError(t, h.Run(t.Context(), "acme", instance("down", "1")))
	digest, err := h.Resolve(t.Context(), image)
	require.NoError(t, err)
	down.end()
	pinned := instance("pinned", "1")
	pinned.Image = dockerhost.Pinned(image, digest)
	passing(t, h.Run(t.Context(), "acme", pinned))
	require.NoError(t, h.Run(t.Context(), "acme", instance("down", "2")))
	passing(t, h.Run(t.Context(), "acme", instance("elsewhere", "1")))
	passing(t, h.Run(t.Context(), "other", instance("foreign", "1")))
}
