package dns

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

// FuzzAnswer: an answer of a name server, which a customer may run, ends in texts of the name
// or of its aliases, or in one alias, and never both.
func FuzzAnswer(f *testing.F) {
	for _, records := range [][]string{
		{`a.example. 60 IN TXT "x" "y"`},
		{`a.example. 60 IN CNAME b.example.`, `b.example. 60 IN TXT "x"`},
		{`a.example. 60 IN CNAME b.example.`, `b.example. 60 IN CNAME a.example.`},
		{`b.example. 60 IN TXT "not asked for"`},
	} {
		m := new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT)
		for _, r := range records {
			rr, err := dns.NewRR(r)
			require.NoError(f, err)
			m.Answer = append(m.Answer, rr)
		}
		wire, err := m.Pack()
		require.NoError(f, err)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m dns.Msg
		if m.Unpack(wire) != nil {
			return
		}
		texts, alias := textsOf(&m, "a.example.")
		require.False(t, len(texts) > 0 && alias != "", "texts and an alias")
		require.False(t, strings.EqualFold(alias, "a.example."), "an alias of itself")
		for _, text := range texts {
			found := false
			for _, rr := range m.Answer {
				if s, ok := rr.(*dns.TXT); ok && strings.Join(s.Txt, "") == text {
					found = true
				}
			}
			require.True(t, found, "a text that is in no record")
		}
	})
}
