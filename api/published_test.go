package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/prego/prego/api"
)

// fetched is what the API serves without a token.
func fetched(t *testing.T, b *bundle, path string) []byte {
	t.Helper()
	w := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	require.Equal(t, http.StatusOK, w.Code, path)
	return w.Body.Bytes()
}

// without removes keys from a document.
func without(v any, keys ...string) any {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range keys {
			delete(v, k)
		}
		for _, e := range v {
			without(e, keys...)
		}
	case []any:
		for _, e := range v {
			without(e, keys...)
		}
	}
	return v
}

// TestThePublishedContractIsForEveryGenerator: it is the contract without the annotations for our own generated code,
// and a stock generator's client compiles with nothing of ours.
func TestThePublishedContractIsForEveryGenerator(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	source, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	served := fetched(t, b, "/openapi.yaml")
	var want, inYAML, inJSON any
	require.NoError(t, yaml.Unmarshal(source, &want))
	require.NoError(t, yaml.Unmarshal(served, &inYAML))
	require.NoError(t, json.Unmarshal(fetched(t, b, "/openapi.json"), &inJSON))
	want = without(want, "x-go-type", "x-go-type-import")
	require.Equal(t, want, inYAML)
	require.JSONEq(t, asJSON(t, want), asJSON(t, inJSON))

	dir := t.TempDir()
	for name, text := range map[string]string{"openapi.yaml": string(served), "main.go": "package client\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for name, file := range map[string]string{"go.mod": "../go.mod", "go.sum": "../go.sum"} { // the same versions, which are here
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Replace(string(text), "module github.com/prego/prego\n", "module client\n", 1)), 0o600))
	}
	tool, err := os.ReadFile("generate.go")
	require.NoError(t, err)
	_, line, _ := strings.Cut(string(tool), "go run ")
	pinned, _, _ := strings.Cut(line, " ")
	run(t, dir, "go", "run", pinned, "-generate", "types,client", "-package", "client", "-o", "client.go", "openapi.yaml")
	run(t, dir, "go", "build", "-mod=mod", ".")
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", cmd, out)
}

func TestARepeatedParameterIsAList(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	for _, query := range []string{"role=app,db-shard", "role=app&role=db-shard", "role=app&limit=50&role=db-shard,app"} {
		_, body := b.send("GET", "/v1/servers?sort=server_id&"+query, "viewer", "", "")
		var ids []string
		for _, s := range as[api.ServerPage](t, body).Servers {
			ids = append(ids, s.ServerId)
		}
		require.Equal(t, []string{"app-1", "app-2", "db-1"}, ids, "%s: %s", query, body)
	}
	resp, body := b.send("GET", "/v1/servers?limit=1&limit=2", "viewer", "", "")
	require.Equal(t, 422, resp.StatusCode)
	require.Contains(t, string(body), "is given twice")
	resp, body = b.send("GET", "/v1/servers?role=app&role=king", "viewer", "", "")
	require.Equal(t, 422, resp.StatusCode)
	require.Contains(t, string(body), "must be one of")
}
