package console

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

// answerOf is the schema of an operation's answer.
func answerOf(t *testing.T, op *operation) *openapi3.Schema {
	t.Helper()
	for status, r := range op.Responses.Map() {
		if m := r.Value.Content["application/json"]; m != nil && strings.HasPrefix(status, "2") {
			return m.Schema.Value
		}
	}
	return nil
}

// has reports whether a schema allows a path; an open schema allows any.
func has(s *openapi3.Schema, path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		for len(s.AllOf) == 1 {
			s = s.AllOf[0].Value
		}
		if len(s.Properties) == 0 {
			return s.Type.Is(openapi3.TypeObject)
		}
		p := s.Properties[name]
		if p == nil {
			return false
		}
		s = p.Value
	}
	return true
}

// TestPagesAreOfTheContract: each list and each page reads what the contract has, and shows
// fields that it has.
func TestPagesAreOfTheContract(t *testing.T) {
	t.Parallel()
	event := answerOf(t, reading("/v1/events")).Properties["events"].Value.Items.Value
	kinds, _ := event.Properties["kind"].Value.Extensions["x-kinds"].(map[string]any)
	listings, things := described()
	require.Len(t, listings, 57)
	require.Len(t, things, 39)
	for _, l := range listings {
		op := l.Op
		answer := answerOf(t, op)
		list := answer.Properties[l.Items]
		if !assertTrue(t, list != nil && list.Value.Items != nil, "%s: the answer has no list %s", l.Page, l.Items) {
			continue
		}
		item := list.Value.Items.Value
		for _, c := range columnsOf(l.Columns) {
			assertTrue(t, has(item, c.Field), "%s: rows have no %s; they have %v", l.Page, c.Field, properties(item))
		}
		for _, p := range placeholders.FindAllStringSubmatch(l.Row, -1) {
			assertTrue(t, has(item, p[1]) || strings.Contains(l.Page, p[0]), "%s: rows have no %s, which %s needs", l.Page, p[1], l.Row)
		}
		if l.Row != "" && l.Row != "{kind}s/{id}" {
			assertTrue(t, slices.ContainsFunc(things, func(th thing) bool { return sameForm(th.Page, l.Row) }), "%s leads to %s, which is no page", l.Page, l.Row)
		}
		for _, k := range names(l.Kinds) {
			assertTrue(t, kinds[k] != nil, "%s: no event has the kind %s", l.Page, k)
		}
		known(t, l.Page, l.Do)
	}
	for _, th := range things {
		answer := answerOf(t, th.Op)
		for _, f := range append(names(th.Facts), names(th.States)...) {
			assertTrue(t, has(answer, f), "%s has no %s; it has %v", th.Page, f, properties(answer))
		}
		for _, p := range th.Parts {
			if p.Field == "" {
				if p.List != "" && !slices.ContainsFunc(listings, func(l listing) bool { return l.Page == p.List }) {
					path, query, _ := strings.Cut(p.List, "?")
					op := reading("/v1/" + path)
					assertTrue(t, op != nil, "%s shows %s, which is not in the contract", th.Page, p.List)
					for _, name := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' }) {
						name, _, _ = strings.Cut(name, "=")
						assertTrue(t, op != nil && op.parameter(name) != nil, "%s asks %s with %s, which is not in the contract", th.Page, p.List, name)
					}
				}
				continue
			}
			assertTrue(t, has(answer, p.Field), "%s has no %s", th.Page, p.Field)
			if f := answer.Properties[p.Field]; f != nil && f.Value.Items != nil && p.Columns != "" {
				for _, c := range columnsOf(p.Columns) {
					assertTrue(t, has(f.Value.Items.Value, c.Field), "%s: %s has no %s; it has %v", th.Page, p.Field, c.Field, properties(f.Value.Items.Value))
				}
			}
		}
		known(t, th.Page, th.Do)
	}
	for id, op := range operations() {
		for condition := range strings.SplitSeq(op.button().When, ",") {
			field, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(condition), "!"), "=")
			shown := slices.ContainsFunc(things, func(th thing) bool { return slices.Contains(names(th.Do), id) && has(answerOf(t, th.Op), field) })
			assertTrue(t, field == "" || shown, "%s depends on %s, which no page that offers it has", id, field)
		}
	}
	for _, g := range navigation("") {
		for _, i := range g.Items {
			path := strings.TrimPrefix(strings.TrimPrefix(i.Href, "/console"), "/")
			assertTrue(t, path == "" || path == "map" || path == "costs" || slices.ContainsFunc(listings, func(l listing) bool { return l.Page == path }), "the navigation leads to %s, which is no page", i.Href)
		}
	}
}

// known reports operations that the contract does not have.
func known(t *testing.T, page, do string) {
	t.Helper()
	for _, id := range names(do) {
		op := operations()[id]
		assertTrue(t, op != nil && op.Method != http.MethodGet, "%s offers %s, which changes nothing", page, id)
	}
}

// sameForm compares paths ignoring the names of their parameters.
func sameForm(a, b string) bool {
	return placeholders.ReplaceAllString(a, "{}") == placeholders.ReplaceAllString(b, "{}")
}

// TestWhatChangesThingsIsOffered: each operation of the contract that changes something has a
// button, or a reason not to have one.
func TestWhatChangesThingsIsOffered(t *testing.T) {
	t.Parallel()
	elsewhere := map[string]string{
		"createConsoleLogin": "is how one comes here", "simulatePlacements": "is what-if with whole fleets", "whatIf": "has a page", "replayDecision": "has a page",
		"planPacking": "has a page", "createRebalance": "is on the page of the plan", "createAgentRelease": "needs a signature, which is made where agents are built", "createRelease": "", "deleteTenantDomain": "is deleteDomain",
		"patchTenant": "is always refused", "endOwnCredential": "is logging out", "exchangeToken": "is for programs",
		"putTokenTrust": "waits for the page of service accounts", "deleteTokenTrust": "waits for the page of service accounts",
	}
	offered := map[string]bool{}
	listings, things := described()
	for _, l := range listings {
		for _, id := range names(l.Do) {
			offered[id] = true
		}
	}
	for _, th := range things {
		for _, id := range names(th.Do) {
			offered[id] = true
		}
	}
	for _, id := range names(general) {
		offered[id] = true
	}
	for id, op := range operations() {
		if _, ok := elsewhere[id]; op.Method != http.MethodGet && !ok {
			assertTrue(t, offered[id], "%s (%s) has no button anywhere", id, op.Summary)
		}
	}
}

func assertTrue(t *testing.T, ok bool, format string, args ...any) bool {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
	return ok
}

// TestARetryIsOfferedWhereItIsAccepted: not while anything is on the failed server.
func TestARetryIsOfferedWhereItIsAccepted(t *testing.T) {
	t.Parallel()
	ec := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder())
	ec.Set(visitorKey, operator)
	offers := func(o object) bool {
		buttons := (&Console{}).buttons(ec, "retryServer, cordonServer", map[string]string{"server_id": "app-1"}, o)
		require.NotEmpty(t, buttons)
		return slices.ContainsFunc(buttons, func(b button) bool { return strings.HasPrefix(b.Href, "/console/do/retryServer") })
	}
	require.True(t, offers(object{"status": "failed"}))
	require.False(t, offers(object{"status": "active"}))
	require.False(t, offers(object{"status": "failed", "holds": map[string]any{"tenants": 6.0, "instances": 0.0, "volumes": 0.0}}))
}

func TestValues(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1.5 GiB", size(1.5*(1<<30)))
	require.Equal(t, "it'\\''s", strings.Trim(quoted("it's"), "'"))
	require.Equal(t, "/console", localPath("//evil.example"))
	require.Equal(t, "/console", localPath("https://evil.example/console"))
	require.Equal(t, "/console/servers?a=b", localPath("/console/servers?a=b"))
	require.Equal(t, "/console/warm-pools/eu/starter", pageOf("warm_pool", "eu/starter"))
	require.Equal(t, "/console/servers/a%2Fb", pageOf("server", "a/b"))
	require.Empty(t, hrefOf("from", "10.0.0.1"))
	require.Equal(t, "/console/servers/app-1", hrefOf("moves.from_server_id", "app-1"))
}
