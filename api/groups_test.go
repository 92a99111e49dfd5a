package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// workloads makes an org on the free tier with an environment.
func (b *bundle) workloads() {
	b.t.Helper()
	for _, sql := range []string{
		`INSERT INTO orgs (org_id, created_by) VALUES ('acme', 'test')`,
		`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-1', 'acme', 'shop', 'test')`,
		`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'acme', 'live', 'eu', 'test')`,
	} {
		_, err := b.pool.Exec(context.Background(), sql)
		require.NoError(b.t, err)
	}
}

const (
	groups    = "/v1/envs/env-1/groups"
	plainSpec = `{"image":"web:1","memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[8080]}`
)

func TestProcessGroups(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.workloads()
	make := `{"name":"web","spec":` + plainSpec + `,"replicas":2}`
	resp, body := b.do("POST", groups, "operator", js, make)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	g := as[api.ProcessGroup](t, body)
	require.Equal(t, []string{"group " + g.GroupId + " of acme"}, b.runs.asked())
	require.Equal(t, "pending", g.Status)
	resp, body = b.do("POST", groups, "operator", js, make)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Equal(t, g.GroupId, as[api.ProcessGroup](t, body).GroupId, "the same request again meets it")
	one := "/v1/groups/" + g.GroupId
	for _, tc := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", groups, `{"name":"web","spec":` + plainSpec + `,"replicas":3}`, 409, "group_exists"},
		{"POST", groups, `{"name":"Web","spec":` + plainSpec + `}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"web"}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + strings.Replace(plainSpec, "67108864", "0", 1) + `}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + strings.Replace(plainSpec, "0.5", "-1", 1) + `}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + strings.Replace(plainSpec, "8080", "65536", 1) + `}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + strings.Replace(plainSpec, "8080", "80,80", 1) + `}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + strings.Replace(plainSpec, "web:1", "-rm", 1) + `}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + strings.Replace(plainSpec, `"ports"`, `"volumes":["../x"],"ports"`, 1) + `}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"replicas":10001}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"replicas":4}`, 409, "quota_exceeded"},
		{"POST", "/v1/envs/env-2/groups", `{"name":"a","spec":` + plainSpec + `}`, 404, "env_not_found"},
		{"POST", "/v1/envs/other/groups", `{"name":"a","spec":` + plainSpec + `}`, 422, "invalid_field"},
		{"GET", "/v1/envs/env-2/groups", "", 404, "env_not_found"},
		{"POST", one + "/scale", `{"replicas":10001}`, 422, "invalid_field"},
		{"POST", one + "/scale", `{"replicas":-1}`, 422, "invalid_field"},
		{"POST", one + "/scale", `{}`, 422, "invalid_field"},
		{"POST", one + "/scale", `{"replicas":6}`, 409, "quota_exceeded"},
		{"POST", one + "/deploys", `{"spec":{"image":"web:2","memory_limit_bytes":67108864,"cpu_request":0.5,"constraint":{"require":["gpu"]}}}`, 409, "constraint_immutable"},
		{"POST", one + "/deploys", `{"spec":{"image":"web:2","memory_limit_bytes":67108864,"cpu_request":0.5,"stack":"gpu"}}`, 409, "constraint_immutable"},
		{"POST", one + "/deploys", `{"spec":{"image":"web:2","memory_limit_bytes":8589934592,"cpu_request":0.5}}`, 409, "quota_exceeded"},
		{"POST", one + "/deploys", `{}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"rollout_policy":{"max_surge":0}}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"rollout_policy":{"max_surge":"0%","max_unavailable":0}}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"rollout_policy":{"max_surge":"101%"}}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"rollout_policy":{"max_surge":-1}}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"rollout_policy":{"max_failures":1001}}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"rollout_policy":{"progress_deadline_seconds":0}}`, 422, "invalid_field"},
		{"POST", groups, `{"name":"a","spec":` + plainSpec + `,"rollout_policy":{"surge":1}}`, 400, "unknown_field"},
		{"POST", one + "/deploys", `{"spec":` + plainSpec + `,"rollout_policy":{"max_surge":0}}`, 422, "invalid_field"},
		{"POST", one + "/rollback", `{"release":0}`, 422, "invalid_field"},
		{"POST", one + "/rollback", `{"release":9}`, 404, "release_not_found"},
		{"POST", one + "/rollback", ``, 404, "release_not_found"},
		{"POST", "/v1/groups/grp-00000000dead/rollback", `{}`, 404, "group_not_found"},
		{"POST", "/v1/groups/grp-00000000dead/restart", ``, 404, "group_not_found"},
		{"POST", "/v1/groups/grp-00000000dead/pause", ``, 404, "group_not_found"},
		{"GET", "/v1/groups/grp-00000000dead/rollouts", "", 404, "group_not_found"},
		{"GET", one + "/rollouts?outcome=good", "", 422, "invalid_field"},
		{"GET", "/v1/groups/grp-00000000dead", "", 404, "group_not_found"},
		{"GET", "/v1/groups/web", "", 422, "invalid_field"},
		{"POST", "/v1/groups/grp-00000000dead/scale", `{"replicas":1}`, 404, "group_not_found"},
		{"GET", "/v1/groups/grp-00000000dead/instances", "", 404, "group_not_found"},
		{"GET", one + "/instances?cursor=ins-00000000dead-1", "", 422, "invalid_field"},
		{"GET", "/v1/instances/ins-00000000dead-1", "", 404, "instance_not_found"},
		{"GET", "/v1/instances/ins-00000000dead-1/logs", "", 404, "instance_not_found"},
		{"GET", "/v1/instances/1", "", 422, "invalid_field"},
	} {
		resp, body := b.do(tc.method, tc.path, "operator", js, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s %s %s: %s", tc.method, tc.path, tc.body, body)
		require.Equal(t, tc.code, as[api.Problem](t, body).Code, "%s", body)
	}
	_, wrong := b.do("POST", groups, "operator", js, `{"name":"a","spec":`+plainSpec+`,"rollout_policy":{"max_surge":"101%","max_unavailable":-1}}`)
	for _, field := range []string{"max_surge", "max_unavailable"} {
		require.Contains(t, string(wrong), `"field":"rollout_policy.`+field+`","message":"must be a number of instances, 0 to 10000, or a percentage, \"0%\" to \"100%\""`)
	}
	resp, _ = b.do("POST", one+"/scale", "viewer", js, `{"replicas":1}`)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)

	resp, body = b.do("POST", one+"/scale", "operator", js, `{"replicas":5}`)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)
	// Above a limit that was lowered, scaling down is allowed all the same.
	_, err := b.pool.Exec(context.Background(), `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_instances', 1, 'test')`)
	require.NoError(t, err)
	resp, body = b.do("POST", one+"/scale", "operator", js, `{"replicas":4}`)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)
	resp, body = b.do("POST", one+"/deploys", "operator", js, `{"spec":`+strings.Replace(plainSpec, "web:1", "web:2", 1)+`}`)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)
	g = as[api.ProcessGroup](t, body)
	require.Equal(t, []any{2, "rolling", "web:2"}, []any{g.Release, g.DeployStatus, g.Spec.Image})

	resp, body = b.do("GET", groups+"?limit=1", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Len(t, as[api.GroupPage](t, body).Groups, 1)
	resp, body = b.do("GET", one+"/instances?all=true", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	resp, body = b.do("DELETE", one, "operator", "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s", body)
	resp, _ = b.do("GET", one, "viewer", "", "")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	// The name is free again.
	_, err = b.pool.Exec(context.Background(), `DELETE FROM org_quotas`)
	require.NoError(t, err)
	resp, body = b.do("POST", groups, "operator", js, make)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
}

// TestAGroupThatIsPointedToStays refuses to delete it.
func TestAGroupThatIsPointedToStays(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.workloads()
	_, body := b.do("POST", groups, "operator", js, `{"name":"web","spec":`+plainSpec+`}`)
	g := as[api.ProcessGroup](t, body)
	_, err := b.pool.Exec(context.Background(), `INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by)
		VALUES ('rte-1', 'acme', 'env-1', $1, 'shop.example.com', 'shared_v6', 443, 'https', 8080, 'test')`, g.GroupId)
	require.NoError(t, err)
	resp, body := b.do("DELETE", "/v1/groups/"+g.GroupId, "operator", "", "")
	require.Equal(t, http.StatusConflict, resp.StatusCode)
	require.Equal(t, "group_in_use", as[api.Problem](t, body).Code)
}

// TestFleetsOfferRoomToInstances sets what a fleet's servers offer.
func TestFleetsOfferRoomToInstances(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	resp, body := b.do("POST", "/v1/fleets", "operator", js, `{"fleet_id":"nodes","role":"app","infra_provider":"hetzner","region":"eu","workload_memory_bytes":8589934592,"workload_cpus":3.5}`)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	f := as[api.Fleet](t, body)
	require.Equal(t, []any{int64(8589934592), 3.5}, []any{f.WorkloadMemoryBytes, f.WorkloadCpus})
	resp, body = b.do("PATCH", "/v1/fleets/nodes", "operator", js, `{"workload_memory_bytes":0}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	f = as[api.Fleet](t, body)
	require.Equal(t, []any{int64(0), 3.5}, []any{f.WorkloadMemoryBytes, f.WorkloadCpus})
	resp, body = b.do("PATCH", "/v1/fleets/nodes", "operator", js, `{"workload_disk_bytes":1073741824,"serves_workloads":true}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	f = as[api.Fleet](t, body)
	require.Equal(t, []any{int64(1 << 30), true}, []any{f.WorkloadDiskBytes, f.ServesWorkloads})

	// What the machines have is known once the catalog is.
	require.NoError(t, b.store.SaveProviderCatalog(context.Background(), prego.ProviderHetzner, server.ProviderCatalog{ServerTypes: []server.OfferedType{{Name: "cx43", MemoryGB: 16, DiskGB: 160}}}))
	for _, req := range [][3]string{
		{"PATCH", "/v1/fleets/nodes", `{"workload_memory_bytes":16106127361}`},
		{"POST", "/v1/fleets", `{"fleet_id":"more","role":"app","infra_provider":"hetzner","region":"eu","workload_memory_bytes":16106127361}`},
	} {
		resp, body = b.do(req[0], req[1], "operator", js, req[2])
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s", body)
		p := as[api.Problem](t, body)
		require.Equal(t, []any{"invalid_field", "workload_memory_bytes"}, []any{p.Code, *p.Field})
		require.Contains(t, *p.Detail, "must be at most 15360 MiB: of the 16 GiB of cx43")
	}
	resp, body = b.do("PATCH", "/v1/fleets/nodes", "operator", js, `{"workload_memory_bytes":16106127360}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	for _, bad := range []string{`{"workload_memory_bytes":-1}`, `{"workload_disk_bytes":-1}`, `{"workload_cpus":-0.5}`, `{"workload_cpus":4097}`} {
		resp, _ = b.do("PATCH", "/v1/fleets/nodes", "operator", js, bad)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, bad)
	}
}

// TestRolloutsOfAGroup: how they are made, asked for again with the same key, and listed.
func TestRolloutsOfAGroup(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.workloads()
	resp, body := b.do("POST", groups, "operator", js, `{"name":"web","spec":`+plainSpec+`,"rollout_policy":{"max_surge":"25%","max_unavailable":1}}`)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	g := as[api.ProcessGroup](t, body)
	one := "/v1/groups/" + g.GroupId
	require.Contains(t, string(body), `"rollout_policy":{"max_surge":"25%","max_unavailable":1,"progress_deadline_seconds":600,"max_failures":2,"auto_rollback":true}`)
	deploy := func(image, more string) api.ProcessGroup {
		resp, body := b.do("POST", one+"/deploys", "operator", js, `{"spec":`+strings.Replace(plainSpec, "web:1", image, 1)+more+`}`)
		require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)
		return as[api.ProcessGroup](t, body)
	}
	same := deploy("web:1", `,"rollout_policy":{"auto_rollback":false}`)
	require.Equal(t, 1, same.Release, "another policy is no other release")
	require.False(t, same.RolloutPolicy.AutoRollback)
	require.Equal(t, "25%", same.RolloutPolicy.MaxSurge.String())
	require.Equal(t, 2, deploy("web:2", "").Release)

	for _, verb := range []struct {
		path    string
		release int
	}{{"/restart", 3}, {"/rollback", 1}, {"/restart", 4}} {
		b.sql(`UPDATE rollouts SET outcome = 'succeeded', ended_at = now() WHERE release = 1`)
		b.runs.asked()
		body := ""
		if verb.path == "/rollback" {
			body = `{"release":1}`
		}
		key := fmt.Sprint("key-of-", verb.release)
		resp, first := b.sendWith("POST", one+verb.path, body, "Idempotency-Key", key)
		require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", first)
		_, again := b.sendWith("POST", one+verb.path, body, "Idempotency-Key", key)
		require.JSONEq(t, string(first), string(again), verb.path)
		got := as[api.ProcessGroup](t, first)
		require.Equal(t, verb.release, got.Release)
		require.Equal(t, "rolling", got.DeployStatus)
		b.shown(*got.Operation)
	}
	for verb, paused := range map[string]bool{"/pause": true, "/resume": false} {
		resp, body := b.do("POST", one+verb, "operator", js, "")
		require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)
		require.Equal(t, paused, as[api.ProcessGroup](t, body).PausedAt != nil, verb)
	}
	resp, _ = b.do("POST", one+"/restart", "viewer", js, "")
	require.Equal(t, http.StatusForbidden, resp.StatusCode)

	resp, body = b.do("GET", one+"/rollouts?limit=2", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	page := as[api.RolloutPage](t, body)
	require.NotNil(t, page.NextCursor)
	require.Equal(t, []any{4, "restart", "under_way", "operator"}, []any{page.Rollouts[0].Release, page.Rollouts[0].Kind, page.Rollouts[0].Outcome, page.Rollouts[0].CreatedBy})
	require.Equal(t, page.Rollouts[0].SpecDigest, page.Rollouts[1].SpecDigest, "a restart runs the same")
	rest := as[api.RolloutPage](t, b.ok(200, "GET", one+"/rollouts?limit=9&cursor="+*page.NextCursor, ""))
	require.Len(t, rest.Rollouts, 3)
	only := as[api.RolloutPage](t, b.ok(200, "GET", one+"/rollouts?outcome=superseded", ""))
	require.Len(t, only.Rollouts, 2)
}
