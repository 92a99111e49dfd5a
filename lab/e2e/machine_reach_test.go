//go:build machines

package e2e

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/netns"
)

// dialFunc connects from a certain place.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// path is an attempt to reach something from somewhere.
type path struct {
	from, to string
	why      string // it is refused, or ""
	open     bool
	try      func(ctx context.Context) error
}

// reach tries all paths concurrently, by real connections, and logs each result.
func reach(t *testing.T, what string, paths []path) {
	t.Helper()
	var wg sync.WaitGroup
	got := make([]error, len(paths))
	for i, p := range paths {
		wg.Go(func() {
			within := 2 * time.Second // dropped packets run into this limit
			if p.open {
				within = 20 * time.Second // this machine may be slow
			}
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			got[i] = p.try(ctx)
		})
	}
	wg.Wait()
	var table, wrong strings.Builder
	for i, p := range paths {
		answer := "yes"
		if got[i] != nil {
			answer = "no: " + strings.ReplaceAll(got[i].Error(), "\n", " ")
		}
		fmt.Fprintf(&table, "%-44s → %-44s %.110s\n", p.from, p.to, answer)
		if p.open != (got[i] == nil) {
			fmt.Fprintf(&wrong, "%s → %s: %s\n", p.from, p.to, answer)
		}
		if !p.open && p.why != "" && got[i] != nil && !strings.Contains(got[i].Error(), p.why) {
			fmt.Fprintf(&wrong, "%s → %s: is refused for another reason than %q: %s\n", p.from, p.to, p.why, answer)
		}
	}
	t.Logf("%s:\n%s", what, table.String())
	assert.Empty(t, wrong.String(), what)
}

// dial connects from the machine itself.
func (m *machine) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	octets := strings.Split(m.host().Addr, ".")
	err = netns.In(fmt.Sprintf("/run/netns/prego-%s-%s", octets[2], octets[3]), func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// dialAs connects from an address of this machine.
func dialAs(address string) dialFunc {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
}

// outside is an address in the machines' public network that is neither a server's nor the
// control plane's.
func (c *cell) outside() string {
	c.t.Helper()
	octets := strings.Split(c.sim.Network().Gateway, ".")
	address := strings.Join(octets[:3], ".") + ".253"
	out, err := exec.Command("ip", "address", "add", address+"/24", "dev", "prego"+octets[2]).CombinedOutput()
	require.NoError(c.t, err, "%s", out) // it goes with the bridge
	return address
}

// connects is the path of a TCP connection.
func connects(from string, dial dialFunc, to, address string, port int, open bool) path {
	return path{from: from, to: fmt.Sprintf("%s %d", to, port), open: open, try: func(ctx context.Context) error {
		conn, err := dial(ctx, "tcp", fmt.Sprintf("%s:%d", address, port))
		if err == nil {
			_ = conn.Close()
		}
		return err
	}}
}
