package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Process hosts share this machine, so that only an address of one host's own may be
// listened on, and data servers listen by themselves.
func TestPublishedPorts(t *testing.T) {
	t.Parallel()
	binding := func(host, port string) any {
		return []any{map[string]any{"HostIp": host, "HostPort": port}}
	}
	c := &container{Host: map[string]any{"PortBindings": map[string]any{
		"8080/tcp": binding("127.64.0.3", "8080"), "80/tcp": binding("127.0.0.1", "20001"), "81/tcp": binding("0.0.0.0", "20002"),
		"82/tcp": binding("", "20003"), "3306/tcp": binding("127.64.0.3", "3306"), "83/tcp": nil,
	}}}
	require.Equal(t, map[string]string{"8080/tcp": "127.64.0.3:8080"}, c.published())
}
