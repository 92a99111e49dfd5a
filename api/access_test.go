package api_test

import (
	"context"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/org"
	"github.com/prego/prego/tenant"
)

// stated is an operation with what the contract states of its access.
type stated struct {
	*openapi3.Operation
	method, path string
	capability   string
	orgOf        []string
	pathNames    []string
}

func (o stated) thing() string {
	thing, _, _ := strings.Cut(o.capability, ":")
	return thing
}

func (o stated) verb() string {
	_, verb, _ := strings.Cut(o.capability, ":")
	return verb
}

func (o stated) on(source string) bool { return slices.Contains(o.orgOf, source) }

func (o stated) body() *openapi3.Schema {
	if o.RequestBody == nil {
		return &openapi3.Schema{}
	}
	return o.RequestBody.Value.Content["application/json"].Schema.Value
}

func (o stated) declares(status int, code string) bool {
	r := o.Responses.Status(status)
	return r != nil && r.Value.Content["application/problem+json"].Examples[code] != nil
}

// operations are those of the contract that need a token, by id.
func operations(t *testing.T) map[string]stated {
	t.Helper()
	out := map[string]stated{}
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			o := stated{Operation: op, method: method, path: path}
			o.capability, _ = op.Extensions["x-capability"].(string)
			switch x := op.Extensions["x-org-of"].(type) {
			case string:
				o.orgOf = []string{x}
			case []any:
				for _, source := range x {
					o.orgOf = append(o.orgOf, source.(string))
				}
			}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.In == openapi3.ParameterInPath {
					o.pathNames = append(o.pathNames, p.Value.Name)
				}
			}
			if slices.Contains([]string{"healthz", "readyz", "getLoginMethods", "exchangeToken"}, op.OperationID) {
				require.Empty(t, o.capability+strings.Join(o.orgOf, ""), "%s is open", op.OperationID)
				continue
			}
			out[op.OperationID] = o
		}
	}
	return out
}

// objectsOfOrgs are parameters of paths that name an object of an org.
var objectsOfOrgs = []string{
	"org_id", "tenant_id", "app_id", "env_id", "group_id", "instance_id", "volume_id", "domain_id", "certificate_id", "decision_id",
	"operation_id", "entry_id", "owner", "account_id", "token_id", "grant_id", "invitation_id", "limit_request_id",
}

// ofTheSame are fields of bodies that name an object which must be of the same tenant, env or org as the object in the
// path: the statement that looks it up compares that, and refuses another's as it refuses an absent one.
var ofTheSame = map[string][]string{
	"cloneTenant":         {"backup_id"},
	"createDrill":         {"backup_id"},
	"createRestore":       {"backup_id", "snapshot_id"},
	"createRoute":         {"group_id"},
	"attachVolume":        {"group_id"},
	"cloneVolume":         {"backup_id"},
	"createVolumeDrill":   {"backup_id"},
	"createVolumeRestore": {"backup_id"},
	"createGrant":         {"principal_id"},                              // of an org in reach, or with a grant there
	"createMove":          {"to_pool_id", "to_server_id", "to_shard_id"}, // the installation's; only operators move
}

// notForOwners are capabilities on objects of orgs that no access role of an org includes.
var notForOwners = []string{"move:cancel", "move:create", "org:create", "tenant:resume", "tenant:suspend"}

// TestEveryOperationStatesItsAccess: what it requires, and how the orgs of its objects are found. What an operation
// does, what its path and body name, and who may do it must agree.
func TestEveryOperationStatesItsAccess(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[a-z][a-z0-9_]*:[a-z]+$`)
	ofOrgs := append(slices.Clone(access.OfOrgs), "org", "quota", "cost", "audit", "service_account", "token", "access", "invitation", "limit_request")
	owner, developer, viewer, support := builtIn(t, "org_owner"), builtIn(t, "developer"), builtIn(t, "org_viewer"), builtIn(t, "support")
	things, closed, handlers, callers := map[string]bool{}, map[string]bool{}, []string{}, []string{}
	for id, o := range operations(t) {
		if o.on("caller") {
			callers = append(callers, id)
			require.Empty(t, o.capability, id)
			continue
		}
		require.Regexp(t, form, o.capability, id)
		reads := o.method == http.MethodGet || o.Extensions["x-changes"] == "nothing"
		require.Equal(t, reads, slices.Contains([]string{"read", "logs"}, o.verb()), "%s requires %s", id, o.capability)
		require.NotEmpty(t, o.orgOf, id)
		require.True(t, o.declares(http.StatusForbidden, "forbidden"), id)

		installation := slices.Equal(o.orgOf, []string{"installation"})
		switch {
		case installation:
			require.True(t, !slices.Contains(ofOrgs, o.thing()) || slices.Contains([]string{"quota:override", "limit_request:decide"}, o.capability),
				"%s requires %s on the installation", id, o.capability)
		case slices.Equal(o.orgOf, []string{"reach"}):
			require.True(t, reads && len(o.pathNames) == 0, "%s is no list", id)
		case slices.Equal(o.orgOf, []string{"handler"}):
			handlers = append(handlers, id)
		default:
			for _, source := range o.orgOf {
				field, inBody := strings.CutPrefix(source, "body.")
				if inBody {
					require.True(t, o.body().Properties[field] != nil && strings.HasSuffix(field, "org_id"), "%s has no %s", id, source)
					require.True(t, o.declares(http.StatusUnprocessableEntity, "org_unknown"), id)
					continue
				}
				require.True(t, slices.Contains(o.pathNames, source) && slices.Contains(objectsOfOrgs, source), "%s has no %s", id, source)
			}
			for _, name := range o.pathNames {
				require.True(t, o.on(name) || !slices.Contains(objectsOfOrgs, name), "%s does not check its %s", id, name)
			}
			var unchecked []string
			for field := range o.body().Properties {
				if strings.HasSuffix(field, "_id") && !o.on("body."+field) {
					unchecked = append(unchecked, field)
				}
			}
			slices.Sort(unchecked)
			require.Equal(t, ofTheSame[id], unchecked, "%s does not check these", id)
		}
		c := access.Capability(o.capability)
		if installation {
			closed[o.capability] = true
		} else {
			things[o.thing()] = true
			require.Contains(t, ofOrgs, o.thing(), id)
		}
		require.Equal(t, !installation && !slices.Contains(notForOwners, o.capability), owner.Includes(c), "%s of owners", o.capability)
		require.Equal(t, o.verb() == "read", support.Includes(c), "%s of support", o.capability)
		require.True(t, !developer.Includes(c) || owner.Includes(c), "%s of developers", o.capability)
		require.True(t, !viewer.Includes(c) || developer.Includes(c) && o.verb() == "read", "%s of viewers", o.capability)
	}
	require.Equal(t, []string{"putOrg"}, handlers)
	require.ElementsMatch(t, []string{
		"whoami", "createConsoleLogin", "narrowToken", "listTokens", "getToken", "revokeToken", "listLogins", "endLogin", "endOwnCredential",
	}, callers)
	for _, thing := range ofOrgs {
		require.True(t, things[thing], "no operation is about a %s of an org", thing)
	}
	require.Greater(t, len(closed), 80)
}

func builtIn(t *testing.T, name string) access.Role {
	t.Helper()
	r, ok := access.BuiltIn(name)
	require.True(t, ok, name)
	return r
}

// TestAccessRolesNameWhatExists, so that a misspelt capability does not look like a rule.
func TestAccessRolesNameWhatExists(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"progress:share": true, "login:read": true, "token:read": true}
	for _, o := range operations(t) {
		known[o.capability], known[o.thing()+":*"], known[o.thing()+":read"] = true, true, true
	}
	for _, r := range access.Roles() {
		for _, pattern := range slices.Concat(r.Patterns, r.Except, r.Above) {
			thing, _, _ := strings.Cut(pattern, ":")
			require.True(t, known[pattern] || thing == "*", "%s of %s", pattern, r.Name)
		}
	}
}

// TestProvisionerMayDoWhatASignUpFormNeeds and nothing else.
func TestProvisionerMayDoWhatASignUpFormNeeds(t *testing.T) {
	t.Parallel()
	var may []string
	for id, o := range operations(t) {
		if o.capability != "" && builtIn(t, "provisioner").Includes(access.Capability(o.capability)) {
			may = append(may, id)
		}
	}
	require.ElementsMatch(t, []string{
		"putOrg", "getOrg", "listOrgs", "listOrgQuotas", "getOrgQuota", "getBackupSpace", "createTenant", "getTenant", "listTenants",
		"createDomain", "createTenantDomain", "getDomain", "listDomains", "listTenantDomains", "getOperation", "getTenantProgress", "listProgress", "listEvents", "listOrgEvents",
	}, may)
}

// twoOrgs has two orgs and one below the first, with an object of each kind in each.
func twoOrgs(t *testing.T) *bundle {
	t.Helper()
	b := setup(t, nil)
	b.org("acme", "")
	b.org("other", "")
	b.org("child", "acme")
	for n, org := range []string{"acme", "other", "child"} {
		name := string("abd"[n])
		rows := `
SET LOCAL session_replication_role = replica;
INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
VALUES ('t-X', 'slug-X', 'ORG', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'x');
INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-X', 'ORG', 'X', 'x');
INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-X', 'app-X', 'ORG', 'X', 'eu', 'x');
INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
VALUES ('grp-X', 'env-X', 'ORG', 'eu', 'X', '{}', 1, 1, 0, 'x');
INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, state)
VALUES ('ins-X', 'grp-X', 'ORG', 'app-1', 1, 1, 1, 1, '{}', 'running');
INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by)
VALUES ('vol-X', 'ORG', 'eu', 'fsn1', 'X', 10000000000, 'hetzner', 'X', 'ready', 'x');
INSERT INTO domains (domain_id, org_id, name, token, sought_until, created_by) VALUES ('dom-X', 'ORG', 'X.example', '', now(), 'x');
INSERT INTO certificates (certificate_id, names, challenge, org_id, created_by) VALUES ('crt-X', '{X.example}', 'http-01', 'ORG', 'x');
INSERT INTO allocation_snapshots (snapshot_id, tenant_id, outcome, algorithm, decision_log, policy_json)
OVERRIDING SYSTEM VALUE VALUES (9000N, 't-X', 'placed', 'x', '{"selection_reason":"n-t-b-g1 scored 0.9","rejected":[{"id":"n-t-b-g1","reason":"memory_pct"}]}', '{}');
INSERT INTO audit_entries (entry_id, actor, role, kind, id, org_id, verb)
OVERRIDING SYSTEM VALUE VALUES (9000N, 'x', 'operator', 'x', 'x', 'ORG', 'request');
INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by) VALUES ('snp-X', 'ORG', 't-X', 'queued', 'app-1', 'x', 'x');
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by) VALUES ('bak-X', 'ORG', 't-X', 'app-1', 'x', 'manual', 'x');
INSERT INTO restore_jobs (job_id, org_id, tenant_id, status, backup_id, created_by) VALUES ('rst-X', 'ORG', 't-X', 'queued', 'bak-X', 'x');
INSERT INTO volume_restores (restore_id, org_id, volume_id, backup_id, created_by) VALUES ('vrs-X', 'ORG', 'vol-X', 'bak-X', 'x');
INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name, from_server_id)
VALUES ('mov-X', 'ORG', 't-X', 1, 'x', 'x', 'x', 'app-1');
INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, name, location, status, created_by)
VALUES ('ip4-X', 'ORG', 'env-X', 'hetzner', 'X', 'fsn1', 'ready', 'x');
INSERT INTO principals (principal_id, kind, name, org_id, created_by) VALUES ('sa-X', 'service_account', 'X', 'ORG', 'x');
INSERT INTO access_grants (grant_id, principal_id, access_role, org_id, created_by) VALUES ('grant-X', 'sa-X', 'developer', 'ORG', 'x');
INSERT INTO credentials (credential_id, kind, hash, prefix, principal_id, name, created_by, expires_at)
VALUES ('token-X', 'token', sha256('X'), 'prego_token_X', 'sa-X', 'X', 'x', now() + interval '1 hour');
INSERT INTO registries (org_id, host, username, sealed, key_id, created_by, updated_by) VALUES ('ORG', 'r.X.example', 'slug-X', '', 'k', 'x', 'x');
INSERT INTO login_links (link_id, kind, hash, access_role, org_id, created_by, expires_at)
VALUES ('lnk-X', 'join', sha256('X'), 'developer', 'ORG', 'x', now() + interval '1 hour');
INSERT INTO limit_requests (limit_request_id, org_id, dimension, old_limit, requested_limit, reason, created_by)
VALUES ('lreq-X', 'ORG', 'max_apps', 25, 40, 'reason-of-X', 'x')`
		b.sql(strings.NewReplacer("ORG", org, "X", name, "9000N", "9000"+string("124"[n])).Replace(rows))
	}
	b.sql(`INSERT INTO certificates (certificate_id, names, challenge, created_by) VALUES ('crt-p', '{sites.test}', 'http-01', 'x')`)
	return b
}

// named are values of a path's parameters: of the caller's org, of another org, and of none.
var named = map[string][][3]string{
	"org_id":         {{"acme", "other", "none"}},
	"tenant_id":      {{"t-a", "t-b", "t-c"}},
	"app_id":         {{"app-a", "app-b", "app-c"}},
	"env_id":         {{"env-a", "env-b", "env-c"}},
	"group_id":       {{"grp-a", "grp-b", "grp-c"}},
	"instance_id":    {{"ins-a", "ins-b", "ins-c"}},
	"volume_id":      {{"vol-a", "vol-b", "vol-c"}},
	"domain_id":      {{"dom-a", "dom-b", "dom-c"}},
	"host":           {{"r.a.example", "r.b.example", "r.c.example"}},
	"certificate_id": {{"crt-a", "crt-b", "crt-c"}, {"crt-a", "crt-p", "crt-c"}},
	"decision_id":    {{"90001", "90002", "90003"}},
	"invitation_id":  {{"lnk-a", "lnk-b", "lnk-c"}},

	"limit_request_id": {{"lreq-a", "lreq-b", "lreq-c"}},
	"entry_id":         {{"90001", "90002", "90003"}, {"90001", "90002", "99999999999999999999"}},
	"account_id":       {{"sa-a", "sa-b", "sa-c"}, {"sa-a", "viewer", "sa-c"}},
	"token_id":         {{"token-a", "token-b", "token-c"}},
	"grant_id":         {{"grant-a", "grant-b", "grant-c"}},
	"owner":            {{"t-a", "t-b", "t-c"}, {"org:acme", "org:other", "org:none"}, {"vol-a", "vol-b", "vol-c"}},
	"operation_id": {
		{"tenant-provision%2Ft-a", "tenant-provision%2Ft-b", "tenant-provision%2Ft-c"},
		{"tenant-change%2Ft-a", "tenant-change%2Ft-b", "tenant-change%2Ft-c"},
		{"tenant-move%2Fmov-a", "tenant-move%2Fmov-b", "tenant-move%2Fmov-c"},
		{"certificate%2Fcrt-a", "certificate%2Fcrt-b", "certificate%2Fcrt-c"},
		{"snapshot%2Fsnp-a", "snapshot%2Fsnp-b", "snapshot%2Fsnp-c"},
		{"snapshot-erase%2Fsnp-a", "snapshot-erase%2Fsnp-b", "snapshot-erase%2Fsnp-c"},
		{"backup%2Fbak-a", "backup%2Fbak-b", "backup%2Fbak-c"},
		{"backup-delete%2Fbak-a", "backup-delete%2Fbak-b", "backup-delete%2Fbak-c"},
		{"restore%2Frst-a", "restore%2Frst-b", "restore%2Frst-c"},
		{"volume-restore%2Fvrs-a", "volume-restore%2Fvrs-b", "volume-restore%2Fvrs-c"},
		{"address%2Fip4-a", "address%2Fip4-b", "address%2Fip4-c"},
		{"volume%2Fvol-a", "volume%2Fvol-b", "volume%2Fvol-c"},
		{"group-reconcile%2Fgrp-a", "group-reconcile%2Fgrp-b", "group-reconcile%2Fgrp-c"},
		{"tenant-provision%2Ft-a", "server-provision%2Fapp-1", "nonsense%2Fx"},
	},
}

// TestObjectsOutOfReachAreAnsweredLikeAbsentOnes by every operation that names one in its path, with the error that
// the operation has for an absent one.
func TestObjectsOutOfReachAreAnsweredLikeAbsentOnes(t *testing.T) {
	t.Parallel()
	b := twoOrgs(t)
	mine := access.Reach{Orgs: []prego.OrgID{"acme"}}
	at := func(o stated, name, value string) *http.Request {
		path := o.path
		for _, p := range o.pathNames {
			v := "x"
			if p == name {
				v = value
			} else if n := named[p]; n != nil {
				v = n[0][0]
			}
			path = strings.ReplaceAll(path, "{"+p+"}", v)
		}
		return request(t, b.srv.URL, o.method, path, "operator", "", "")
	}
	compared := 0
	for id, o := range operations(t) {
		for _, source := range o.orgOf {
			for _, ids := range named[source] {
				own, foreign, absent := at(o, source, ids[0]), at(o, source, ids[1]), at(o, source, ids[2])
				require.NoError(t, b.api.InReach(own, "", mine), "%s %s", id, ids[0])
				require.NoError(t, b.api.InReach(foreign, "", access.Reach{Everywhere: true}), id)
				theirs, none := b.api.InReach(foreign, "", mine), b.api.InReach(absent, "", mine)
				require.Error(t, theirs, "%s %s", id, ids[1])
				require.Error(t, none, "%s %s", id, ids[2])
				plain := func(i int, err error) string {
					name := strings.TrimPrefix(strings.ReplaceAll(ids[i], "%2F", "/"), "org:")
					return strings.ReplaceAll(err.Error(), name, "ID")
				}
				require.Equal(t, plain(2, none), plain(1, theirs), id)
				require.True(t, o.declares(http.StatusNotFound, string(prego.CodeOf(none))), "%s does not declare %s", id, none)
				if o.method != http.MethodGet {
					continue
				}
				_, answer := b.send(o.method, absent.URL.RequestURI(), "operator", "", "")
				if p := as[api.Problem](t, answer); p.Status == http.StatusNotFound {
					require.Equal(t, none.Error(), p.Code+": "+deref(p.Detail), id)
					compared++
				}
			}
		}
	}
	require.Greater(t, compared, 35)
	require.ElementsMatch(t, append([]string{"host"}, objectsOfOrgs...), slices.Collect(maps.Keys(named)), "a host has its org beside it")
}

// TestInstallationAndBodiesAreInReach: what belongs to no org requires a grant on the installation, and an org that a
// body names is unknown unless it is in reach.
func TestInstallationAndBodiesAreInReach(t *testing.T) {
	t.Parallel()
	b := twoOrgs(t)
	orgs := access.Reach{Orgs: []prego.OrgID{"acme"}}
	const unknown = "org_unknown: org_id is not an org that is known here"
	for _, tc := range []struct {
		method, path, body string
		reach              access.Reach
		refusal            string
	}{
		{"POST", "/v1/servers/app-1/drain", "", orgs, "forbidden: this requires the capability server:drain on the installation"},
		{"GET", "/v1/backup-policies/starter", "", orgs, "forbidden: this requires the capability backup_policy:read on the installation"},
		{"GET", "/v1/backup-policies/volumes", "", orgs, "forbidden: this requires the capability backup_policy:read on the installation"},
		{"PUT", "/v1/orgs/acme/quotas/max_apps", `{}`, orgs, "forbidden: this requires the capability quota:override on the installation"},
		{"PUT", "/v1/orgs/acme/backup-space", `{}`, orgs, "forbidden: this requires the capability quota:override on the installation"},
		{"POST", "/v1/servers/app-1/drain", "", access.Reach{Everywhere: true}, ""},
		{"GET", "/v1/tenants", "", orgs, ""},
		{"GET", "/v1/whoami", "", access.Reach{}, ""},
		{"PUT", "/v1/orgs/other", `{}`, orgs, ""}, // the handler decides
		{"POST", "/v1/tenants", `{"org_id":"acme"}`, orgs, ""},
		{"POST", "/v1/tenants", `{"org_id":"other"}`, orgs, unknown},
		{"POST", "/v1/tenants", `{"org_id":"none"}`, orgs, unknown},
		{"POST", "/v1/tenants", `{"org_id":"acme","parent_org_id":"other"}`, orgs, "org_unknown: parent_org_id is not an org that is known here"},
		{"POST", "/v1/tenants", `{"org_id":"acme","parent_org_id":"acme"}`, orgs, ""},
		{"POST", "/v1/apps", `{"org_id":"other"}`, orgs, unknown},
		{"POST", "/v1/volumes", `{"org_id":"other"}`, orgs, unknown},
		{"POST", "/v1/domains", `{"org_id":"other"}`, orgs, unknown},
		{"DELETE", "/v1/tenants/t-a/domains/dom-b", "", orgs, `domain_not_found: there is no domain "dom-b"`},
		{"DELETE", "/v1/tenants/t-b/domains/dom-a", "", orgs, `tenant_not_found: there is no tenant "t-b"`},
		// Encoded as handlers decode it, once.
		{"GET", "/v1/tenants/t%2Da", "", orgs, ""},
		{"GET", "/v1/tenants/t%2Db", "", orgs, `tenant_not_found: there is no tenant "t-b"`},
		{"GET", "/v1/tenants/t%252Da", "", orgs, `tenant_not_found: there is no tenant "t%2Da"`},
	} {
		err := b.api.InReach(request(t, b.srv.URL, tc.method, tc.path, "", "", ""), tc.body, tc.reach)
		if tc.refusal == "" {
			require.NoError(t, err, "%s %s %s", tc.method, tc.path, tc.body)
			continue
		}
		require.EqualError(t, err, tc.refusal, "%s %s %s", tc.method, tc.path, tc.body)
	}
}

// TestPutOrgRequiresWhatItChanges: an org is created below an org in reach; its tier is the installation's, and another
// parent needs the right to grant access on both.
func TestPutOrgRequiresWhatItChanges(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, id := range []string{"p1", "p2", "foreign"} {
		b.org(id, "")
	}
	b.org("below", "p1")
	b.org("theirs", "foreign")
	in := func(orgs ...prego.OrgID) access.Reach { return access.Reach{Orgs: orgs} }
	all := access.Reach{Everywhere: true}
	type reach map[access.Capability]access.Reach
	to := func(parent prego.OrgID) tenant.PutOrgRequest { return tenant.PutOrgRequest{ParentOrgID: &parent} }
	const seen = `forbidden: the id "theirs" belongs to an org that you may not see; choose another`
	for what, tc := range map[string]struct {
		id      prego.OrgID
		in      tenant.PutOrgRequest
		reach   reach
		refusal string
	}{
		"new":                   {"new", tenant.PutOrgRequest{}, reach{"org:create": all}, ""},
		"new, of a parent's":    {"new", tenant.PutOrgRequest{}, reach{"org:create": in("p1")}, "forbidden: this requires the capability org:create on the installation"},
		"new below":             {"new", to("p1"), reach{"org:create": in("p1")}, ""},
		"new below another":     {"new", to("foreign"), reach{"org:create": in("p1")}, "org_unknown: parent_org_id is not an org that is known here"},
		"new below none":        {"new", to("none"), reach{"org:create": in("p1")}, "org_unknown: parent_org_id is not an org that is known here"},
		"repeated":              {"below", to("p1"), reach{"org:create": all, "org:read": in("below")}, ""},
		"repeated by another":   {"theirs", to("foreign"), reach{"org:create": all, "org:read": in("below")}, seen},
		"id of another":         {"theirs", tenant.PutOrgRequest{}, reach{"org:create": all}, seen},
		"tier":                  {"below", tenant.PutOrgRequest{Tier: prego.TierPaid}, reach{"org:read": in("below"), "org:create": all}, "forbidden: another tier requires the capability org:change"},
		"tier by operators":     {"below", tenant.PutOrgRequest{Tier: prego.TierPaid}, reach{"org:read": all, "org:change": all}, ""},
		"same tier":             {"below", tenant.PutOrgRequest{Tier: prego.TierEnterprise}, reach{"org:read": in("below")}, ""},
		"parent":                {"below", to("p2"), reach{"org:read": in("below"), "access:grant": in("below", "p1", "p2")}, ""},
		"parent, old":           {"below", to("p2"), reach{"org:read": in("below"), "access:grant": in("below", "p2")}, "forbidden: another parent requires the capability access:grant on the present one"},
		"parent, new":           {"below", to("foreign"), reach{"org:read": in("below"), "access:grant": in("below", "p1")}, "org_unknown: parent_org_id is not an org that is known here"},
		"no parent":             {"below", to(""), reach{"org:read": in("below"), "access:grant": in("below", "p1")}, "forbidden: this requires the capability access:grant on the installation"},
		"a parent at last":      {"p2", to("p1"), reach{"org:read": in("p2"), "access:grant": in("p1", "p2")}, "forbidden: another parent requires the capability access:grant on the present one"},
		"a parent by operators": {"p2", to("p1"), reach{"org:read": all, "access:grant": all}, ""},
	} {
		may := api.MayPutOrg(func(c access.Capability) access.Reach { return tc.reach[c] }, tc.id, tc.in)
		err := b.store.Try(context.Background(), func(ctx context.Context) error {
			_, err := b.store.PutOrgIf(ctx, tc.id, tc.in, may, nil, "x")
			return err
		})
		if tc.refusal == "" {
			require.NoError(t, err, what)
			continue
		}
		require.EqualError(t, err, tc.refusal, what)
	}
	require.EqualError(t, api.MayPutOrg(func(access.Capability) access.Reach { return in("p1") }, "theirs", tenant.PutOrgRequest{})(&org.Org{OrgID: "theirs"}), seen)
}
