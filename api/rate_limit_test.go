package api

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func TestLimiterRemembersABoundedNumberOfCallers(t *testing.T) {
	t.Parallel()
	l := newCallerLimiter(0.001, 1)
	allow := func(key string) error {
		_, _, err := l.allow(key)
		return err
	}
	require.NoError(t, allow("first"))
	require.Equal(t, prego.CodeRateLimited, prego.CodeOf(allow("first")))
	for i := range 3 * maxCallers {
		require.NoError(t, allow(fmt.Sprint("caller ", i)))
	}
	require.Len(t, l.byKey, maxCallers)
	require.Equal(t, maxCallers, l.order.Len())
	require.Equal(t, prego.CodeRateLimited, prego.CodeOf(allow(fmt.Sprint("caller ", 3*maxCallers-1))), "the last ones are remembered")
	require.NoError(t, allow("first"), "a caller that was long absent starts over")
}

func TestCallersByNetwork(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.7:1234":              "192.0.2.7",
		"[::ffff:192.0.2.7]:1234":     "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:1":    "2001:db8:1:2::/64",
		"[2001:db8:1:2::9]:1":         "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":            "fe80::/64",
		"@":                           "@",
		"not-an-address.invalid:1234": "not-an-address.invalid",
	} {
		require.Equal(t, want, Network(&http.Request{RemoteAddr: address}), address)
	}
}
