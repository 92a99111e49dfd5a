package dockerhost_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/netns"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// TestEnvironmentsHaveNetworksOfTheirOwn runs instances of two environments in a real engine
// with real networks, and tries who reaches whom.
func TestEnvironmentsHaveNetworksOfTheirOwn(t *testing.T) {
	t.Parallel()
	needEngine(t)
	ip := need.Program(t, "ip")
	need.Program(t, "nsenter")
	need.Program(t, "iptables")
	const private, public, outside = "10.254.77.2", "10.254.78.2", "10.254.77.1"
	space := fmt.Sprintf("pgenv%d", os.Getpid())
	do := func(args ...string) {
		t.Helper()
		out, err := exec.Command(ip, args...).CombinedOutput()
		require.NoError(t, err, "ip %v: %s", args, out)
	}
	do("netns", "add", space)
	t.Cleanup(func() { _ = exec.Command(ip, "netns", "delete", space).Run() })
	here := fmt.Sprintf("pgv%d", os.Getpid())
	do("link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", space)
	do("address", "add", outside+"/24", "dev", here)
	do("link", "set", here, "up")
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", private + "/24", "dev", "eth0"}, {"address", "add", public + "/24", "dev", "eth0"}, {"link", "set", "eth0", "up"}} {
		do(append([]string{"-n", space}, args...)...)
	}
	do("route", "add", public+"/32", "via", private, "dev", here)
	e, err := newEngineIn(space, private, "{}")
	require.NoError(t, err)
	defer e.close()
	h := e.host(t)
	c, err := e.local()
	require.NoError(t, err)

	w := workload.Spec{Image: "stub:1", Command: []string{"/stub", "serve"}, MemoryLimitBytes: 40 << 20, Ports: []int{80}}
	at, inside := map[string]string{}, map[string]string{}
	run := func(name, env string, port int) {
		spec := workload.OnHost(w.Container(prego.InstanceID("ins-"+name), "grp-a", []workload.PortBinding{{ContainerPort: 80, HostPort: port}}, nil), prego.EnvID(env), private)
		require.NoError(t, h.Run(t.Context(), "acme", spec))
		adopted, err := h.Create(t.Context(), spec)
		require.NoError(t, err)
		require.True(t, adopted)
		got, err := c.ContainerInspect(t.Context(), wire.ContainerName(serverID, spec.Name), client.ContainerInspectOptions{})
		require.NoError(t, err)
		at[name] = got.Container.NetworkSettings.Networks[spec.Network].IPAddress.String()
		inside[name] = fmt.Sprintf("/proc/%d/ns/net", got.Container.State.Pid)
		var l net.Listener
		require.NoError(t, netns.In(inside[name], func() (err error) {
			l, err = net.Listen("tcp4", ":80")
			return err
		}))
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
	}
	run("a1", "env-a", 20001)
	run("a2", "env-a", 20002)
	run("b1", "env-b", 20003)
	reaches := func(from, to string, within time.Duration) bool {
		dial := func() error {
			conn, err := net.DialTimeout("tcp4", to, within)
			if err == nil {
				_ = conn.Close()
			}
			return err
		}
		if from == "" {
			return dial() == nil
		}
		return netns.In(from, dial) == nil
	}
	require.NoError(t, netns.In(inside["a1"], func() error {
		eth0, err := net.InterfaceByName("eth0")
		require.NoError(t, err)
		require.Equal(t, 1450, eth0.MTU, "as the provider's private networks")
		return nil
	}))
	host := "/run/netns/" + space
	for _, row := range []struct {
		from, to, why string
		want          bool
	}{
		{host, at["a1"] + ":80", "the agent's check", true},
		{"", private + ":20001", "from the private network", true},
		{"", private + ":20003", "from the private network", true},
		{"", public + ":20001", "only at the private address", false},
		{inside["a1"], at["b1"] + ":80", "another environment's container", false},
		{inside["a1"], private + ":20003", "its published port", false},
		{inside["b1"], private + ":20001", "the other way round", false},
		{inside["a1"], at["a2"] + ":80", "a container of the same environment", false},
	} {
		within := time.Second
		if row.want {
			within = 10 * time.Second
		}
		require.Equal(t, row.want, reaches(row.from, row.to, within), row.why)
	}
	links, err := exec.Command(ip, "-n", space, "-br", "link").CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(links), wire.EnvBridge), "the host's rules know them by their names: %s", links)

	networks := func() (n int) {
		list, err := c.NetworkList(t.Context(), client.NetworkListOptions{})
		require.NoError(t, err)
		for _, i := range list.Items {
			if strings.HasPrefix(i.Name, server.EnvNetworkPrefix) {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		remove string
		left   int
	}{{"ins-a1", 2}, {"ins-b1", 1}, {"ins-a2", 0}, {"ins-a2", 0}} {
		require.NoError(t, h.Remove(t.Context(), step.remove))
		require.Equal(t, step.left, networks(), "after %s", step.remove)
	}
}
