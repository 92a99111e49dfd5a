package console

import (
	"net/url"
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
