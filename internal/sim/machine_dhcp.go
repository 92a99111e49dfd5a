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

	optMask, optRouter, optNames, optWanted, optLease, optKind, optServer = 1, 3, 6, 50, 51, 53, 54
)

// dhcpMagic stands before the options.
var dhcpMagic = []byte{99, 130, 83, 99}

// lease answers a question of a machine on this network; nil is no answer.
func (w *network) lease(q []byte) ([]byte, net.Addr) {
	if len(q) < 240 || q[0] != 1 || q[28] != 0x96 || q[32] != byte(w.n) || string(q[236:240]) != string(dhcpMagic) {
		return nil, nil
	}
	var kind byte
	wanted := net.IP(q[12:16]) // ciaddr, of one that renews
	for o := q[240:]; len(o) > 2 && o[0] != 255; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		n := int(o[1])
		if len(o) < 2+n {
			return nil, nil
		}
		switch {
		case o[0] == optKind && n == 1:
			kind = o[2]
		case o[0] == optWanted && n == 4:
			wanted = net.IP(o[2:6])
		}
		o = o[2+n:]
	}
	addr, gateway := net.ParseIP(w.host(int(q[33]))).To4(), net.ParseIP(w.gateway()).To4()
	var answer byte
	switch {
	case kind == dhcpDiscover:
		answer = dhcpOffer
	case kind == dhcpRequest && wanted.Equal(addr):
		answer = dhcpAck
	case kind == dhcpRequest:
		answer = dhcpNak
	default:
		return nil, nil
	}
	out := make([]byte, 240, 300)
	out[0], out[1], out[2] = 2, 1, 6
	copy(out[4:8], q[4:8])     // transaction
	copy(out[10:12], q[10:12]) // flags
	copy(out[28:44], q[28:44]) // hardware address
	copy(out[236:], dhcpMagic)
	out = append(out, optKind, 1, answer, optServer, 4)
	out = append(out, gateway...)
	if answer != dhcpNak {
		copy(out[16:20], addr)
		out = append(out, optLease, 4)
		out = binary.BigEndian.AppendUint32(out, 24*3600)
		out = append(out, optMask, 4, 255, 255, 255, 0, optRouter, 4)
		out = append(out, gateway...)
		out = append(out, optNames, 4)
		out = append(out, gateway...)
	}
	out = append(out, 255)
	to := &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
	if ciaddr := net.IP(q[12:16]); answer == dhcpAck && !ciaddr.IsUnspecified() {
		to.IP = append(net.IP(nil), ciaddr...)
	}
	return out, to
}
