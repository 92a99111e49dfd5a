package prego_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func TestNormalizeHostname(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"WWW.Example.COM": "www.example.com", "xn--bcher-kva.example": "xn--bcher-kva.example", "a.b": "a.b", "a.B.": "a.b", strings.Repeat("a", 63) + ".com": strings.Repeat("a", 63) + ".com"} {
		got, err := prego.NormalizeHostname(name)
		require.NoError(t, err, name)
		require.Equal(t, want, got)
	}
	for _, name := range []string{
		"", "a", "*.a.b", ".a.b", "a.b..", ".", "a..b", "-a.b", "a-.b", "a_b.c", "bücher.example", "a.b`", "a b.c", "a.b\n", "192.0.2.1", "[::1]",
		"xn--e1afmkfd-385f3.example", "xn--0.pt", "a.xn--.b", "xn--a-.b", "xn--u-ccb.example", "xn--bcher-.example", "ab--cd.example",
		"\u0130.com", "\u212a.com", "foo.\u017fe", "ａ.example",
		strings.Repeat("a.", 127) + "com",
	} {
		_, err := prego.NormalizeHostname(name)
		require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err), "%q", name)
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	require.True(t, prego.Within("a.example.com", "example.com"))
	require.True(t, prego.Within("example.com", "example.com"))
	require.False(t, prego.Within("notexample.com", "example.com"))
	require.False(t, prego.Within("example.com", "a.example.com"))
}

// TestReservedLabels: what readers give a meaning to, and ordinary names beside it.
func TestReservedLabels(t *testing.T) {
	t.Parallel()
	for _, label := range []string{
		"www", "www2", "mail", "autodiscover", "autoconfig", "wpad", "isatap", "localhost", "ns", "ns1", "mx2",
		"postmaster", "ns-1", "mail1", "mail-2", "pop3", "lyncdiscover", "enterpriseregistration", "sip",
		"mta-sts", "xn--mnchen-3ya", "0", "127", "edges", "edge", "admin", "login", "openpgpkey", "security",
	} {
		require.NotEmpty(t, prego.ReservedLabel(label), label)
	}
	for _, label := range []string{"acme", "acme-kr", "mailshop", "www-acme", "nsx", "1a", "shop1", "edgeworks", "t0", "mailing", "www-1a", "sipsmith"} {
		require.Empty(t, prego.ReservedLabel(label), label)
	}
}
