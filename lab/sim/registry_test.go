package sim

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRegistryServesWhatEnginesPull(t *testing.T) {
	t.Parallel()
	s := &Sim{images: &registry{dir: t.TempDir(), more: t.TempDir()}}
	require.NoError(t, s.AddImage("acme/web", "1", strings.NewReader("a tar"), ImageConfig{Cmd: []string{"/web"}}))
	get := func(host, path string, login ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "https://"+host+path, nil)
		if len(login) == 2 {
			r.SetBasicAuth(login[0], login[1])
		}
		w := httptest.NewRecorder()
		s.serveRegistry(w, r)
		return w
	}
	require.Equal(t, http.StatusOK, get(RegistryName, "/v2/").Code)
	w := get(RegistryName, "/v2/acme/web/manifests/1")
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.Equal(t, ociManifest, w.Header().Get("Content-Type"))
	var m struct {
		Config ociDescriptor
		Layers []ociDescriptor
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &m))
	require.Equal(t, w.Body.String(), get(RegistryName, "/v2/acme/web/manifests/"+w.Header().Get("Docker-Content-Digest")).Body.String(), "pinned")
	require.Len(t, m.Layers, 1)
	require.Equal(t, "a tar", get(RegistryName, "/v2/acme/web/blobs/"+m.Layers[0].Digest).Body.String())
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		Config ImageConfig
	}
	require.NoError(t, json.Unmarshal(get(RegistryName, "/v2/acme/web/blobs/"+m.Config.Digest).Body.Bytes(), &config))
	require.Equal(t, []string{m.Layers[0].Digest}, config.RootFS.DiffIDs)
	require.Equal(t, []string{"/web"}, config.Config.Cmd)

	for _, path := range []string{"/v2/acme/web/manifests/2", "/v2/acme/web/blobs/sha256:00", "/v2/acme/web/blobs/sha256:" + strings.Repeat("0", 64), "/v2/../../etc/passwd", "/v2/x"} {
		require.Equal(t, http.StatusNotFound, get(RegistryName, path).Code, path)
	}

	s.RequireLogin("robot", "secret")
	refused := get(RegistryName, "/v2/")
	require.Equal(t, http.StatusUnauthorized, refused.Code)
	require.Contains(t, refused.Header().Get("WWW-Authenticate"), "Basic")
	require.Equal(t, http.StatusUnauthorized, get(RegistryName, "/v2/acme/web/manifests/1", "robot", "guess").Code)
	require.Equal(t, http.StatusOK, get(RegistryName, "/v2/acme/web/manifests/1", "robot", "secret").Code)
	require.Equal(t, http.StatusOK, get(hubName, "/v2/acme/web/manifests/1").Code, "the public one needs no login")
}

func TestRegistryFindsImagesOfTheReferenceImplementation(t *testing.T) {
	t.Parallel()
	g := &registry{dir: t.TempDir(), more: t.TempDir()}
	sum := strings.Repeat("ab", 32)
	for name, content := range map[string]string{
		"repositories/library/redis/_manifests/tags/7/current/link": "sha256:" + sum,
		"blobs/sha256/ab/" + sum + "/data":                          `{"mediaType":"x"}`,
	} {
		file := filepath.Join(g.more, "docker/registry/v2", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	file, digest, ok := g.find("library/redis", "manifests", "7")
	require.True(t, ok)
	require.Equal(t, "sha256:"+sum, digest)
	require.FileExists(t, file)
	_, _, ok = g.find("library/redis", "manifests", "8")
	require.False(t, ok)
}
