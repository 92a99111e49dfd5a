package sim

import (
	"encoding/binary"
	"fmt"
	"net"
)

// serveAddresses gives each machine the address that the cloud chose for it, by its
// hardware address, with a route and a resolver, as DHCP (RFC 2131) does.
func (s *Sim) serveAddresses() error {
	lc := s.net.onBridge()
	c, err := lc.ListenPacket(s.ctx, "udp4", "0.0.0.0:67")
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	s.work.Add(2)
	go func() { defer s.work.Done(); <-s.ctx.Done(); _ = c.Close() }()
	go func() {
		defer s.work.Done()
		b := make([]byte, 1500)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				s.logMachines("addresses", err)
				return
			}
			if answer, to := s.net.lease(b[:n]); answer != nil {
				_, _ = c.WriteTo(answer, to)
			}
		}
	}()
	return nil
}

const (
	dhcpDiscover, dhcpOffer, dhcpRequest, dhcpAck, dhcpNak = 1, 2, 3, 5, 6

	optMask, optRouter, optNames, optMTU, optWanted, optLease, optKind, optServer, optRoutes = 1, 3, 6, 26, 50, 51, 53,
		54, 121
)

// dhcpMagic stands before the options.
var dhcpMagic = []byte{99, 130, 83, 99}

// dhcpQuestion is what a machine asks.
type dhcpQuestion struct {
	raw    []byte
	kind   byte
	mac    net.HardwareAddr
	ciaddr net.IP // of a renewal
	wanted net.IP
}

type dhcpOption struct {
	code  byte
	value []byte
}

// parseDHCP reads a question of a machine.
func parseDHCP(b []byte) (dhcpQuestion, bool) {
	if len(b) < 240 || b[0] != 1 || string(b[236:240]) != string(dhcpMagic) {
		return dhcpQuestion{}, false
	}
	q := dhcpQuestion{raw: b, mac: net.HardwareAddr(b[28:34]), ciaddr: net.IP(b[12:16]), wanted: net.IP(b[12:16])}
	for o := b[240:]; len(o) > 2 && o[0] != 255; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		n := int(o[1])
		if len(o) < 2+n {
			return q, false
		}
		switch {
		case o[0] == optKind && n == 1:
			q.kind = o[2]
		case o[0] == optWanted && n == 4:
			q.wanted = net.IP(o[2:6])
		}
		o = o[2+n:]
	}
	return q, true
}

// answer gives a machine an address, with options, or denies it another one; nil is no
// answer.
func (q dhcpQuestion) answer(addr, server net.IP, options []dhcpOption) ([]byte, net.Addr) {
	var kind byte
	switch {
	case q.kind == dhcpDiscover:
		kind = dhcpOffer
	case q.kind == dhcpRequest && q.wanted.Equal(addr):
		kind = dhcpAck
	case q.kind == dhcpRequest:
		kind = dhcpNak
	default:
		return nil, nil
	}
	out := make([]byte, 240, 300)
	out[0], out[1], out[2] = 2, 1, 6
	copy(out[4:8], q.raw[4:8])     // transaction
	copy(out[10:12], q.raw[10:12]) // flags
	copy(out[28:44], q.raw[28:44]) // hardware address
	copy(out[236:], dhcpMagic)
	out = append(out, optKind, 1, kind, optServer, 4)
	out = append(out, server...)
	if kind != dhcpNak {
		copy(out[16:20], addr)
		out = append(out, optLease, 4)
		out = binary.BigEndian.AppendUint32(out, 24*3600)
		for _, o := range options {
			out = append(append(out, o.code, byte(len(o.value))), o.value...)
		}
	}
	out = append(out, 255)
	to := &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
	if kind == dhcpAck && !q.ciaddr.IsUnspecified() {
		to.IP = append(net.IP(nil), q.ciaddr...)
	}
	return out, to
}

// lease answers a question of a machine on this network; nil is no answer.
func (w *network) lease(b []byte) ([]byte, net.Addr) {
	q, ok := parseDHCP(b)
	if !ok || q.mac[0] != 0x96 || q.mac[4] != byte(w.n) {
		return nil, nil
	}
	gateway := net.ParseIP(w.gateway()).To4()
	return q.answer(net.ParseIP(w.host(int(q.mac[5]))).To4(), gateway,
		[]dhcpOption{{optMask, []byte{255, 255, 255, 0}}, {optRouter, gateway}, {optNames, gateway}})
}
