package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

func (r *runs) StartAddress(ctx context.Context, _, id string) error {
	return r.note(ctx, "address "+id)
}

func (r *runs) StartVolume(ctx context.Context, _, id string) error {
	return r.note(ctx, "volume "+id)
}

func (r *runs) StartSnapshot(ctx context.Context, _, id string) error {
	return r.note(ctx, "snapshot "+id)
}

func (r *runs) StartSnapshotErase(ctx context.Context, _, id string) error {
	return r.note(ctx, "erase "+id)
}

func (r *runs) StartRestore(ctx context.Context, _, id string) error {
	return r.note(ctx, "restore "+id)
}

func (r *runs) StartVolumeRestore(ctx context.Context, _, id string) error {
	return r.note(ctx, "volume restore "+id)
}

func (r *runs) StartMove(ctx context.Context, _, id string) error {
	return r.note(ctx, "move "+id)
}

func (r *runs) CancelMove(ctx context.Context, id prego.MoveID) error {
	return r.note(ctx, "cancel move "+string(id))
}

// workload makes an org of the largest tier with an env and a process group.
func (b *bundle) workload(org, name, region string) (env, group string) {
	b.t.Helper()
	b.org(org, "")
	env, group = "env-"+name, "grp-"+name
	b.sql(`UPDATE orgs SET tier = 'enterprise' WHERE org_id = $1`, org)
	b.sql(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ($1, $2, $1, 'a')`, "app-"+name, org)
	b.sql(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ($1, $2, $3, 'prod', $4, 'a')`, env, "app-"+name, org, region)
	b.sql(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
		VALUES ($1, $2, $3, $4, 'web', '{}', 1, 0, 1, 'a')`, group, env, org, region)
	return env, group
}

func (b *bundle) limit(org, dimension string, value float64) {
	b.t.Helper()
	b.sql(`INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ($1, $2, $3, 'a')
		ON CONFLICT (org_id, dimension) DO UPDATE SET limit_value = EXCLUDED.limit_value`, org, dimension, value)
}

// beyond expects a refusal by quota.
func (b *bundle) beyond(method, path, body, dimension string) {
	b.t.Helper()
	p := as[api.Problem](b.t, b.ok(409, method, path, body))
	require.Equal(b.t, []string{"quota_exceeded", dimension}, []string{p.Code, deref(p.Dimension)})
}

func routeBody(group, host, protocol string, port int) string {
	if host != "" {
		host = `"hostname":"` + host + `",`
	}
	return fmt.Sprintf(`{"group_id":%q,%s"listener":"shared_v6","listen_port":%d,"protocol":%q,"target_port":8080}`, group, host, port, protocol)
}

func TestRoutesCountNamesPortsAndThemselves(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	env, group := b.workload("acme", "a", "eu")
	path := "/v1/envs/" + env + "/routes"
	b.limit("acme", "max_routes", 4)
	b.limit("acme", "max_public_ports", 2)
	b.limit("acme", "max_hostnames", 2)
	first := as[api.Route](t, b.ok(201, "POST", path, routeBody(group, "WWW.Example.com", "https", 443)))
	require.Equal(t, "www.example.com", deref(first.Hostname))
	b.ok(201, "POST", path, routeBody(group, "www.example.com", "http", 80)) // the name is counted
	b.ok(201, "POST", path, routeBody(group, "b.example.com", "http", 80))   // the port is counted
	b.verified("www.example.com")                                            // names count once they are the org's
	b.verified("b.example.com")
	b.beyond("POST", path, routeBody(group, "c.example.com", "http", 80), "max_hostnames")
	b.beyond("POST", path, routeBody(group, "", "tcp", 5432), "max_public_ports")
	b.limit("acme", "max_public_ports", 3)
	b.ok(201, "POST", path, routeBody(group, "", "tcp", 5432))
	b.beyond("POST", path, routeBody(group, "b.example.com", "http", 8080), "max_routes")

	var ids []string
	for next := path + "?limit=3"; next != ""; {
		page := as[api.RoutePage](t, b.ok(200, "GET", next, ""))
		for _, r := range page.Routes {
			ids = append(ids, r.RouteId)
		}
		next = ""
		if page.NextCursor != nil {
			next = path + "?limit=3&cursor=" + *page.NextCursor
		}
	}
	require.Len(t, ids, 4)
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), 4)
	b.ok(200, "GET", path+"/"+first.RouteId, "")
	b.ok(204, "DELETE", path+"/"+first.RouteId, "")
	b.ok(404, "DELETE", path+"/"+first.RouteId, "")
	b.ok(404, "GET", path+"/"+first.RouteId, "")
	b.ok(201, "POST", path, routeBody(group, "www.example.com", "https", 443)) // the name is free again
	var events int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM org_events WHERE org_id = 'acme' AND type IN ('route.create', 'route.delete') AND actor = 'operator'`).Scan(&events))
	require.Equal(t, 6, events)
}

func TestNamesAndPortsBelongToAllOrgsTogether(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	envA, groupA := b.workload("acme", "a", "eu")
	envB, groupB := b.workload("corp", "b", "eu")
	route := as[api.Route](t, b.ok(201, "POST", "/v1/envs/"+envA+"/routes", routeBody(groupA, "www.example.com", "https", 443)))
	require.NotNil(t, route.HostnameStatus)
	require.Equal(t, api.RouteHostnameStatusPending, *route.HostnameStatus)
	b.ok(201, "POST", "/v1/envs/"+envA+"/routes", routeBody(groupA, "", "tcp", 5432))
	b.verified("www.example.com")
	path := "/v1/envs/" + envB + "/routes"
	for body, want := range map[string][2]string{
		routeBody(groupB, "www.example.com", "https", 443): {"hostname_taken", "hostname"}, // the other org has verified it
		routeBody(groupB, "WWW.example.com", "http", 80):   {"hostname_taken", "hostname"},
		routeBody(groupB, "", "tcp", 5432):                 {"port_taken", "listen_port"},
		routeBody(groupB, "x.example.com", "http", 5432):   {"port_taken", "listen_port"},
		routeBody(groupB, "", "tcp", 443):                  {"port_taken", "listen_port"},
	} {
		p := as[api.Problem](t, b.ok(409, "POST", path, body))
		require.Equal(t, want, [2]string{p.Code, deref(p.Field)}, body)
	}
	for _, port := range []int{80, 443, 2376, 9443, 9444} {
		p := as[api.Problem](t, b.ok(409, "POST", path, routeBody(groupB, "", "tcp", port)))
		require.Equal(t, "port_taken", p.Code, "%d is no org's", port)
		require.Equal(t, "listen_port", deref(p.Field))
	}
	b.ok(409, "POST", path, routeBody(groupB, "y.example.com", "https", 2376))
	b.ok(201, "POST", path, routeBody(groupB, "y.example.com", "http", 80))
	p := as[api.Problem](t, b.ok(422, "POST", path, routeBody(groupA, "x.example.com", "http", 80)))
	require.Equal(t, "group_unknown", p.Code)
}

// TestTheTraefikDocumentIsThatOfWhatRuns: only healthy, running instances with the
// port serve, and the same routes are the same bytes.
func TestTheTraefikDocumentIsThatOfWhatRuns(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.reachable("app-1")
	env, group := b.workload("acme", "a", "eu")
	b.ok(201, "POST", "/v1/envs/"+env+"/routes", routeBody(group, "www.example.com", "http", 80))
	_, unproven := b.do("GET", "/internal/routes/traefik", "viewer", "", "")
	require.NotContains(t, string(unproven), "www.example.com", "a name is served once its org has verified it")
	b.verified("www.example.com")
	for i, state := range []string{"running", "booting", "draining", "running"} {
		b.sql(`INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state, healthy, ports)
			VALUES ($1, $2, 'acme', 'app-1', 1, '{}', 1, 1, 0, $3, $4, '[{"container_port": 8080, "host_port": 32768}]')`, fmt.Sprintf("ins-%d", i), group, state, i < 3)
	}
	b.sql(`INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state, healthy) VALUES ('ins-9', $1, 'acme', 'app-1', 1, '{}', 1, 1, 0, 'running', true)`, group)
	resp, doc := b.do("GET", "/internal/routes/traefik", "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, 1, strings.Count(string(doc), "http://192.0.2.7:32768"), "%s", doc)
	require.Equal(t, 1, strings.Count(string(doc), `"url"`), "%s", doc)
	etag := resp.Header.Get("ETag")
	resp, body := b.sendWith("GET", "/internal/routes/traefik", "", "If-None-Match", `"x", W/`+etag)
	require.Equal(t, 304, resp.StatusCode)
	require.Empty(t, body)
	b.sql(`UPDATE instances SET healthy = false`)
	resp, _ = b.sendWith("GET", "/internal/routes/traefik", "", "If-None-Match", etag)
	require.Equal(t, 200, resp.StatusCode)
	resp, _ = b.send("GET", "/internal/routes/traefik", "", "", "")
	require.Equal(t, 401, resp.StatusCode)
}

func TestAVolumeHasOneWriterInItsRegion(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	_, group := b.workload("acme", "a", "eu")
	_, far := b.workload("acme", "far", "us")
	_, foreign := b.workload("corp", "c", "eu")
	body := `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`
	v := as[api.Volume](t, b.ok(202, "POST", "/v1/volumes", body))
	require.Contains(t, b.runs.asked(), "volume "+v.VolumeId)
	path := "/v1/volumes/" + v.VolumeId
	attach := func(group string) string { return `{"group_id":"` + group + `","mount_path":"/data"}` }
	for group, want := range map[string][3]any{
		far: {422, "volume_region_mismatch", "group_id"}, foreign: {422, "group_unknown", "group_id"}, "grp-nope": {422, "group_unknown", "group_id"},
	} {
		p := as[api.Problem](t, b.ok(want[0].(int), "POST", path+"/attachments", attach(group)))
		got := []any{p.Code, deref(p.Field)}
		require.Equal(t, want[1:], got)
	}
	b.sql(`UPDATE process_groups SET replicas = 2 WHERE group_id = $1`, group)
	p := as[api.Problem](t, b.ok(409, "POST", path+"/attachments", attach(group)))
	require.Equal(t, []string{"single_writer", "group_id"}, []string{p.Code, deref(p.Field)})
	b.sql(`UPDATE process_groups SET replicas = 1 WHERE group_id = $1`, group)
	b.limit("acme", "max_volume_attachments", 0)
	b.beyond("POST", path+"/attachments", attach(group), "max_volume_attachments")
	b.limit("acme", "max_volume_attachments", 1)
	at := as[api.VolumeAttachment](t, b.ok(201, "POST", path+"/attachments", attach(group)))
	p = as[api.Problem](t, b.ok(409, "POST", path+"/attachments", attach(group)))
	require.Equal(t, "volume_attached", p.Code)
	require.Equal(t, group, as[api.Volume](t, b.ok(200, "GET", path, "")).Attachment.GroupId)
	p = as[api.Problem](t, b.ok(409, "DELETE", path, ""))
	require.Equal(t, "volume_attached", p.Code)

	b.reachable("app-1")
	b.sql(`INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state) VALUES ('ins-1', $1, 'acme', 'app-1', 1, '{}', 1, 1, 0, 'draining')`, group)
	p = as[api.Problem](t, b.ok(409, "DELETE", path+"/attachments/"+at.AttachmentId, ""))
	require.Equal(t, "volume_in_use", p.Code)
	b.sql(`UPDATE instances SET state = 'stopped'`)
	b.sql(`UPDATE volume_attachments SET server_id = 'app-1'`)
	b.ok(204, "DELETE", path+"/attachments/"+at.AttachmentId, "")
	p = as[api.Problem](t, b.ok(409, "POST", path+"/attachments", attach(group)))
	require.Equal(t, "volume_in_use", p.Code, "it is still on the server")
	b.sql(`UPDATE volume_attachments SET server_id = NULL`)
	b.ok(202, "DELETE", path, "")
	b.ok(202, "DELETE", path, "")
	require.Len(t, as[api.VolumePage](t, b.ok(200, "GET", "/v1/volumes?org_id=acme", "")).Volumes, 1, "it counts until it is gone")
}

func TestBadInputOfResourcesIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	env, group := b.workload("acme", "a", "eu")
	b.org("corp", "")
	b.tenant(`{"slug":"a","org_id":"acme","region":"eu","plan":"starter"}`)
	routes := "/v1/envs/" + env + "/routes"
	b.ok(201, "POST", routes, routeBody(group, "www.example.com", "https", 443))
	v := as[api.Volume](t, b.ok(202, "POST", "/v1/volumes", `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`))
	route := routeBody(group, "x.example.com", "https", 443)
	volume := `{"org_id":"acme","region":"eu","name":"more","size_bytes":10000000000}`
	with := func(text, old, replaced string) string {
		require.Contains(t, text, old)
		return strings.Replace(text, old, replaced, 1)
	}
	attach := "/v1/volumes/" + v.VolumeId + "/attachments"
	attached := `{"group_id":"grp-a","mount_path":"/data"}`
	for name, tc := range map[string]struct {
		method, path, token, body string
		status                    int
		code, field               string
	}{
		"viewer creates a route":  {"POST", routes, "viewer", route, 403, "forbidden", ""},
		"viewer creates a volume": {"POST", "/v1/volumes", "viewer", volume, 403, "forbidden", ""},
		"viewer snapshots":        {"POST", "/v1/tenants/t-1/snapshots", "viewer", "", 403, "forbidden", ""},
		"unknown env":             {"POST", "/v1/envs/env-nope/routes", "operator", route, 404, "env_not_found", ""},
		"bad env":                 {"POST", "/v1/envs/Nope/routes", "operator", route, 422, "invalid_field", "env_id"},
		"list of unknown env":     {"GET", "/v1/envs/env-nope/routes", "viewer", "", 404, "env_not_found", ""},
		"unknown route":           {"GET", routes + "/rte-nope", "viewer", "", 404, "route_not_found", ""},
		"bad route":               {"DELETE", routes + "/x", "operator", "", 422, "invalid_field", "route_id"},
		"duplicate hostname":      {"POST", routes, "operator", routeBody(group, "www.example.com", "https", 443), 409, "hostname_taken", "hostname"},
		"port 0":                  {"POST", routes, "operator", with(route, `"listen_port":443`, `"listen_port":0`), 422, "invalid_field", "listen_port"},
		"port 65536":              {"POST", routes, "operator", with(route, `"listen_port":443`, `"listen_port":65536`), 422, "invalid_field", "listen_port"},
		"port negative":           {"POST", routes, "operator", with(route, `"listen_port":443`, `"listen_port":-1`), 422, "invalid_field", "listen_port"},
		"port overflows":          {"POST", routes, "operator", with(route, `"listen_port":443`, `"listen_port":99999999999999999999`), 422, "invalid_field", "listen_port"},
		"port a fraction":         {"POST", routes, "operator", with(route, `"listen_port":443`, `"listen_port":1.5`), 422, "invalid_field", "listen_port"},
		"target 65536":            {"POST", routes, "operator", with(route, `"target_port":8080`, `"target_port":65536`), 422, "invalid_field", "target_port"},
		"unknown group":           {"POST", routes, "operator", with(route, `grp-a`, `grp-z`), 422, "group_unknown", "group_id"},
		"bad group":               {"POST", routes, "operator", with(route, `grp-a`, `a`), 422, "invalid_field", "group_id"},
		"wildcard":                {"POST", routes, "operator", with(route, `x.example.com`, `*.example.com`), 422, "invalid_field", "hostname"},
		"one label":               {"POST", routes, "operator", with(route, `x.example.com`, `localhost`), 422, "invalid_field", "hostname"},
		"not ASCII":               {"POST", routes, "operator", with(route, `x.example.com`, `ü.example.com`), 422, "invalid_field", "hostname"},
		"an address":              {"POST", routes, "operator", with(route, `x.example.com`, `192.0.2.1`), 422, "invalid_field", "hostname"},
		"name with a rule":        {"POST", routes, "operator", with(route, "x.example.com", "x.com`) || Host(`y.com"), 422, "invalid_field", "hostname"},
		"label of 64":             {"POST", routes, "operator", with(route, `x.example.com`, strings.Repeat("a", 64)+`.com`), 422, "invalid_field", "hostname"},
		"tcp with a name":         {"POST", routes, "operator", with(route, `"https"`, `"tcp"`), 422, "invalid_field", "hostname"},
		"https without":           {"POST", routes, "operator", with(route, `"hostname":"x.example.com",`, ``), 422, "invalid_field", "hostname"},
		"udp":                     {"POST", routes, "operator", with(route, `"https"`, `"udp"`), 422, "invalid_field", "protocol"},
		"listener":                {"POST", routes, "operator", with(route, `shared_v6`, `any`), 422, "invalid_field", "listener"},
		"no ipv4":                 {"POST", routes, "operator", with(route, `shared_v6`, `env_v4`), 409, "ipv4_required", "listener"},
		"unknown member":          {"POST", routes, "operator", with(route, `{`, `{"tls":true,`), 400, "unknown_field", "tls"},
		"routes cursor":           {"GET", routes + "?cursor=x", "viewer", "", 422, "invalid_field", "cursor"},
		"routes limit":            {"GET", routes + "?limit=0", "viewer", "", 422, "invalid_field", "limit"},

		"no ipv4 to show":   {"GET", "/v1/envs/" + env + "/ipv4", "viewer", "", 404, "ipv4_not_found", ""},
		"no ipv4 to end":    {"DELETE", "/v1/envs/" + env + "/ipv4", "operator", "", 404, "ipv4_not_found", ""},
		"ipv4 of unknown":   {"POST", "/v1/envs/env-nope/ipv4", "operator", "", 404, "env_not_found", ""},
		"volume of 9 GB":    {"POST", "/v1/volumes", "operator", with(volume, `10000000000`, `9999999999`), 422, "invalid_field", "size_bytes"},
		"volume of nothing": {"POST", "/v1/volumes", "operator", with(volume, `,"size_bytes":10000000000`, ``), 422, "invalid_field", "size_bytes"},
		"volume negative":   {"POST", "/v1/volumes", "operator", with(volume, `10000000000`, `-1`), 422, "invalid_field", "size_bytes"},
		"volume too large":  {"POST", "/v1/volumes", "operator", with(volume, `10000000000`, `10000000000001`), 422, "invalid_field", "size_bytes"},
		"volume overflows":  {"POST", "/v1/volumes", "operator", with(volume, `10000000000`, `92233720368547758080`), 422, "invalid_field", "size_bytes"},
		"volume a fraction": {"POST", "/v1/volumes", "operator", with(volume, `10000000000`, `10000000000.5`), 422, "invalid_field", "size_bytes"},
		"name taken":        {"POST", "/v1/volumes", "operator", with(volume, `more`, `data`), 409, "volume_name_taken", "name"},
		"bad name":          {"POST", "/v1/volumes", "operator", with(volume, `more`, `More`), 422, "invalid_field", "name"},
		"unknown org":       {"POST", "/v1/volumes", "operator", with(volume, `acme`, `ghost`), 422, "org_unknown", "org_id"},
		"bad region":        {"POST", "/v1/volumes", "operator", with(volume, `"eu"`, `"mars"`), 422, "invalid_field", "region"},
		"location elsewhere": {
			"POST", "/v1/volumes", "operator", with(volume, `"region":"eu"`, `"region":"eu","location":"ash"`), 422, "invalid_field", "location",
		},
		"unknown volume":     {"GET", "/v1/volumes/vol-nope", "viewer", "", 404, "volume_not_found", ""},
		"bad volume":         {"GET", "/v1/volumes/nope", "viewer", "", 422, "invalid_field", "volume_id"},
		"volumes cursor":     {"GET", "/v1/volumes?cursor=x", "viewer", "", 422, "invalid_field", "cursor"},
		"mount a relative":   {"POST", attach, "operator", with(attached, `/data`, `data`), 422, "invalid_field", "mount_path"},
		"mount dots":         {"POST", attach, "operator", with(attached, `/data`, `/data/../etc`), 422, "invalid_field", "mount_path"},
		"mount etc":          {"POST", attach, "operator", with(attached, `/data`, `/etc`), 422, "invalid_field", "mount_path"},
		"attach unknown":     {"POST", "/v1/volumes/vol-nope/attachments", "operator", attached, 404, "volume_not_found", ""},
		"unknown attachment": {"DELETE", attach + "/vat-nope", "operator", "", 404, "attachment_not_found", ""},

		"snapshot of unknown":  {"POST", "/v1/tenants/t-nope/snapshots", "operator", "", 404, "tenant_not_found", ""},
		"snapshots of unknown": {"GET", "/v1/tenants/t-nope/snapshots", "viewer", "", 404, "tenant_not_found", ""},
		"snapshot cursor":      {"GET", "/v1/tenants/t-nope/snapshots?cursor=x", "viewer", "", 422, "invalid_field", "cursor"},
		"restore of unknown":   {"POST", "/v1/tenants/t-nope/restores", "operator", `{"snapshot_id":"snp-1"}`, 404, "tenant_not_found", ""},
		"restore nothing":      {"POST", "/v1/tenants/t-nope/restores", "operator", `{}`, 422, "invalid_field", "snapshot_id"},
		"unknown restore":      {"GET", "/v1/tenants/t-nope/restores/rst-1", "viewer", "", 404, "tenant_not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			contentType := js
			if tc.body == "" {
				contentType = ""
			}
			resp, body := b.do(tc.method, tc.path, tc.token, contentType, tc.body)
			p := as[api.Problem](t, body)
			require.Equal(t, []any{tc.status, tc.code, tc.field}, []any{resp.StatusCode, p.Code, deref(p.Field)}, "%s", body)
		})
	}
}

// withSite makes a tenant with a site on a server.
func (b *bundle) withSite(org, slug string) string {
	b.t.Helper()
	id := b.tenant(`{"slug":"` + slug + `","org_id":"` + org + `","region":"eu","plan":"starter"}`)
	b.sql(`UPDATE tenants SET state = 'active', site = slug || '.example.com' WHERE tenant_id = $1`, id)
	b.sql(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		VALUES ($1, 'app-1', 'db-1', 'redis-1', 's', 'd', 'hetzner', 'manual')`, id)
	return id
}

func TestSnapshotsAndRestoresAreAccepted(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.sql(`UPDATE orgs SET tier = 'enterprise'`)
	b.reachable("app-1")
	b.sql(`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ('db-1', 'app-1', 'eu', 10)`)
	b.sql(`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) VALUES ('redis-1', 'app-1', 'eu', 10)`)
	one, two := b.withSite("acme", "one"), b.withSite("acme", "two")
	of := "/v1/tenants/" + one
	b.limit("acme", "max_snapshots_per_volume", 1)
	s := as[api.Snapshot](t, b.ok(202, "POST", of+"/snapshots", ""))
	require.Contains(t, b.runs.asked(), "snapshot "+s.SnapshotId)
	b.beyond("POST", of+"/snapshots", "", "max_snapshots_per_volume")
	b.ok(202, "POST", "/v1/tenants/"+two+"/snapshots", "") // each tenant has its own
	p := as[api.Problem](t, b.ok(409, "DELETE", of+"/snapshots/"+s.SnapshotId, ""))
	require.Equal(t, "snapshot_not_ready", p.Code)

	restore := `{"snapshot_id":"` + s.SnapshotId + `"}`
	p = as[api.Problem](t, b.ok(409, "POST", of+"/restores", restore))
	require.Equal(t, []string{"snapshot_not_ready", "snapshot_id"}, []string{p.Code, deref(p.Field)})
	b.sql(`UPDATE snapshots SET status = 'succeeded', files = '["a"]'`)
	p = as[api.Problem](t, b.ok(422, "POST", "/v1/tenants/"+two+"/restores", restore))
	require.Equal(t, []string{"snapshot_unknown", "snapshot_id"}, []string{p.Code, deref(p.Field)})
	b.limit("acme", "max_restore_jobs", 1)
	j := as[api.RestoreJob](t, b.ok(202, "POST", of+"/restores", restore))
	require.Contains(t, b.runs.asked(), "restore "+j.JobId)
	p = as[api.Problem](t, b.ok(409, "POST", of+"/restores", restore))
	require.Equal(t, "restore_under_way", p.Code)
	p = as[api.Problem](t, b.ok(409, "DELETE", of+"/snapshots/"+s.SnapshotId, ""))
	require.Equal(t, "restore_under_way", p.Code)
	theirs := as[api.SnapshotPage](t, b.ok(200, "GET", "/v1/tenants/"+two+"/snapshots", "")).Snapshots[0].SnapshotId
	b.beyond("POST", "/v1/tenants/"+two+"/restores", `{"snapshot_id":"`+theirs+`"}`, "max_restore_jobs")
	b.sql(`UPDATE restore_jobs SET status = 'failed', message = 'why', finished_at = now()`)
	require.Equal(t, "why", deref(as[api.RestoreJob](t, b.ok(200, "GET", of+"/restores/"+j.JobId, "")).Message))
	require.Len(t, as[api.RestorePage](t, b.ok(200, "GET", of+"/restores", "")).Restores, 1)
	b.ok(404, "GET", "/v1/tenants/"+two+"/restores/"+j.JobId, "")
	b.ok(404, "GET", "/v1/tenants/"+two+"/snapshots/"+s.SnapshotId, "")

	b.sql(`UPDATE tenants SET state = 'suspended' WHERE tenant_id = $1`, one)
	p = as[api.Problem](t, b.ok(409, "POST", of+"/restores", restore))
	require.Equal(t, "invalid_transition", p.Code)
	b.ok(202, "POST", of+"/snapshots", "")
	require.Len(t, as[api.SnapshotPage](t, b.ok(200, "GET", of+"/snapshots?limit=1", "")).Snapshots, 1)
	b.ok(204, "DELETE", of+"/snapshots/"+s.SnapshotId, "")
	require.NotContains(t, b.runs.asked(), "erase "+s.SnapshotId, "it is kept")
	b.ok(200, "POST", of+"/snapshots/"+s.SnapshotId+"/undelete", "")
	b.sql(`UPDATE snapshots SET status = 'failed' WHERE status = 'succeeded'`)
	b.ok(204, "DELETE", of+"/snapshots/"+s.SnapshotId, "")
	require.Contains(t, b.runs.asked(), "erase "+s.SnapshotId)
	b.ok(404, "GET", of+"/snapshots/"+s.SnapshotId, "")
	p = as[api.Problem](t, b.ok(409, "POST", "/v1/tenants/"+b.tenant(`{"slug":"new","org_id":"acme","region":"eu","plan":"starter"}`)+"/snapshots", ""))
	require.Equal(t, "invalid_transition", p.Code)
}

func TestSessionsCountForTheTenantsOrg(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.sql(`UPDATE orgs SET tier = 'enterprise'`)
	b.reachable("app-1")
	id := b.tenant(`{"slug":"a","org_id":"acme","region":"eu","plan":"starter"}`)
	b.sql(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name,
		database_name, infra_provider, algorithm)
		VALUES ('` + id + `', 'app-1', 'd', 'r', 'a.example.com', 'tenant_a_db', 'hetzner', 'best_fit')`)
	b.limit("acme", "max_exec_sessions", 1)
	open := func() (n int) {
		require.NoError(t, b.pool.QueryRow(context.Background(), `SELECT count(*) FROM org_sessions WHERE closed_at IS NULL AND lease_until > now() AND actor IN ('operator', 'viewer')`).Scan(&n))
		return n
	}
	zero, begun, end := 0, make(chan struct{}), make(chan struct{})
	b.hosts.run = func(_ context.Context, _ server.Command, _ func(string, string)) (server.CommandOutcome, error) {
		begun <- struct{}{}
		<-end
		return server.CommandOutcome{ExitCode: &zero}, nil
	}
	exec, path := strings.Replace(listSites, "{", `{"tenant_id":"`+id+`",`, 1), "/v1/servers/app-1/exec"
	done := make(chan int)
	send := func(body string) {
		resp, _ := b.send("POST", path, "operator", js, body)
		done <- resp.StatusCode
	}
	go send(exec)
	<-begun
	require.Equal(t, 1, open())
	b.beyond("POST", path, exec, "max_exec_sessions") // nothing runs: begun would hang
	go send(listSites)                                // an operator's own counts for no org
	<-begun
	require.Equal(t, 1, open())
	close(end)
	require.Equal(t, []int{200, 200}, []int{<-done, <-done})
	require.Eventually(t, func() bool { return open() == 0 }, 5*time.Second, 10*time.Millisecond)
	b.sql(`UPDATE org_sessions SET closed_at = NULL, lease_until = now() - interval '1 s'`)
	b.limit("acme", "max_exec_sessions_per_hour", 1)
	b.beyond("POST", path, exec, "max_exec_sessions_per_hour") // that of the dead process counts for the hour alone

	p := as[api.Problem](t, b.ok(422, "POST", path, strings.Replace(exec, id, "t-nope", 1)))
	require.Equal(t, []string{"tenant_unknown", "tenant_id"}, []string{p.Code, deref(p.Field)})
	p = as[api.Problem](t, b.ok(422, "POST", path, strings.Replace(exec, id, "T", 1)))
	require.Equal(t, "tenant_id", deref(p.Field))

	seen := 0
	b.hosts.logs = func(_ context.Context, _ bool, line func(string) error) error {
		seen = open()
		return line("x")
	}
	logs := "/v1/servers/app-1/containers/redis/logs?tenant_id=" + id
	resp, _ := b.do("GET", logs, "operator", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, 1, seen)
	require.Eventually(t, func() bool { return open() == 0 }, 5*time.Second, 10*time.Millisecond)
	b.limit("acme", "max_log_streams", 0)
	b.beyond("GET", logs, "", "max_log_streams")
	resp, _ = b.do("GET", "/v1/servers/app-1/containers/redis/logs", "operator", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

// TestASessionCountsForItsOwner: the caller chooses neither the org that an exec or a log stream counts for, nor the
// site that a tenant's command reaches.
func TestASessionCountsForItsOwner(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.org("globex", "")
	b.sql(`UPDATE orgs SET tier = 'enterprise'`)
	for _, id := range []string{"app-1", "app-2", "node-1"} {
		b.reachable(id)
	}
	mine := b.tenant(`{"slug":"a","org_id":"acme","region":"eu","plan":"starter"}`)
	theirs := b.tenant(`{"slug":"b","org_id":"globex","region":"eu","plan":"starter"}`)
	for tenant, at := range map[string][]string{mine: {"app-1", "a.example.com"}, theirs: {"app-2", "b.example.com"}} {
		b.sql(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name,
			database_name, infra_provider, algorithm)
			VALUES ('` + tenant + `', '` + at[0] + `', 'd', 'r', '` + at[1] + `', 'tenant_x_db', 'hetzner', 'best_fit')`)
		b.sql(`UPDATE tenants SET site = '` + at[1] + `' WHERE tenant_id = '` + tenant + `'`)
	}
	b.sql(`UPDATE servers SET dedicated_for_tenant_id = '` + mine + `' WHERE server_id = 'node-1'`)
	zero := 0
	var ran []server.Command
	b.hosts.run = func(_ context.Context, c server.Command, _ func(string, string)) (server.CommandOutcome, error) {
		ran = append(ran, c)
		return server.CommandOutcome{ExitCode: &zero}, nil
	}
	exec := func(status int, on, tenant string, args ...string) []byte {
		t.Helper()
		body := map[string]any{"kind": "bench", "args": args}
		if tenant != "" {
			body["tenant_id"] = tenant
		}
		text, err := json.Marshal(body)
		require.NoError(t, err)
		resp, out := b.send("POST", "/v1/servers/"+on+"/exec", "operator", js, string(text))
		require.Equal(t, status, resp.StatusCode, "%s", out)
		return out
	}
	hour := func(org string) (n int) {
		require.NoError(t, b.pool.QueryRow(t.Context(),
			`SELECT count(*) FROM org_sessions WHERE kind = 'exec' AND org_id = $1`, org).Scan(&n))
		return n
	}
	apps := []string{"--site", "a.example.com", "list-apps"}
	exec(200, "app-1", "", apps...)
	exec(200, "app-1", mine, apps...)
	exec(200, "node-1", "", "list-sites")
	require.Equal(t, []int{3, 0}, []int{hour("acme"), hour("globex")})
	for _, c := range ran {
		require.Equal(t, prego.TenantID(mine), c.TenantID)
	}
	for on, args := range map[string][]string{"app-1": apps, "node-1": {"list-sites"}} {
		p := as[api.Problem](t, exec(422, on, theirs, args...))
		require.Equal(t, []string{"invalid_field", "tenant_id"}, []string{p.Code, deref(p.Field)})
	}
	p := as[api.Problem](t, exec(422, "app-1", theirs, "list-sites"))
	require.Equal(t, "tenant_id", deref(p.Field), "it has nothing there")
	exec(200, "app-2", theirs, "list-sites")
	exec(200, "app-2", "", "list-sites")
	require.Equal(t, []int{3, 1}, []int{hour("acme"), hour("globex")})
	require.Len(t, ran, 5)
	b.limit("acme", "max_exec_sessions_per_hour", 3)
	exec(409, "node-1", "", "list-sites")
	exec(409, "app-1", "", apps...)
	for _, args := range [][]string{
		{"set-config", "prego_tenant_id", theirs},
		{"set-config", "prego_plan", "x"},
		{"set-config", "db_name", "x"},
		{"configure", `{"prego_tenant_id":"` + theirs + `"}`},
	} {
		p := as[api.Problem](t, exec(422, "app-1", "", append([]string{"--site", "a.example.com"}, args...)...))
		require.Equal(t, []string{"invalid_field", "args"}, []string{p.Code, deref(p.Field)}, args)
	}

	b.hosts.logs = func(_ context.Context, _ bool, line func(string) error) error { return line("x") }
	logs := func(status int, on, query string) {
		t.Helper()
		resp, out := b.do("GET", "/v1/servers/"+on+"/containers/redis/logs"+query, "operator", "", "")
		require.Equal(t, status, resp.StatusCode, "%s", out)
	}
	logs(200, "node-1", "")
	logs(422, "node-1", "?tenant_id="+theirs)
	logs(422, "app-1", "?tenant_id="+theirs)
	b.limit("acme", "max_log_streams", 0)
	logs(409, "node-1", "")
	logs(409, "app-1", "?tenant_id="+mine)
	logs(200, "app-1", "")
}
