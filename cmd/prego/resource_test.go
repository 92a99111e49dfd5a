package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestTheVerbsOfResources(t *testing.T) {
	// Not parallel: the client reads the environment.
	var method, path, query, body string
	answer := "{}"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		method, path, query, body = r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(b)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("PREGO_API_URL", srv.URL)
	t.Setenv("PREGO_TOKEN", "t")
	run := func(make func() *cobra.Command, args ...string) string {
		t.Helper()
		cmd := make()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(args)
		require.NoError(t, cmd.Execute(), "%q", args)
		return out.String()
	}
	for _, tc := range []struct {
		make  func() *cobra.Command
		args  []string
		asks  string
		sends string
	}{
		{newRouteCommand, []string{"create", "env-a", "--group", "grp-a", "--host", "a.b", "--port", "80", "--protocol", "http", "--target", "8000"}, "POST /v1/envs/env-a/routes", `{"group_id":"grp-a","hostname":"a.b","listen_port":80,"listener":"shared_v6","protocol":"http","target_port":8000}`},
		{newRouteCommand, []string{"create", "env-a", "--group", "grp-a", "--listener", "env_v4", "--port", "25", "--protocol", "tcp"}, "POST /v1/envs/env-a/routes", `{"group_id":"grp-a","listen_port":25,"listener":"env_v4","protocol":"tcp","target_port":8080}`},
		{newRouteCommand, []string{"list", "env-a"}, "GET /v1/envs/env-a/routes", ""},
		{newRouteCommand, []string{"show", "env-a", "rte-1"}, "GET /v1/envs/env-a/routes/rte-1", ""},
		{newRouteCommand, []string{"delete", "env-a", "rte/1"}, "DELETE /v1/envs/env-a/routes/rte%2F1", ""},
		{newIPv4Command, []string{"enable", "env-a"}, "POST /v1/envs/env-a/ipv4", ""},
		{newIPv4Command, []string{"show", "env-a"}, "GET /v1/envs/env-a/ipv4", ""},
		{newIPv4Command, []string{"disable", "env-a"}, "DELETE /v1/envs/env-a/ipv4", ""},
		{newVolumeCommand, []string{"create", "acme", "data", "--gb", "20", "--region", "us"}, "POST /v1/volumes", `{"name":"data","org_id":"acme","region":"us","size_bytes":20000000000}`},
		{newVolumeCommand, []string{"list", "--org", "acme"}, "GET /v1/volumes", ""},
		{newVolumeCommand, []string{"show", "vol-1"}, "GET /v1/volumes/vol-1", ""},
		{newVolumeCommand, []string{"delete", "vol-1"}, "DELETE /v1/volumes/vol-1", ""},
		{newVolumeCommand, []string{"attach", "vol-1", "grp-a", "--mount", "/srv"}, "POST /v1/volumes/vol-1/attachments", `{"group_id":"grp-a","mount_path":"/srv"}`},
		{newVolumeCommand, []string{"detach", "vol-1", "vat-1"}, "DELETE /v1/volumes/vol-1/attachments/vat-1", ""},
		{newSnapshotCommand, []string{"create", "t-1"}, "POST /v1/tenants/t-1/snapshots", ""},
		{newSnapshotCommand, []string{"list", "t-1"}, "GET /v1/tenants/t-1/snapshots", ""},
		{newSnapshotCommand, []string{"show", "t-1", "snp-1"}, "GET /v1/tenants/t-1/snapshots/snp-1", ""},
		{newSnapshotCommand, []string{"delete", "t-1", "snp-1"}, "DELETE /v1/tenants/t-1/snapshots/snp-1", ""},
		{newRestoreCommand, []string{"create", "t-1", "snp-1"}, "POST /v1/tenants/t-1/restores", `{"snapshot_id":"snp-1"}`},
		{newRestoreCommand, []string{"list", "t-1"}, "GET /v1/tenants/t-1/restores", ""},
		{newRestoreCommand, []string{"show", "t-1", "rst-1"}, "GET /v1/tenants/t-1/restores/rst-1", ""},
	} {
		run(tc.make, tc.args...)
		require.Equal(t, tc.asks, method+" "+path, "%q", tc.args)
		if tc.sends == "" {
			require.Empty(t, body)
		} else {
			require.JSONEq(t, tc.sends, body)
		}
		if tc.args[0] == "list" && tc.args[1] == "--org" {
			require.Contains(t, query, "org_id=acme")
		}
	}

	reason, message := "ipam_exhausted", "no more"
	b, err := json.Marshal(api.IPv4{AllocationId: "ip4-1", EnvId: "env-a", Location: "fsn1", Status: "pending", Reason: &reason, Message: &message})
	require.NoError(t, err)
	answer = string(b)
	require.Equal(t, "address ip4-1 of env-a: - at fsn1, pending (ipam_exhausted): no more\n", run(newIPv4Command, "show", "env-a"))
	require.JSONEq(t, answer, run(newIPv4Command, "show", "env-a", "--output", "json"))
	b, err = json.Marshal(api.VolumePage{Volumes: []api.Volume{{VolumeId: "vol-1", OrgId: "acme", Name: "data", SizeBytes: 10_000_000_001, Location: "fsn1", Status: "ready", Attachment: &api.VolumeAttachment{GroupId: "grp-a"}}}})
	require.NoError(t, err)
	answer = string(b)
	require.Contains(t, run(newVolumeCommand, "list"), "vol-1   acme  data  11  fsn1      grp-a  ready")
	b, err = json.Marshal(api.RestoreJob{JobId: "rst-1", TenantId: "t-1", SnapshotId: "snp-1", Status: "failed", Message: &message})
	require.NoError(t, err)
	answer = string(b)
	require.Equal(t, "restore rst-1 of t-1 to snp-1: failed: no more\n", run(newRestoreCommand, "show", "t-1", "rst-1"))
}
