package server_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

var catalogNow = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)

func date(y int, m time.Month, d int) *time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	return &t
}

// offered is a small catalog: cx43 is in stock in fsn1 only, cpx42 is deprecated, old
// is retired, arm1 is of another architecture, ccx23 is sold everywhere.
func offered() server.CatalogState {
	price := server.PeriodPrice{Hourly: server.Price{Net: "0.0256", Gross: "0.0305"}, Monthly: server.Price{Net: "15.9900", Gross: "19.0281"}}
	at := func(location string, available bool) server.OfferedAt {
		return server.OfferedAt{Location: location, Available: available, PeriodPrice: price}
	}
	going, gone := at("fsn1", true), at("fsn1", false)
	going.DeprecatedAt, going.UnavailableAfter = date(2026, 9, 1), date(2027, 1, 1)
	gone.DeprecatedAt, gone.UnavailableAfter = date(2026, 1, 1), date(2026, 6, 1)
	typ := func(name, arch string, at ...server.OfferedAt) server.OfferedType {
		return server.OfferedType{Name: name, Cores: 8, MemoryGB: 16, DiskGB: 160, CPU: "shared", Architecture: arch, At: at}
	}
	return server.CatalogState{Provider: prego.ProviderHetzner, RefreshedAt: catalogNow, ProviderCatalog: server.ProviderCatalog{
		Currency: "EUR", VATRate: "19.00",
		Locations: []server.OfferedLocation{{Name: "fsn1"}, {Name: "nbg1"}, {Name: "hel1"}, {Name: "ash"}, {Name: "sin"}},
		ServerTypes: []server.OfferedType{
			typ("cx43", "x86", at("fsn1", true), at("nbg1", false)), typ("cpx42", "x86", going), typ("old", "x86", gone), typ("arm1", "arm", at("fsn1", true)),
			typ("ccx23", "x86", at("fsn1", true), at("nbg1", true), at("hel1", true), at("ash", true), at("sin", true)),
		},
		Images:        []server.OfferedImage{{ID: "1", Name: "debian-12", Kind: "system", Architecture: "x86"}, {ID: "2", Name: "debian-13", Kind: "system", Architecture: "x86"}, {ID: "77", Kind: "snapshot", Architecture: "x86"}},
		IPv4:          map[string]server.PeriodPrice{"fsn1": {Hourly: server.Price{Net: "0.0008", Gross: "0.0010"}, Monthly: server.Price{Net: "0.5000", Gross: "0.5950"}}},
		VolumeGBMonth: server.Price{Net: "0.0440", Gross: "0.0524"}, ImageGBMonth: server.Price{Net: "0.0110", Gross: "0.0131"},
	}}
}

func candidates(types ...string) []server.Candidate {
	var out []server.Candidate
	for _, t := range types {
		for _, l := range []string{"fsn1", "nbg1"} {
			out = append(out, server.Candidate{ServerType: t, Location: l})
		}
	}
	return out
}

func TestUsableCandidates(t *testing.T) {
	t.Parallel()
	s := offered()
	usable, skipped := s.Usable(candidates("zz99", "cx43", "cpx42", "old", "arm1", "ccx23"), "debian-12", catalogNow)
	require.Equal(t, []server.Candidate{{"cx43", "fsn1"}, {"ccx23", "fsn1"}, {"ccx23", "nbg1"}, {"cx43", "nbg1"}}, usable, "offers out of stock come last")
	var why []string
	for _, x := range skipped {
		why = append(why, x.String())
	}
	require.Equal(t, []string{
		"zz99 in fsn1 is not a machine type of the provider", "zz99 in nbg1 is not a machine type of the provider",
		"cpx42 in nbg1 is not sold there", "old in fsn1 was retired on 2026-06-01", "old in nbg1 is not sold there",
		"arm1 in fsn1 is arm, without an image debian-12", "arm1 in nbg1 is not sold there", "cpx42 in fsn1 is deprecated",
	}, why)

	usable, skipped = s.Usable(candidates("cpx42"), "debian-12", catalogNow)
	require.Equal(t, []server.Candidate{{"cpx42", "fsn1"}}, usable, "a deprecated type is better than none")
	require.Len(t, skipped, 1)

	usable, skipped = s.Usable(candidates("cx43")[1:], "debian-12", catalogNow)
	require.Len(t, usable, 1, "stock comes back")
	require.Empty(t, skipped)

	usable, _ = s.Usable(candidates("old"), "debian-12", catalogNow)
	require.Empty(t, usable)

	usable, skipped = s.Usable(candidates("ccx23"), "newer-than-the-catalog", catalogNow)
	require.Len(t, usable, 2, "an image that the catalog does not know yet is the provider's to refuse")
	require.Empty(t, skipped)
}

func TestCheckSpec(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		region prego.Region
		spec   server.Spec
		code   prego.Code
		field  string
	}{
		"nothing pinned":            {prego.RegionEU, server.Spec{}, "", ""},
		"all pinned":                {prego.RegionEU, server.Spec{ServerType: "cx43", Location: "nbg1", Image: "debian-13"}, "", ""},
		"a snapshot by id":          {prego.RegionEU, server.Spec{Image: "77"}, "", ""},
		"deprecated":                {prego.RegionEU, server.Spec{ServerType: "cpx42"}, "", ""},
		"unknown type":              {prego.RegionEU, server.Spec{ServerType: "zz99"}, prego.CodeServerTypeUnknown, "spec.server_type"},
		"retired type":              {prego.RegionEU, server.Spec{ServerType: "old"}, prego.CodeServerTypeRetired, "spec.server_type"},
		"not sold in region":        {prego.RegionUS, server.Spec{ServerType: "cx43"}, prego.CodeServerTypeNotSold, "spec.server_type"},
		"not sold in location":      {prego.RegionEU, server.Spec{ServerType: "cx43", Location: "hel1"}, prego.CodeServerTypeNotSold, "spec.server_type"},
		"anywhere":                  {"", server.Spec{ServerType: "ccx23", Location: "sin"}, "", ""},
		"unknown location":          {prego.RegionEU, server.Spec{Location: "atl1"}, prego.CodeLocationUnknown, "spec.location"},
		"another region's":          {prego.RegionEU, server.Spec{Location: "ash"}, prego.CodeLocationNotInRegion, "spec.location"},
		"configured without effect": {prego.RegionUS, server.Spec{Location: "hil"}, prego.CodeLocationUnknown, "spec.location"},
		"unknown image":             {prego.RegionEU, server.Spec{Image: "debian-99"}, prego.CodeImageUnknown, "spec.image"},
		"image of another CPU":      {prego.RegionEU, server.Spec{ServerType: "arm1", Image: "debian-12"}, prego.CodeImageUnknown, "spec.image"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := offered().CheckSpec(server.DefaultCatalog(), c.region, c.spec, catalogNow)
			if c.code == "" {
				require.NoError(t, err)
				return
			}
			var coded *prego.Error
			require.True(t, errors.As(err, &coded), "%v", err)
			require.Equal(t, c.code, coded.Code)
			require.Equal(t, c.field, coded.Field)
		})
	}
	t.Run("before the provider ever answered", func(t *testing.T) {
		t.Parallel()
		var unknown server.CatalogState
		require.NoError(t, unknown.CheckSpec(server.DefaultCatalog(), prego.RegionEU, server.Spec{ServerType: "zz99", Location: "hel1", Image: "plan9"}, catalogNow))
		require.Equal(t, prego.CodeLocationNotInRegion, prego.CodeOf(unknown.CheckSpec(server.DefaultCatalog(), prego.RegionEU, server.Spec{Location: "ash"}, catalogNow)))
		require.Equal(t, prego.CodeLocationUnknown, prego.CodeOf(unknown.CheckSpec(server.DefaultCatalog(), prego.RegionEU, server.Spec{Location: "atl1"}, catalogNow)))
	})
}

func TestCatalogProblems(t *testing.T) {
	t.Parallel()
	c := server.DefaultCatalog()
	types := map[prego.Region][]string{"": {"ccx23", "zz99", "old", "cpx42"}}
	c.ServerTypes = map[prego.Role]map[prego.Region][]string{}
	for _, r := range prego.Roles() {
		c.ServerTypes[r] = types
	}
	c.Locations = map[prego.Region][]string{prego.RegionEU: {"fsn1"}, prego.RegionUS: {"ash", "hil"}}
	s := offered()
	s.Images[1].DeprecatedAt = date(2026, 11, 1)
	var got []string
	for _, p := range s.Problems(c, catalogNow) {
		got = append(got, p.String())
	}
	require.Equal(t, []string{
		"image debian-13 is deprecated since 2026-11-01",
		"server_type zz99 is not a machine type of the provider",
		"server_type old was retired in fsn1 on 2026-06-01", "server_type old can't be ordered anywhere in region eu",
		"server_type cpx42 is deprecated in fsn1 and ends on 2027-01-01",
		"location hil is not a location of the provider",
		"server_type old can't be ordered anywhere in region us", "server_type cpx42 can't be ordered anywhere in region us",
	}, got)
	require.Empty(t, server.CatalogState{}.Problems(c, catalogNow), "nothing is known, so nothing is wrong")
}

func TestServerCost(t *testing.T) {
	t.Parallel()
	cost, ok := offered().ServerCost("cx43", "fsn1", 100)
	require.True(t, ok)
	require.Equal(t, server.Price{Net: "20.8900", Gross: "24.8631"}, cost.Monthly, "15.99 + 0.50 + 100 × 0.044")
	require.Equal(t, server.Price{Net: "0.0324", Gross: "0.0387"}, cost.Hourly)
	require.Equal(t, []string{"cx43", "IPv4 address", "volume of 100 GB"}, cost.Parts)
	_, ok = offered().ServerCost("cx43", "hel1", 0)
	require.False(t, ok)
}
