package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestRegistriesShowNoPassword(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	one := "/v1/registries/r.example.com"
	resp, body := b.do("PUT", one, "operator", js, `{"username":"robot","password":"swordfish-1"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.NotContains(t, string(body), "swordfish")
	resp, body = b.do("PUT", one, "operator", js, `{"username":"robot2","password":"swordfish-2"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Equal(t, "robot2", as[api.Registry](t, body).Username)
	for _, read := range []string{one, "/v1/registries"} {
		resp, body = b.do("GET", read, "viewer", "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
		require.Contains(t, string(body), "robot2")
		require.NotContains(t, string(body), "swordfish")
	}
	resp, body = b.do("POST", "/v1/registries/rotate", "operator", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Len(t, as[api.RegistryList](t, body).Registries, 1)
	for _, e := range b.logs.All() {
		require.NotContains(t, e.Message+toString(e.ContextMap()), "swordfish")
	}

	resp, body = b.do("DELETE", one, "viewer", "", "")
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s", body)
	resp, body = b.do("DELETE", one, "operator", "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s", body)

	_, err := b.store.PutImageDigest(context.Background(), "frappe/erpnext:v15", "sha256:"+strings.Repeat("0", 64))
	require.NoError(t, err)
	resp, body = b.do("GET", "/v1/image-digests", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Len(t, as[api.ImageDigestList](t, body).Images, 1)
	resp, body = b.do("DELETE", "/v1/image-digests?image=frappe%2Ferpnext%3Av15", "operator", "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s", body)
}

func TestRegistriesRefuse(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, tc := range []struct {
		method, path, body string
		status             int
		code, field        string
	}{
		{"GET", "/v1/registries/r.example.com", "", 404, "registry_not_found", ""},
		{"DELETE", "/v1/registries/r.example.com", "", 404, "registry_not_found", ""},
		{"PUT", "/v1/registries/https:%2F%2Fr.example.com", `{"username":"a","password":"b"}`, 422, "invalid_field", "host"},
		{"PUT", "/v1/registries/r.example.com", `{"username":"","password":"b"}`, 422, "invalid_field", "username"},
		{"PUT", "/v1/registries/r.example.com", `{"username":"a","password":"b\nc"}`, 422, "invalid_field", "password"},
		{"PUT", "/v1/registries/r.example.com", `{"username":"a","password":"b","email":"c"}`, 400, "unknown_field", "email"},
		{"DELETE", "/v1/image-digests?image=redis:7", "", 404, "image_not_found", ""},
		{"DELETE", "/v1/image-digests?image=-", "", 422, "invalid_field", "image"},
		{"DELETE", "/v1/image-digests", "", 422, "invalid_field", "image"},
		{"GET", "/v1/registries?x=1", "", 400, "unknown_field", "x"},
	} {
		contentType := ""
		if tc.body != "" {
			contentType = js
		}
		resp, body := b.do(tc.method, tc.path, "operator", contentType, tc.body)
		p := as[api.Problem](t, body)
		require.Equal(t, []any{tc.status, tc.code, tc.field}, []any{resp.StatusCode, p.Code, deref(p.Field)}, "%s %s: %s", tc.method, tc.path, body)
	}
}

// TestRegistriesOfAnOrg belong to its owners and developers. The installation's list does not have them, and no answer
// has a password.
func TestRegistriesOfAnOrg(t *testing.T) {
	t.Parallel()
	b := setup(t, rowsOrFakes)
	for _, org := range []string{"acme", "other"} {
		b.org(org, "")
	}
	developer, viewer := b.tokenIn("acme", "dev", "developer", ""), b.tokenIn("acme", "see", "org_viewer", "")
	foreign, signup := b.tokenIn("other", "foreign", "org_owner", ""), b.tokenIn("acme", "signup", "provisioner", "")
	const one, all, put = "/v1/orgs/acme/registries/r.example.com", "/v1/orgs/acme/registries", `{"username":"robot","password":"swordfish-1"}`
	resp, body := b.do("PUT", "/v1/registries/r.example.com", "operator", js, `{"username":"installation","password":"swordfish-0"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	resp, body = b.do("PUT", one, developer, js, put)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	for _, read := range []string{one, all} {
		for _, token := range []string{developer, viewer, "operator"} {
			resp, body = b.do("GET", read, token, "", "")
			require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
			require.Contains(t, string(body), "robot")
			require.NotContains(t, string(body), "swordfish")
			require.NotContains(t, string(body), "installation")
		}
		for token, status := range map[string]int{foreign: http.StatusNotFound, signup: http.StatusForbidden} {
			resp, body = b.do("GET", read, token, "", "")
			require.Equal(t, status, resp.StatusCode, "%s", body)
		}
	}
	for token, status := range map[string]int{foreign: http.StatusNotFound, viewer: http.StatusForbidden, signup: http.StatusForbidden} {
		for method, body := range map[string]string{"PUT": put, "DELETE": ""} {
			resp, answer := b.do(method, one, token, js, body)
			require.Equal(t, status, resp.StatusCode, "%s", answer)
		}
	}
	for _, token := range []string{developer, foreign} {
		resp, body = b.do("GET", "/v1/registries", token, "", "")
		require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s", body)
	}
	_, body = b.do("GET", "/v1/registries", "operator", "", "")
	require.Len(t, as[api.RegistryList](t, body).Registries, 1)
	require.Contains(t, string(body), "installation")
	for path, status := range map[string]int{"/v1/orgs/none/registries": 404, "/v1/orgs/none/registries/r.example.com": 404, "/v1/orgs/other/registries/r.example.com": 404} {
		resp, body = b.do("GET", path, "operator", "", "")
		require.Equal(t, status, resp.StatusCode, "%s", body)
	}
	resp, body = b.do("PUT", "/v1/orgs/none/registries/r.example.com", "operator", js, put)
	require.Equal(t, http.StatusNotFound, resp.StatusCode, "%s", body)

	resp, body = b.do("GET", one, developer, "", "")
	tag := resp.Header.Get("ETag")
	require.NotEmpty(t, tag, "%s", body)
	resp, body = b.do("PUT", one, developer, js, `{"username":"robot2","password":"swordfish-2"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	resp, body = b.sendAs(developer, "PUT", one, put, "If-Match", tag)
	require.Equal(t, http.StatusPreconditionFailed, resp.StatusCode, "%s", body)
	before := b.sealed()
	resp, body = b.do("POST", "/v1/registries/rotate", "operator", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.NotEqual(t, before, b.sealed(), "orgs' are sealed again too")
	resp, body = b.do("DELETE", one, developer, "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s", body)
	resp, _ = b.do("GET", "/v1/registries/r.example.com", "operator", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

func (b *bundle) sealed() (sealed []byte) {
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `SELECT sealed FROM registries WHERE org_id = 'acme'`).Scan(&sealed))
	return sealed
}
