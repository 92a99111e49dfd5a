package sim

import (
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// question is a DHCP message of machine k on network n.
func question(n, k byte, options ...byte) []byte {
	b := make([]byte, 240)
	b[0] = 1
	copy(b[4:8], "abcd")
	copy(b[28:], []byte{0x96, 0, 0, 0x63, n, k})
	copy(b[236:], dhcpMagic)
	return slices.Concat(b, options, []byte{255})
}

func TestLeaseGivesEachMachineItsOwnAddress(t *testing.T) {
	t.Parallel()
	w := &network{n: 3}
	for name, c := range map[string]struct {
		ask  []byte
		kind byte // 0 is no answer
	}{
		"discover":             {question(3, 9, optKind, 1, dhcpDiscover), dhcpOffer},
		"padded":               {question(3, 9, 0, 0, optKind, 1, dhcpDiscover), dhcpOffer},
		"request":              {question(3, 9, optKind, 1, dhcpRequest, optWanted, 4, 10, 99, 3, 9), dhcpAck},
		"another machine's":    {question(3, 9, optKind, 1, dhcpRequest, optWanted, 4, 10, 99, 3, 8), dhcpNak},
		"of another network":   {question(4, 9, optKind, 1, dhcpDiscover), 0},
		"option past the end":  {question(3, 9, optKind, 200, dhcpDiscover), 0},
		"not DHCP":             {[]byte("hello"), 0},
		"a kind for no server": {question(3, 9, optKind, 1, 7), 0},
	} {
		answer, to := w.lease(c.ask)
		if c.kind == 0 {
			require.Nil(t, answer, name)
			continue
		}
		require.Equal(t, []byte{optKind, 1, c.kind, optServer, 4, 10, 99, 3, 1}, answer[240:249], name)
		require.Equal(t, "abcd", string(answer[4:8]), name)
		require.Equal(t, "255.255.255.255:68", to.String(), name)
		if c.kind != dhcpNak {
			require.Equal(t, net.IP{10, 99, 3, 9}, net.IP(answer[16:20]), name)
		}
	}
	renewal := question(3, 9, optKind, 1, dhcpRequest)
	copy(renewal[12:16], net.IP{10, 99, 3, 9})
	_, to := w.lease(renewal)
	require.Equal(t, "10.99.3.9:68", to.String(), "the answer goes to the address's owner")
}
