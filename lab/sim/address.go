package sim

import (
	"crypto/rand"
	"fmt"
	"maps"
	"net"
)

// Addresses: every process host has its own on loopback, every machine one on the bridge. It stands for the host's
// public address.

func randomBase() [2]byte {
	var b [2]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("sim: no randomness: " + err.Error())
	}
	return [2]byte{16 + b[0]%230, b[1]}
}

// freeAddress finds an unused address that is not among the given ones. Call it with the
// lock held.
func (s *Sim) freeAddress(but map[string]bool) string {
	used := make(map[string]bool, len(s.st.Servers)+len(but))
	maps.Copy(used, but)
	for _, f := range s.st.FloatingIPs {
		used[f.IP] = true
	}
	for _, p := range s.st.PrimaryIPs {
		used[p.IP] = true
	}
	for _, srv := range s.st.Servers {
		used[srv.PublicNet.IPv4.IP], used[srv.Inside] = true, true
	}
	for n := 0; ; n++ {
		k := int(s.st.NextID) + n
		if s.net != nil {
			// The address's last user may still be shutting down: take another one.
			if addr := s.net.host(2 + k%250); !used[addr] {
				return addr
			}
			continue
		}
		// Other clouds may be simulated on this machine.
		addr := fmt.Sprintf("127.%d.%d.%d", s.base[0], (int(s.base[1])+k/250)%256, 1+k%250)
		if !used[addr] && s.cfg.Guest != nil {
			return addr
		}
		if !used[addr] && portFree(addr, s.cfg.AgentPort) && portFree(addr, s.cfg.DockerPort) {
			return addr
		}
	}
}

// address is a server's host's reachable address: its public one, or a hidden one while it has none. Call it with the
// lock held.
func (s *Sim) address(srv *server) string {
	if srv.PublicNet.IPv4.IP != "" {
		return srv.PublicNet.IPv4.IP
	}
	if srv.Inside == "" {
		srv.Inside = s.freeAddress(nil)
	}
	return srv.Inside
}

func portFree(addr string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, fmt.Sprint(port))) //nolint:noctx // closed immediately
	if err != nil {
		return false
	}
	return l.Close() == nil
}
