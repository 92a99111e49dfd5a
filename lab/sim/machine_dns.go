package sim

import (
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// serveNames answers machines' questions for names: the cloud's own services and its zones, and no others. Faults of
// kind "dns" affect questions.
func (s *Sim) serveNames() error {
	lc := s.net.onBridge()
	c, err := lc.ListenPacket(s.ctx, "udp4", s.net.gateway()+":53")
	if err != nil {
		return fmt.Errorf("names: %w", err)
	}
	s.work.Add(2)
	go func() { defer s.work.Done(); <-s.ctx.Done(); _ = c.Close() }()
	go func() {
		defer s.work.Done()
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				s.logMachines("names", err)
				return
			}
			var q dnsmessage.Message
			if q.Unpack(b[:n]) != nil || q.Response || len(q.Questions) != 1 {
				continue
			}
			f := s.machineFault("dns", from.String(), strings.TrimSuffix(q.Questions[0].Name.String(), "."))
			s.after(faultDelay(f), func() {
				if answer := s.name(q, f); answer != nil {
					_, _ = c.WriteTo(answer, from)
				}
			})
		}
	}()
	return nil
}

func faultDelay(f *Fault) time.Duration {
	if f == nil {
		return 0
	}
	return time.Duration(f.DelayMS) * time.Millisecond
}

// name answers a question; nil is no answer.
func (s *Sim) name(q dnsmessage.Message, f *Fault) []byte {
	question := q.Questions[0]
	out := dnsmessage.Message{Header: dnsmessage.Header{
		ID: q.ID, Response: true, RecursionDesired: q.RecursionDesired,
		RecursionAvailable: true,
	}, Questions: q.Questions}
	known := map[string]bool{
		MirrorName + ".": true, RegistryName + ".": true,
		hubName + ".": true,
	}[strings.ToLower(question.Name.String())]
	switch {
	case f != nil && f.Action == "drop":
		return nil
	case f != nil && f.Action == "fail":
		out.RCode = dnsmessage.RCodeServerFailure
	case !known:
		if question, err := q.Pack(); err == nil {
			return s.zoneReply(question)
		}
		out.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		a := dnsmessage.AResource{}
		copy(a.A[:], net.ParseIP(s.net.gateway()).To4())
		out.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{
			Name:  question.Name,
			Class: dnsmessage.ClassINET, TTL: 5,
		}, Body: &a}}
	}
	b, err := out.Pack()
	if err != nil {
		return nil
	}
	return b
}
