package sim

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// listen gives a running container a separate address, where its exposed TCP ports answer each request with 200; an
// unhealthy one has no listener. A check from its host over the network sees the same as a check within it. Call it
// with the lock held.
func (d *docker) listen(c *container) {
	exposed, _ := c.Config["ExposedPorts"].(map[string]any)
	var ports []string
	for port := range exposed {
		if number, tcp := strings.CutSuffix(port, "/tcp"); tcp {
			ports = append(ports, number)
		}
	}
	if len(ports) == 0 || c.Fault == "unhealthy" {
		return
	}
	const tries = 10 // another cloud on this machine may have taken an address
	for range tries {
		// Addresses of hosts begin at 127.16.
		addr := fmt.Sprintf("127.%d.%d.%d", 2+rand.IntN(14), rand.IntN(256), 1+rand.IntN(250))
		if c.open = listenAll(addr, ports); c.open != nil {
			c.addr = addr
			break
		}
	}
	for _, l := range c.open {
		server := &http.Server{
			ReadHeaderTimeout: time.Second,
			Handler:           http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		}
		go func() { _ = server.Serve(l) }()
	}
}

// listenAll opens all ports of an address, or returns nil.
func listenAll(addr string, ports []string) (open []net.Listener) {
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, port)) //nolint:noctx // ends with the container
		if err != nil {
			closeAll(open)
			return nil
		}
		open = append(open, l)
	}
	return open
}

// silence closes a container's ports, and ends what it runs. Call it with the lock held.
func (c *container) silence() {
	if c.stop != nil {
		c.stop()
	}
	closeAll(c.open)
	c.addr, c.open = "", nil
}

func closeAll(open []net.Listener) {
	for _, l := range open {
		_ = l.Close()
	}
}
