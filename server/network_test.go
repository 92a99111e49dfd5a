package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRangesOfNetworks(t *testing.T) {
	t.Parallel()
	for cidr, allowed := range map[string]struct{ real, simulated bool }{
		"10.64.0.0/10":   {true, true},
		"10.0.0.0/8":     {true, true},
		"192.168.7.0/24": {true, true},
		"127.16.0.0/16":  {false, true},
		"10.64.0.0/25":   {},
		"10.0.0.0/7":     {}, // half of it is public
		"172.16.0.0/11":  {},
		"203.0.113.0/24": {},
		"10.64.0.1/16":   {},
		"fd00::/8":       {},
		"10.64.0.0":      {},
		"":               {},
	} {
		_, err := NetworkRange(cidr, false)
		require.Equal(t, allowed.real, err == nil, "%s: %v", cidr, err)
		_, err = NetworkRange(cidr, true)
		require.Equal(t, allowed.simulated, err == nil, "%s in a simulator: %v", cidr, err)
	}
}

func TestZonesComeFromTheCatalogFirst(t *testing.T) {
	t.Parallel()
	unread := ProviderCatalog{}
	require.Equal(t, "us-east", unread.ZoneOf("ash"))
	require.Equal(t, "us-west", unread.ZoneOf("hil"))
	require.Empty(t, unread.ZoneOf("lon1"))
	read := ProviderCatalog{Locations: []OfferedLocation{{Name: "ash", NetworkZone: "us-north"}, {Name: "lon1", NetworkZone: "uk"}, {Name: "hil"}}}
	require.Equal(t, "us-north", read.ZoneOf("ash"))
	require.Equal(t, "uk", read.ZoneOf("lon1"))
	require.Equal(t, "us-west", read.ZoneOf("hil"), "the catalog lacks it")
	require.Equal(t, []string{"eu-central", "us-west"}, read.ZonesOf([]string{"fsn1", "nbg1", "hil", "fsn1", "nowhere"}))
	for region, locations := range DefaultCatalog().Locations {
		for _, l := range locations {
			require.NotEmpty(t, unread.ZoneOf(l), "%s in %s", l, region)
		}
	}
	all := []Candidate{{"cx43", "fsn1"}, {"ccx23", "ash"}, {"ccx23", "hil"}}
	require.Equal(t, all, unread.InZone(all, ""))
	require.Equal(t, []Candidate{{"ccx23", "hil"}}, unread.InZone(all, "us-west"))
	require.Empty(t, unread.InZone(all, "ap-southeast"))
	require.Len(t, all, 3)
}
