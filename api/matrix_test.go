package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
)

// in are whose objects a request of the matrix names: the position in a value of objects.
const (
	own = iota
	child
	other
	absent
)

// objects is named with the org below.
func objects(name string) [4]string {
	if name == "org_id" {
		return [4]string{"acme", "child", "other", "none"}
	}
	of := named[name][0]
	below := strings.NewReplacer("t-a", "t-d", "app-a", "app-d", "env-a", "env-d", "grp-a", "grp-d", "ins-a", "ins-d", "vol-a", "vol-d", "dom-a", "dom-d",
		"crt-a", "crt-d", "r.a.example", "r.d.example", "90001", "90004", "lreq-a", "lreq-d").Replace(of[0])
	return [4]string{of[0], below, of[1], of[2]}
}

// asPrincipal asks the API in the name of a principal.
func (b *bundle) asPrincipal(p access.Principal, method, path, body string) (int, string) {
	var r io.Reader = http.NoBody
	if body != "" {
		r = strings.NewReader(body)
	}
	req := httptest.NewRequestWithContext(api.As(b.t.Context(), p), method, path, r)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

// onOrg is a principal with an access role on an org and those below it.
func onOrg(role string, orgs ...prego.OrgID) access.Principal {
	return access.Principal{
		PrincipalID: "sa-" + role, Kind: access.ServiceAccount, Name: role, Grants: []access.Grant{{GrantID: "g", Role: role, OrgID: orgs[0], Orgs: orgs}},
	}
}

// smallest is a small body of an operation, on an org.
func (o stated) smallest(org string) string {
	v := sample("", o.body())
	if fields, ok := v.(map[string]any); ok && o.body().Properties["org_id"] != nil {
		fields["org_id"] = org
	}
	text, _ := json.Marshal(v)
	return string(text)
}

// request is the path and a small body of an operation on objects: own, child, other or absent.
func (o stated) request(of int) (path, body string) {
	path = o.path
	for _, name := range o.pathNames {
		value := "x"
		if named[name] != nil {
			value = objects(name)[of]
		}
		path = strings.ReplaceAll(path, "{"+name+"}", value)
	}
	if o.RequestBody != nil {
		body = o.smallest(objects("org_id")[of])
	}
	return path, body
}

// masked is what differs from request to request.
var masked = regexp.MustCompile(`"(request_id|expires_at)": ?"[^"]*",?`)

// theirs are texts that only rows of the other org have.
var theirs = []string{"slug-b", "n-t-b", "b.example", `"t-b"`, `"app-b"`, `"env-b"`, `"grp-b"`, `"ins-b"`, `"vol-b"`, `"dom-b"`, `"crt-b"`, `"snp-b"`, `"bak-b"`, `"rst-b"`, `"mov-b"`, `"ip4-b"`, `"other"`, "reason-of-b"}

// rowsOfTheOther are all rows of the other org, as Postgres prints them.
func (b *bundle) rowsOfTheOther() (all []string) {
	rows, err := b.pool.Query(b.t.Context(), `
SELECT format('SELECT %L || t::text FROM %I t WHERE org_id = ''other'' ORDER BY 1', c.relname || ' ', c.relname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id' AND NOT a.attisdropped
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname NOT IN ('audit_entries', 'org_counters', 'org_usage_parts') ORDER BY 1`)
	require.NoError(b.t, err)
	var each []string
	for rows.Next() {
		var sql string
		require.NoError(b.t, rows.Scan(&sql))
		each = append(each, sql)
	}
	require.NoError(b.t, rows.Err())
	for _, sql := range each {
		rows, err := b.pool.Query(b.t.Context(), sql)
		require.NoError(b.t, err)
		for rows.Next() {
			var row string
			require.NoError(b.t, rows.Scan(&row))
			all = append(all, row)
		}
		require.NoError(b.t, rows.Err(), sql)
	}
	require.Greater(b.t, len(all), 15)
	return all
}

// TestEachRoleDoesWhatTheTableSays: all operations, asked by all access roles, of their own org, one below it, another
// one and none. What a role lacks is forbidden; what is another org's is answered as if it did not exist; no answer has
// anything of another org, and nothing of another org changes.
func TestEachRoleDoesWhatTheTableSays(t *testing.T) {
	t.Parallel()
	b := twoOrgs(t)
	before := b.rowsOfTheOther()
	asked := 0
	for _, role := range access.Roles() {
		if role.Name == "operator" || role.Name == "support" {
			continue // they are of the installation
		}
		p := onOrg(role.Name, "acme", "child")
		for id, o := range operations(t) {
			if o.on("handler") || o.on("caller") || o.Extensions["x-long"] == true {
				continue // putOrg has a test; what is about the caller needs no org; streams
			}
			sources := slices.DeleteFunc(slices.Clone(o.pathNames), func(name string) bool { return named[name] == nil })
			var answers [4]string
			for of := own; of <= absent; of++ {
				path, body := o.request(of)
				status, answer := b.asPrincipal(p, o.method, path, body)
				asked++
				what := role.Name + " " + id + " " + path
				if status == http.StatusInternalServerError {
					failed := b.logs.FilterFieldKey("error").All()
					t.Errorf("%s: %s: %v", what, answer, failed[len(failed)-1].ContextMap()["error"])
				}
				require.NotEqual(t, http.StatusUnauthorized, status, what)
				if of != other {
					for _, text := range theirs {
						require.NotContains(t, answer, text, what)
					}
				}
				may := o.capability == "" || role.Includes(access.Capability(o.capability))
				switch {
				case !may || o.on("installation"):
					require.Equal(t, http.StatusForbidden, status, "%s: %s", what, answer)
				case of == own, of == child && role.Above == nil:
					require.NotContains(t, answer, `"code":"forbidden"`, "%s: %s", what, answer)
				}
				for _, name := range sources {
					answer = strings.ReplaceAll(answer, strings.ReplaceAll(objects(name)[of], "%2F", "/"), "ID")
				}
				answers[of] = masked.ReplaceAllString(answer, "")
				if of == other && len(sources) > 0 && may && !o.on("installation") {
					require.GreaterOrEqual(t, status, 400, "%s: %s", what, answer)
				}
			}
			if len(sources) > 0 {
				require.Equal(t, answers[absent], answers[other], "%s %s", role.Name, id)
			}
		}
	}
	require.Greater(t, asked, 4000)
	require.Equal(t, before, b.rowsOfTheOther())
}

// TestCustomersDontDecideWhatIsTheInstallations: where a tenant is placed, and names with a meaning.
func TestCustomersDontDecideWhatIsTheInstallations(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	for field, value := range map[string]string{"reserved_slug": `true`, "constraint": `{"require":["fast"]}`, "stack": `"blue"`, "policy": `"one_tenant_one_server"`} {
		body := `{"slug":"kr","org_id":"acme","region":"eu","plan":"starter","` + field + `":` + value + `}`
		status, answer := b.asPrincipal(onOrg("org_owner", "acme"), "POST", "/v1/tenants", body)
		require.Equal(t, http.StatusForbidden, status, answer)
		require.Equal(t, field, deref(as[api.Problem](t, []byte(answer)).Field))
	}
	status, answer := b.asPrincipal(onOrg("org_owner", "acme"), "POST", "/v1/tenants", `{"slug":"kr","org_id":"acme","region":"eu","plan":"starter"}`)
	require.Equal(t, http.StatusAccepted, status, answer)
}

// TestPostgresAloneKeepsOrgsApart: with the API's check of objects removed, no read has anything of another org, and no
// request changes a row of it.
func TestPostgresAloneKeepsOrgsApart(t *testing.T) {
	t.Parallel()
	b := twoOrgs(t)
	b.api.Unchecked()
	before := b.rowsOfTheOther()
	p := onOrg("org_owner", "acme", "child")
	read, refused := 0, 0
	for id, o := range operations(t) {
		if o.on("handler") || o.on("caller") || o.on("installation") || o.Extensions["x-long"] == true {
			continue
		}
		path, body := o.request(other)
		status, answer := b.asPrincipal(p, o.method, path, body)
		if o.method == http.MethodGet {
			read++
			for name := range named { // an answer may have the id that was asked for
				answer = strings.ReplaceAll(answer, strings.ReplaceAll(objects(name)[other], "%2F", "/"), "")
			}
			for _, text := range []string{"slug-b", "n-t-b", "b.example"} {
				require.NotContains(t, answer, text, "%s %s", id, path)
			}
		} else if status >= http.StatusBadRequest {
			refused++
		}
	}
	require.Greater(t, read, 50)
	require.Greater(t, refused, 50)
	require.Equal(t, before, b.rowsOfTheOther())
}

// TestAHoleInThePoliciesIsNoticed by what the matrix looks for: decisions are filtered by nothing else.
func TestAHoleInThePoliciesIsNoticed(t *testing.T) {
	t.Parallel()
	b := twoOrgs(t)
	p := onOrg("org_owner", "acme", "child")
	_, answer := b.asPrincipal(p, http.MethodGet, "/v1/decisions", "")
	require.Contains(t, answer, `"t-a"`)
	require.NotContains(t, answer, `"t-b"`)
	b.sql(`ALTER TABLE tenants DISABLE ROW LEVEL SECURITY`)
	_, answer = b.asPrincipal(p, http.MethodGet, "/v1/decisions", "")
	require.Contains(t, answer, `"t-b"`)
}
