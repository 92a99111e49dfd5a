package child

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// given are the ports that FreePort has returned.
var given sync.Map

// FreePort returns a loopback port without a listener, never the same twice in this process, since its user may not be
// listening yet. It avoids the range of outgoing connections, which could take the port first.
func FreePort() (int, error) {
	const from, to = 12_000, 32_000
	for range 1000 {
		port := from + rand.IntN(to-from)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // closed immediately
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port on loopback")
}
