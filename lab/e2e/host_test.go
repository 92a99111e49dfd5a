package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// machine is a server of a cell with the host that it runs on, of either kind.
type machine struct {
	*cell
	server string // its name in the test
}

// machine requests a server and returns immediately. A real machine waits for its turn first. It is turned off when the
// test ends.
func (c *cell) machine(name string, role prego.Role, spec server.Spec) *machine {
	c.t.Helper()
	if c.sim.Network().Hosts == "machine" && !c.turn {
		takeTurn(c.t, 1)
	}
	m := &machine{cell: c, server: name}
	c.t.Cleanup(func() {
		if c.t.(*testing.T).Failed() {
			m.showMachine()
		}
		for _, h := range c.sim.Hosts() {
			if h.Name == server.Name(c.env, prego.ServerID(c.id(name))) {
				m.power("poweroff")
			}
		}
	})
	c.create(name, role, spec)
	return m
}

// host finds the machine at the provider; it is made soon after the request.
func (m *machine) host() sim.HostInfo {
	m.t.Helper()
	var out sim.HostInfo
	eventually(m.t, func() bool {
		for _, h := range m.sim.Hosts() {
			if h.Name == server.Name(m.env, prego.ServerID(m.id(m.server))) {
				out = h
				return true
			}
		}
		return false
	}, patience, 50*time.Millisecond, "%s has no host that is on", m.server)
	return out
}

// machineSlots bounds the number of running machines: each takes some 200 MB and, while it boots, most of a core.
var machineSlots = semaphore.NewWeighted(4)

// takeTurn waits until n more machines may run, for as long as the test runs. A test with several waits for all of them
// together: waiting for a second while holding a first can deadlock.
func takeTurn(t testing.TB, n int64) {
	t.Helper()
	require.NoError(t, machineSlots.Acquire(context.Background(), n))
	t.Cleanup(func() { machineSlots.Release(n) })
}

// machines takes the turn of all machines that the cell will have.
func (c *cell) machines(n int64) {
	c.t.Helper()
	takeTurn(c.t, n)
	c.turn = true
}

// lightStack is a stack of stand-ins, two for each role.
func lightStack(t *testing.T) string {
	t.Helper()
	stack := server.Stack{}
	for _, role := range prego.Roles() {
		for _, name := range []string{"first", "second"} {
			stack[role] = append(stack[role], server.ContainerSpec{
				Name: name, Image: sim.RegistryName + "/" + sim.StandIn, Command: []string{sim.StandInProgram, "stand-in", "${server_id}"}, Network: "none", MemoryMB: 64,
				Health: &server.ContainerHealth{Command: []string{sim.StandInProgram, "stand-in", "--check"}, Interval: prego.Duration(time.Second)},
			})
		}
	}
	return writeStack(t, stack)
}

func writeStack(t *testing.T, stack server.Stack) string {
	t.Helper()
	b, err := json.Marshal(stack)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "stack.json")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	return file
}

// in is the cell as another test, for example a subtest, sees it: what fails there fails
// that test.
func (c *cell) in(t *testing.T) *cell {
	d := *c
	d.t = t
	return &d
}

// console is what the machine wrote to its console.
func (m *machine) console() string {
	m.t.Helper()
	b, err := m.sim.Console(m.providerID())
	require.NoError(m.t, err)
	return string(b)
}

func (m *machine) providerID() int64 {
	m.t.Helper()
	var id int64
	eventually(m.t, func() bool {
		for _, e := range m.sim.Ledger(false) {
			if e.Kind == "server" && e.Name == server.Name(m.env, prego.ServerID(m.id(m.server))) && e.ID > id {
				id = e.ID
			}
		}
		return id != 0
	}, patience, 50*time.Millisecond)
	return id
}

// power presses a button at the provider: poweroff (which is a power cut), poweron, reset,
// reboot, shutdown.
func (m *machine) power(verb string) {
	m.t.Helper()
	m.provider(http.MethodPost, fmt.Sprintf("/servers/%d/actions/%s", m.providerID(), verb), nil)
}

// act does something to a process of the machine: kill-agent, stop-docker and so on.
func (m *machine) act(verb string) {
	m.t.Helper()
	require.NoError(m.t, m.sim.HostAction(m.host().ID, verb))
}

func (m *machine) awaitActive() api.Server {
	m.t.Helper()
	return m.waits(server.Active)
}

// waits is awaitStatus with the patience that machines need.
func (m *machine) waits(status server.Status) api.Server {
	m.t.Helper()
	deadline := time.Now().Add(6 * time.Minute)
	for {
		s := m.get(m.server)
		if s.Status == status {
			return s
		}
		if s.Status == "failed" || s.Status == "active" && status != server.Terminated || time.Now().After(deadline) {
			m.t.Fatalf("server %s is %s (%v %v), not %s", m.server, s.Status, deref(s.StatusReason), deref(s.StatusMessage), status)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// showMachine logs the end of the machine's console and its cloud-init's.
func (m *machine) showMachine() {
	lines := strings.Split(m.console(), "\n")
	m.t.Logf("--- console of %s\n%s", m.server, strings.Join(lines[max(0, len(lines)-60):], "\n"))
	s := m.get(m.server)
	m.t.Logf("--- %s is %s (%v %v)", m.server, s.Status, deref(s.StatusReason), deref(s.StatusMessage))
	for _, e := range s.Timeline {
		m.t.Logf("%s %s %s", e.At.Format("15:04:05.000"), e.Step, deref(e.Message))
	}
}

// nothingLeft checks that this machine has nothing any more of a host that is deleted.
func nothingLeft(t testing.TB, h sim.HostInfo) {
	t.Helper()
	dir := filepath.Dir(h.Root) + "/"
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), dir)
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(t, err)
	eventually(t, func() bool { // the kernel keeps a device while it is open
		return !slices.ContainsFunc(loops, func(l string) bool {
			b, _ := os.ReadFile(l)
			return strings.Contains(string(b), dir)
		})
	}, 10*time.Second, 20*time.Millisecond, "loop devices of %s", dir)
	octets := strings.Split(h.Addr, ".")
	if octets[0] != "10" {
		return
	}
	name := fmt.Sprintf("prego-%s-%s", octets[2], octets[3])
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	require.NoError(t, err)
	require.Empty(t, groups)
	require.NoFileExists(t, "/run/netns/"+name)
}

// asks calls the provider's API and reads the answer.
func (m *machine) asks(method, path string, body, into any) {
	m.t.Helper()
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		require.NoError(m.t, err)
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, m.sim.URL()+path, r)
	require.NoError(m.t, err)
	req.Header.Set("Authorization", "Bearer "+m.vars["HCLOUD_TOKEN"])
	resp, err := need.HTTP.Do(req)
	require.NoError(m.t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(m.t, 2, resp.StatusCode/100)
	require.NoError(m.t, json.NewDecoder(resp.Body).Decode(into))
}

func (m *machine) providerStatus() string {
	m.t.Helper()
	var answer struct{ Server struct{ Status string } }
	m.asks(http.MethodGet, fmt.Sprintf("/servers/%d", m.providerID()), nil, &answer)
	return answer.Server.Status
}

// createVolume makes a volume where the server is, and returns its id.
func (m *machine) createVolume(name string) int64 {
	m.t.Helper()
	var server struct {
		Server struct{ Location struct{ Name string } }
	}
	m.asks(http.MethodGet, fmt.Sprintf("/servers/%d", m.providerID()), nil, &server)
	var volume struct{ Volume struct{ ID int64 } }
	m.asks(http.MethodPost, "/volumes", map[string]any{"name": name, "size": 10, "format": "ext4", "location": server.Server.Location.Name}, &volume)
	return volume.Volume.ID
}
