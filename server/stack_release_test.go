package server

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func TestReleasesAreValidated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*CreateStackReleaseRequest)
		field  string
	}{
		"no name":            {func(r *CreateStackReleaseRequest) { r.Name = "" }, "name"},
		"a name of a path":   {func(r *CreateStackReleaseRequest) { r.Name = "a/b" }, "name"},
		"no image":           {func(r *CreateStackReleaseRequest) { r.Image = "" }, "image"},
		"an option":          {func(r *CreateStackReleaseRequest) { r.Image = "--x" }, "image"},
		"an app with a dash": {func(r *CreateStackReleaseRequest) { r.Apps = map[string]string{"a-b": "1"} }, "apps"},
		"no version":         {func(r *CreateStackReleaseRequest) { r.Apps = map[string]string{"erpnext": ""} }, "apps"},
		"two of a name":      {func(r *CreateStackReleaseRequest) { r.Rings = []ReleaseRing{{Name: "a", Percent: 1}, {Name: "a"}} }, "rings.1.name"},
		"less than before": {func(r *CreateStackReleaseRequest) {
			r.Rings = []ReleaseRing{{Name: "a", Percent: 5}, {Name: "b", Percent: 5}}
		}, "rings.1.percent"},
		"tenants and percent": {func(r *CreateStackReleaseRequest) {
			r.Rings = []ReleaseRing{{Name: "a", Percent: 5, Tenants: []prego.TenantID{"t-1"}}}
		}, "rings.0.percent"},
		"the rest in between": {func(r *CreateStackReleaseRequest) { r.Rings = []ReleaseRing{{Name: "a"}, {Name: "b", Percent: 5}} }, "rings.0"},
		"soaks for a month": {func(r *CreateStackReleaseRequest) {
			r.Rings = []ReleaseRing{{Name: "a", Percent: 5, SoakSeconds: 30 * 86400}}
		}, "rings.0.soak_seconds"},
		"another is the rest": {func(r *CreateStackReleaseRequest) { r.Rings = []ReleaseRing{{Name: "rest", Percent: 5}} }, "rings"},
		"more rings than some": {func(r *CreateStackReleaseRequest) {
			for i := range 11 {
				r.Rings = append(r.Rings, ReleaseRing{Name: fmt.Sprint("r", i), Percent: i + 1})
			}
		}, "rings"},
	} {
		r := CreateStackReleaseRequest{Name: "15.80", Image: "frappe/erpnext:v15.80.0"}
		c.change(&r)
		var e *prego.Error
		require.ErrorAs(t, r.Validate(), &e, name)
		require.Equal(t, c.field, e.Field, name)
	}
	r := CreateStackReleaseRequest{Name: "15.80", Image: "registry.example.com:5000/a/b@sha256:" + strings.Repeat("0", 64), Rings: []ReleaseRing{{Name: "canary", Tenants: []prego.TenantID{"t-1"}}}}
	require.NoError(t, r.Validate())
	require.Equal(t, "rest", r.Rings[1].Name, "the rest comes last")
	r.Rings = nil
	require.NoError(t, r.Validate())
	require.Equal(t, DefaultRings(nil), r.Rings)
}

func TestRingsAreOfServers(t *testing.T) {
	t.Parallel()
	rings := []ReleaseRing{{Name: "canary", Tenants: []prego.TenantID{"t-7-1"}}, {Name: "early", Percent: 10}, {Name: "half", Percent: 50}, {Name: "rest"}}
	var servers []BenchServer
	for i := range 40 { // of 2 tenants each, except 10 without
		s := BenchServer{ServerID: prego.ServerID(fmt.Sprintf("app-%d", i))}
		for n := range 2 {
			if i < 30 {
				s.Tenants = append(s.Tenants, prego.TenantID(fmt.Sprintf("t-%d-%d", i, n)))
			}
		}
		servers = append(servers, s)
	}
	first := AssignRings("a", rings, servers)
	count := map[int]int{}
	for _, s := range servers {
		if len(s.Tenants) == 0 {
			require.Equal(t, 3, first[s.ServerID], "a server without tenants shows nothing")
		}
		count[first[s.ServerID]] += len(s.Tenants)
	}
	require.Equal(t, 0, first["app-7"])
	require.Equal(t, map[int]int{0: 2, 1: 4, 2: 24, 3: 30}, count, "10 % of 60 tenants with the canaries, then 50 %")
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	require.Equal(t, first, AssignRings("a", rings, servers), "in any order")
	require.NotEqual(t, first, AssignRings("b", rings, servers), "not always the same servers come first")
	few := AssignRings("a", DefaultRings(nil), []BenchServer{{ServerID: "one", Tenants: []prego.TenantID{"t"}}, {ServerID: "two", Tenants: []prego.TenantID{"u"}}})
	require.ElementsMatch(t, []int{0, 1}, []int{few["one"], few["two"]}, "a percentage takes at least one server")
}
