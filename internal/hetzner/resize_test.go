package hetzner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// switchedOff makes a server with a type, and switches it off: nothing runs on it that would follow a button.
func (c *cloud) switchedOff(serverType string) (id prego.ServerID, look func() (typ, status string, disk float64)) {
	c.t.Helper()
	made := c.call("POST", "/servers", map[string]any{"name": "app-1", "server_type": serverType, "image": "debian-13", "location": "fsn1"})["server"].(map[string]any)
	id = prego.ServerID(fmt.Sprint(int64(made["id"].(float64))))
	path := "/servers/" + string(id)
	look = func() (string, string, float64) {
		s := c.call("GET", path, nil)["server"].(map[string]any)
		return s["server_type"].(map[string]any)["name"].(string), s["status"].(string), s["primary_disk_size"].(float64)
	}
	require.Eventually(c.t, func() bool { _, status, _ := look(); return status == "running" }, 5*time.Second, 2*time.Millisecond)
	c.call("POST", path+"/actions/poweroff", nil)
	require.Eventually(c.t, func() bool { _, status, _ := look(); return status == "off" }, 5*time.Second, 2*time.Millisecond)
	return id, look
}

// TestAServerIsResized: with the disk that it had, and on again; the same again changes nothing.
func TestAServerIsResized(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, look := c.switchedOff("cx33")
	for range 2 {
		require.NoError(t, c.ResizeServer(t.Context(), id, "cx43"))
		typ, status, disk := look()
		require.Equal(t, []any{"cx43", "running", 80.0}, []any{typ, status, disk})
	}
}

// TestWhatCantBeResizedIsOnAgain: a disk that is too large is seen before anything is done.
func TestWhatCantBeResizedIsOnAgain(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, look := c.switchedOff("cx33")
	refused := infraError(t, c.ResizeServer(t.Context(), id, "cx23"))
	require.Equal(t, server.InfraPermanent, refused.Class)
	require.Contains(t, refused.Message, "disks don't shrink")
	_, status, _ := look()
	require.Equal(t, "off", status, "nothing was touched")
	require.Contains(t, infraError(t, c.ResizeServer(t.Context(), id, "cx99")).Message, "no type cx99")

	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers/*/actions/change_type", Action: "respond", Status: 412, Code: "resource_unavailable", Times: 1})
	require.Equal(t, server.InfraNext, infraError(t, c.ResizeServer(t.Context(), id, "cx43")).Class)
	typ, status, _ := look()
	require.Equal(t, []string{"cx33", "running"}, []string{typ, status}, "it is what it was")
	require.Equal(t, server.InfraNotFound, infraError(t, c.ResizeServer(t.Context(), "4711", "cx43")).Class)
}

// TestResizeContinuesAfterALostAnswer: a repeated call reads the current state first.
func TestResizeContinuesAfterALostAnswer(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, look := c.switchedOff("cx33")
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers/*/actions/poweron", Action: "reset", Times: 1})
	require.Error(t, c.ResizeServer(t.Context(), id, "cx43"))
	typ, status, _ := look()
	require.Equal(t, []string{"cx43", "off"}, []string{typ, status})
	require.NoError(t, c.ResizeServer(t.Context(), id, "cx43"))
	_, status, _ = look()
	require.Equal(t, "running", status)
}
