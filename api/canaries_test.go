package api_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// A canary is planted in every place of a secret, and in the names of another org. No answer that a viewer gets may have
// one.
const (
	canary  = "CANARY" // a multiple of three characters, so that base64 of what begins with it begins the same way
	foreign = "FOREIGN"
)

// sings returns how a text has a canary: as it is, in hexadecimal, or in base64 at any offset; "" if it has none.
func sings(text string) string {
	for how, form := range map[string]string{
		"plain": canary, "hex": hex.EncodeToString([]byte(canary)),
		"base64":                base64.StdEncoding.EncodeToString([]byte(canary)),
		"base64, shifted":       base64.StdEncoding.EncodeToString([]byte("x" + canary))[2:8],
		"base64, shifted twice": base64.StdEncoding.EncodeToString([]byte("xx" + canary))[3:8],
	} {
		if strings.Contains(text, form) || how == "hex" && strings.Contains(strings.ToLower(text), form) {
			return how
		}
	}
	return ""
}

// secretColumns are the columns that hold secrets, or what secrets could be guessed or recognized by.
var secretColumns = strings.Fields(`
	registries.sealed backups.sealed_identity certificates.sealed_key acme_accounts.sealed_key acme_orders.sealed_key
	credentials.hash login_links.hash passkeys.record passkeys.key_id passkey_ceremonies.hash passkey_ceremonies.session
	server_bootstrap_tokens.token_hash request_keys.body request_keys.request_hash tenants.request_hash servers.request_hash
	fleets.request_hash agent_command_audit.stdout_truncated agent_command_audit.stderr_truncated`)

// publicColumns are columns of bytes that hold no secret, and why.
var publicColumns = map[string]string{
	"servers.agent_key_sha256": "of a public key", "server_bootstrap_tokens.consumed_key": "of a public key",
	"boot_artifacts.sha256": "hosts check it", "boot_artifacts.content": "hosts run it", "server_peers.rule_sha256": "addresses",
	"agent_releases.document": "is published", "agent_releases.signature": "is published", "decision_inputs.body": "operators replay it",
	"edge_documents.digest": "of a document that no database has", "acme_orders.csr": "is public", "audit_chain.prev_hash": "is published",
	"audit_chain.hash": "is published", "audit_checkpoints.hash": "is published", "redo.unsaved": "no request reads it",
}

// columns are those of a kind in the schema, as table.column.
func (b *bundle) columns(where string) (out []string) {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `
SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped AND `+where+` ORDER BY 1`)
	require.NoError(b.t, err)
	for rows.Next() {
		var name string
		require.NoError(b.t, rows.Scan(&name))
		out = append(out, name)
	}
	require.NoError(b.t, rows.Err())
	return out
}

// plantSecrets puts a canary in each secret column, by statements whose triggers write the audit and the events, and in
// each secret that an operator may send or a host answers.
func (b *bundle) plantSecrets() {
	b.t.Helper()
	bytes, texts := b.columns(`a.atttypid = 'bytea'::regtype`), b.columns(`a.atttypid = 'text'::regtype`)
	for _, name := range bytes {
		_, public := publicColumns[name]
		require.NotEqual(b.t, public, slices.Contains(secretColumns, name), "%s must be a secret column or a public one", name)
	}
	b.reachable("app-1")
	line := canary + "-a-line-of-a-log"
	b.hosts.logs = func(_ context.Context, _ bool, out func(string) error) error { return out(line) }
	b.hosts.run = func(_ context.Context, _ server.Command, out func(stream, line string)) (server.CommandOutcome, error) {
		out("stdout", line)
		zero := 0
		return server.CommandOutcome{ExitCode: &zero, Stdout: line, Stderr: line}, nil
	}
	b.send("POST", "/v1/servers/app-1/exec", "operator", js, `{"kind":"bench","args":["version"]}`)
	b.ok(200, "PUT", "/v1/registries/registry.example", `{"username":"robot","password":"`+canary+`-password"}`)
	b.sql(`SET LOCAL session_replication_role = replica;
		INSERT INTO acme_accounts (account_id, directory, name, sealed_key, key_id) VALUES ('acc', 'https://a.example', 'x', '', 'k');
		INSERT INTO acme_orders (order_id, certificate_id, account_id, csr, sealed_key, key_id)
		VALUES ('ord', 'crt-a', 'acc', '', '', 'k');
		INSERT INTO passkeys (passkey_id, principal_id, key_id, record) VALUES ('pk', 'sa-a', '', '{}');
		INSERT INTO passkey_ceremonies (hash, purpose, session, expires_at)
		VALUES (sha256('x'), 'login', '{}', now() + interval '1 hour');
		INSERT INTO server_bootstrap_tokens (token_id, server_id, attempt, purpose, token_hash, expires_at)
		VALUES ('boot', 'app-1', 1, 'agent_bootstrap', sha256('x'), now() + interval '1 hour');
		INSERT INTO request_keys (subject, key, request_hash, status, body) VALUES ('sa-a', 'k', '', 201, '')`)
	b.ok(http.StatusCreated, "POST", "/v1/fleets", aFleet)
	for _, name := range secretColumns {
		table, column, _ := strings.Cut(name, ".")
		value := `convert_to(rpad('` + canary + `-' || row_number, 32, '.'), 'UTF8')` // a hash has 32 bytes, and is unique
		switch {
		case slices.Contains(texts, name):
			value = `'` + canary + `-` + name + `'`
		case !slices.Contains(bytes, name):
			value = `to_jsonb('` + canary + `-` + name + `'::text)`
		}
		b.sql(`UPDATE ` + table + ` t SET ` + column + ` = ` + value + `
FROM (SELECT ctid AS at, row_number() OVER () FROM ` + table + `) n WHERE t.ctid = n.at`)
		require.Positive(b.t, b.count(`SELECT count(*) FROM `+table+` WHERE `+column+` IS NOT NULL`), "nothing is planted in %s", name)
	}
}

// leaks are the answers that have what they must not.
type leaks struct {
	has   func(text string) string
	asked int
	found map[string]string // by caller and operation, an answer
}

func newLeaks(has func(string) string) *leaks { return &leaks{has: has, found: map[string]string{}} }

func (l *leaks) look(what, text string) {
	l.asked++
	if how := l.has(text); how != "" {
		l.found[what] = how + ": " + text[:min(len(text), 2000)]
	}
}

// sweep sends all operations as a caller, of its own objects and of another org's: reads as JSON and as CSV, and changes
// as dry runs; with real also the changes.
func (b *bundle) sweep(l *leaks, who string, p access.Principal, real bool) {
	b.t.Helper()
	b.sql(`INSERT INTO principals (principal_id, kind, name, created_by) VALUES ($1, 'service_account', 'sweep of ' || $1, 'test')
		ON CONFLICT DO NOTHING`, p.PrincipalID)
	all := operations(b.t)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		o := all[id]
		if o.Extensions["x-long"] == true && o.method == http.MethodGet {
			continue // a stream that does not end
		}
		for _, of := range []int{own, other} {
			path, body := o.request(of)
			path = strings.NewReplacer("/servers/x", "/servers/app-1", "/users/x", "/users/usr-x").Replace(path)
			accepts := []string{"application/json"}
			if r := o.Responses.Status(http.StatusOK); r != nil && r.Value.Content["text/csv"] != nil {
				accepts = append(accepts, "text/csv")
			}
			send := func(path string) {
				for _, accept := range accepts {
					l.look(who+" "+id, b.answerTo(p, o.method, path, body, accept))
				}
			}
			switch {
			case o.method == http.MethodGet:
				if real {
					continue
				}
				send(path)
				if o.listed() {
					send(path + "?all=true")
				}
			case real:
				send(path)
			case o.Extensions["x-dry-run"] == nil:
				send(path + "?dry_run=true")
			}
		}
	}
}

// listed reports whether an operation lists also what has ended.
func (o stated) listed() bool {
	return slices.ContainsFunc(o.Parameters, func(p *openapi3.ParameterRef) bool { return p.Value.Name == "all" })
}

// answerTo is all of an answer: status, header and body.
func (b *bundle) answerTo(p access.Principal, method, path, body, accept string) string {
	var in io.Reader = http.NoBody
	if body != "" {
		in = strings.NewReader(body)
	}
	ctx, cancel := context.WithTimeout(api.As(b.t.Context(), p), 10*time.Second)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, method, path, in)
	req.Header.Set("Accept", accept)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(w, req)
	if w.Code == http.StatusInternalServerError {
		failed := b.logs.FilterFieldKey("error").All()
		b.t.Errorf("%s %s: %v", method, path, failed[len(failed)-1].ContextMap()["error"])
	}
	return fmt.Sprintf("%d %v %s", w.Code, w.Header(), w.Body)
}

// viewers are the callers that see no secrets: access roles on the installation and on an org, and an operator's token
// that reveals nothing.
func viewers() map[string]access.Principal {
	out := map[string]access.Principal{}
	for _, role := range []string{"support", "auditor", "billing", "org_viewer", "provisioner"} {
		out[role] = granted("sa-"+role, role)
		out[role+" of an org"] = onOrg(role, "acme", "child")
	}
	p := granted("sa-limited", "operator")
	p.Caveats = []access.Caveats{{RevealsNothing: true}}
	out["reveals_nothing"] = p
	return out
}

// TestNoViewerSeesASecret in any answer, page, metric or log. What leaks on purpose is noticed.
func TestNoViewerSeesASecret(t *testing.T) {
	t.Parallel()
	b := &consoleBundle{bundle: twoOrgs(t)}
	b.withConsole(nil)
	b.plantSecrets()
	l := newLeaks(sings)
	for who, p := range viewers() {
		b.sweep(l, who, p, false)
		if who != "reveals_nothing" { // it may change what the others look at
			b.sweep(l, who, p, true)
		}
	}
	l.look("metrics", b.metrics())
	for _, entry := range b.logs.All() {
		l.look("log", fmt.Sprint(entry.Message, entry.ContextMap()))
	}
	for role, org := range map[string]string{"support": "", "auditor": "", "org_viewer": "acme", "provisioner": "acme"} {
		_, _, secret := b.account(strings.ReplaceAll(role, "_", "-"), org, role)
		b.crawl(l, role, b.login(secret))
	}
	require.Greater(t, l.asked, 3000)
	require.Empty(t, l.found)

	// Who may see logs and output does, and a leak is found: in a list, and on a page.
	b.sweep(l, "operator", granted("operator", "operator"), false)
	require.Equal(t, []string{"operator containerLogs", "operator listCommands"}, slices.Sorted(maps.Keys(l.found)))
	b.sql(`UPDATE registries SET username = '` + canary + `'`)
	b.sweep(l, "support", viewers()["support"], false)
	require.Contains(t, l.found, "support listRegistries")
	_, _, secret := b.account("crawler", "", "support")
	b.crawl(l, "page", b.login(secret))
	require.Contains(t, slices.Collect(maps.Keys(l.found)), "page /console/registries")
}

// TestNoCustomerSeesAnotherOrgsNames in any answer or page, whatever text of that org's rows has them.
func TestNoCustomerSeesAnotherOrgsNames(t *testing.T) {
	t.Parallel()
	b := &consoleBundle{bundle: twoOrgs(t)}
	b.withConsole(nil)
	b.reachable("app-1")
	b.hosts.logs = func(context.Context, bool, func(string) error) error { return nil }
	planted := b.plantForeign()
	require.Greater(t, planted, 80)
	l := newLeaks(func(text string) string {
		if at := strings.Index(text, foreign); at >= 0 {
			return text[max(0, at-60):min(len(text), at+60)]
		}
		return ""
	})
	for _, role := range access.Roles() {
		if role.Name != "operator" && role.Name != "support" {
			b.sweep(l, role.Name, onOrg(role.Name, "acme", "child"), false)
		}
	}
	narrowed := granted("sa-narrowed", "operator")
	narrowed.Caveats = []access.Caveats{{Orgs: []prego.OrgID{"acme"}}}
	b.sweep(l, "caveat", narrowed, false)
	for _, role := range []string{"org_owner", "org_viewer", "billing", "auditor"} {
		_, _, secret := b.account(strings.ReplaceAll(role, "_", "-"), "acme", role)
		b.crawl(l, role, b.login(secret))
	}
	for _, role := range access.Roles() {
		if role.Name != "operator" && role.Name != "support" {
			b.sweep(l, role.Name, onOrg(role.Name, "acme", "child"), true)
		}
	}
	require.Greater(t, l.asked, 3000)
	require.Empty(t, l.found)
	b.sweep(l, "operator", granted("operator", "operator"), false)
	require.Greater(t, len(l.found), 20, "who sees all orgs sees the names")
	clear(l.found)
	b.sql(`ALTER TABLE tenants DISABLE ROW LEVEL SECURITY`)
	b.sweep(l, "hole", onOrg("org_viewer", "acme", "child"), false)
	require.Contains(t, l.found, "hole listAllDecisions")
}

// plantForeign writes a canary to each text of the other org's rows that may be any text, and returns how many columns
// have it.
func (b *bundle) plantForeign() (planted int) {
	b.t.Helper()
	of := map[string]string{}
	for _, key := range []string{"volume_id", "tenant_id", "org_id"} { // the last one counts
		for _, name := range b.columns(`a.attname = '` + key + `'`) {
			table, _, _ := strings.Cut(name, ".")
			of[table] = key + ` IN (` + map[string]string{"org_id": `'other'`, "tenant_id": `'t-b'`, "volume_id": `'vol-b'`}[key] + `)`
		}
	}
	for _, name := range b.columns(`a.atttypid = 'text'::regtype
		AND a.attname !~ '_id$|^(state|status|kind|tier|verb|role|region|plan|policy|dimension|id)$'`) {
		table, column, _ := strings.Cut(name, ".")
		if where := of[table]; where != "" {
			// Where only some texts are allowed, they name nobody.
			tag, err := b.pool.Exec(b.t.Context(),
				`UPDATE `+table+` SET `+column+` = '`+foreign+`-`+table+`-`+column+`' WHERE `+where)
			if err == nil && tag.RowsAffected() > 0 {
				planted++
			}
		}
	}
	return planted
}

// entryPage is the page of an entry of the audit, which has hundreds alike.
var entryPage = regexp.MustCompile(`^(/console/audit/)\d+$`)

var pageLink = regexp.MustCompile(`(?:href|action|hx-get|src)="(/console[^"#]*)"`)

// crawl opens each page that is linked from another one.
func (b *consoleBundle) crawl(l *leaks, who string, v *browser) {
	b.t.Helper()
	todo, seen := []string{"/console"}, map[string]bool{}
	for n := 0; len(todo) > 0 && n < 400; n++ {
		at := todo[0]
		todo = todo[1:]
		p := v.get(at)
		require.Less(b.t, p.status, 500, "%s %s: %s", who, at, p.body)
		l.look(who+" "+at, p.body)
		if to := p.header.Get("Location"); strings.HasPrefix(to, "/console") {
			p.body += `href="` + to + `"`
		}
		for _, m := range pageLink.FindAllStringSubmatch(p.body, -1) {
			to := strings.ReplaceAll(m[1], "&amp;", "&")
			path, query, _ := strings.Cut(to, "?")
			key := entryPage.ReplaceAllString(path, "$1")
			switch {
			case strings.Contains(query, "tab="):
				key = to
			case strings.Contains(query, "cursor="):
				key += "?cursor"
			}
			if seen[key] || strings.Contains(path, "/static/") || strings.HasSuffix(path, "/stream") ||
				slices.Contains([]string{"/console/events", "/console/logout", "/console/login"}, path) {
				continue
			}
			seen[key] = true
			todo = append(todo, to)
		}
	}
	require.Greater(b.t, len(seen), 10, who)
}
