package console

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// TestInputsStandWithTheirObject: forms show which of several fields of one name is whose, and fold away what need not
// be filled in.
func TestInputsStandWithTheirObject(t *testing.T) {
	t.Parallel()
	op := operations()["whatIf"]
	groups := func(values map[string]string) (out []fieldGroup) {
		fields := op.fields()
		for i, f := range fields {
			fields[i].Value = values[f.Name]
		}
		return grouped(fields)
	}
	legends, n := map[string]bool{}, 0
	for i, g := range groups(nil) {
		assertTrue(t, !legends[g.Legend], "%s twice", g.Legend)
		legends[g.Legend] = true
		assertTrue(t, (g.Name == "") == (i == 0), "%q is not in its place", g.Name)
		assertTrue(t, g.Folded == g.Optional, "%s is folded, or not", g.Legend)
		names := map[string]bool{}
		for _, f := range g.Fields {
			assertTrue(t, !names[words(f.Name)], "%s has two fields %s", g.Legend, words(f.Name))
			names[words(f.Name)] = true
			n++
		}
	}
	assertTrue(t, n == len(op.fields()), "%d of %d fields", n, len(op.fields()))
	assertTrue(t, legends["change"] && legends["change: add server"] && legends["request"], "%v", legends)
	for _, g := range groups(map[string]string{"request.region": "eu"}) {
		assertTrue(t, g.Folded == (g.Optional && g.Name != "request"), "%s: filled-in fields are shown", g.Legend)
	}
}

// TestRequiredObjectsAreSent although nothing is in them: an API that wants one is asked with it.
func TestRequiredObjectsAreSent(t *testing.T) {
	t.Parallel()
	o, err := operations()["whatIf"].content(url.Values{"f.tenant_id": {"t-1"}})
	assertTrue(t, err == nil, "%v", err)
	_, there := o["change"].(map[string]any)
	assertTrue(t, there && o["request"] == nil, "%v", o)
}

// TestFormsAreForPeople: sizes have units, the required inputs come first, defaults are shown, and headers are not
// explained.
func TestFormsAreForPeople(t *testing.T) {
	t.Parallel()
	for kind, texts := range map[string]map[string]string{
		"disk":     {"20 GB": "20000000000", "1.5 GiB": "1610612736", "7": "7"},
		"memory":   {"4G": "4294967296", "512 MiB": "536870912"},
		"duration": {"90": "90", "30m": "1800", "1h30m": "5400"},
	} {
		f := field{Name: "size_bytes", Kind: kind}
		for text, want := range texts {
			v, err := f.parse(text)
			assertTrue(t, err == nil && v == json.Number(want), "%s: %v %v", text, v, err)
		}
		_, err := f.parse("many")
		assertTrue(t, err != nil, "no size")
		for _, n := range []json.Number{"20000000000", "4294967296", "4294967297", "1"} { // none is another after a change of something else
			again, err := f.parse(f.written(n))
			assertTrue(t, err == nil && again == n, "%s is %s, and then %s", n, f.written(n), again)
		}
		assertTrue(t, kind != "disk" || f.written(json.Number("20000000000")) == "20 GB", "%s", f.written(json.Number("20000000000")))
	}
	for n, want := range map[int64]string{0: "0s", 90: "1m30s", 1800: "30m", 7200: "2h", 5400: "1h30m", 3601: "1h0m1s"} {
		assertTrue(t, secondsText(n) == want, "%d is %s", n, secondsText(n))
	}
	for name, kind := range map[string]string{"createVolume": "disk", "createGroup": "memory", "drainServer": "duration"} {
		assertTrue(t, slices.ContainsFunc(operations()[name].fields(), func(f field) bool { return f.Kind == kind }), "%s has a %s", name, kind)
	}
	fields := operations()["createTenant"].fields()
	var first []string
	for _, f := range required(fields) {
		first = append(first, f.Name)
	}
	assertTrue(t, slices.Equal(first, []string{"org_id", "plan", "region", "slug"}), "%v", first)
	rest := optional(grouped(fields)[0].Fields)
	assertTrue(t, rest.Folded && len(rest.Fields) > 5, "%v", rest)
	few := []field{{Name: "a", Required: true}, {Name: "b"}}
	assertTrue(t, len(required(few)) == 2 && len(optional(few).Fields) == 0, "a short form hides nothing")
	for _, p := range explained(operations()["createTenant"].Description) {
		assertTrue(t, !strings.Contains(p, "Idempotency-Key"), "%s", p)
	}
	for name, want := range map[string]string{
		"org_id": "orgs", "to_server_id": "servers", "spec.fleet_id": "fleets", "slug": "", "backup_id": "", "infra_provider": "providers",
	} {
		l := listingOf(name)
		assertTrue(t, l == nil && want == "" || l != nil && l.Page == want, "%s is chosen from %v", name, l)
	}
}
