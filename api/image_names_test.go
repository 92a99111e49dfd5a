package api_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestImagesAreReadAsDockerReadsThem: no reference is accepted that the engine's client refuses, and the answer names
// the faulty part.
func TestImagesAreReadAsDockerReadsThem(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.workloads()
	quoted := func(image string) string {
		text, err := json.Marshal(image)
		require.NoError(t, err)
		return string(text)
	}
	spec := func(image string) string {
		return `{"image":` + quoted(image) + `,"memory_limit_bytes":67108864,"cpu_request":0.5}`
	}
	resp, body := b.do("POST", groups, "operator", js, `{"name":"web","spec":`+spec("web:1")+`,"replicas":0}`)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	deploys := "/v1/groups/" + as[api.ProcessGroup](t, body).GroupId + "/deploys"

	for image, fault := range map[string]string{
		"registry.example/Acme/app:1":       `the name "Acme/app" must be in lower case`,
		"https://registry.example/x":        `it must not have a scheme`,
		"nginx:":                            `the tag "" must be`,
		"a//b":                              `the name "a//b" has an empty part`,
		"library/":                          `the name "library/" has an empty part`,
		"nginx:latest:2":                    `the name "nginx:latest"`,
		"nginx:a@b":                         `the digest "b" must be`,
		"nginx:" + strings.Repeat("t", 129): `1 to 128 characters`,
		"nginx@sha256:ABCDEF":               `the digest "sha256:ABCDEF" must be`,
		"nginx@sha256:" + strings.Repeat("A", 64): `the digest`,
		"Acme/app":                            `the name "Acme/app" must be in lower case`,
		"registry.example:http/x":             `the registry "registry.example:http" must be`,
		"web 1":                               `the name "web 1"`,
		"wéb":                                 `the name "wéb"`,
		"a..b":                                `the name "a..b"`,
		strings.Repeat("0123456789abcdef", 4): `it is the id of an image`,
		"a/" + strings.Repeat("b", 256):       `at most 255 characters`,
		"169.254.169.254/app":                 `169.254.0.0/16 is link-local`,
		"127.0.0.1:5000/app@sha256:" + strings.Repeat("0", 64): `127.0.0.0/8 is loopback`,
		"[::1]:5000/app": `::/3 is not for hosts`,
		"127.1/app":      `must be written as four decimal numbers`,
		"cafe":           `a host may take cafe for the id of an image`,
		"sha256:" + strings.Repeat("0123456789abcdef", 4): `for the id of an image`,
		"sha256:0123":               `for the id of an image`,
		"docker.io/library/scratch": `reserves the name scratch`,
		"reg.example:0/app":         `must have a port of 1 to 65535`,
		"reg.example:65536/app":     `must have a port of 1 to 65535`,
	} {
		for path, request := range map[string]struct{ body, field string }{
			groups:         {`{"name":"other","spec":` + spec(image) + `,"replicas":0}`, "spec.image"},
			deploys:        {`{"spec":` + spec(image) + `}`, "spec.image"},
			"/v1/releases": {`{"name":"15.81","image":` + quoted(image) + `}`, "image"},
		} {
			resp, body := b.do("POST", path, "operator", js, request.body)
			require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s %s: %s", path, image, body)
			p := as[api.Problem](t, body)
			require.Equal(t, "invalid_field", p.Code, "%s %s", path, image)
			require.Equal(t, request.field, *p.Field, "%s %s", path, image)
			require.Contains(t, *p.Detail, fault, "%s %s", path, image)
		}
		resp, body := b.do("DELETE", "/v1/image-digests?image="+url.QueryEscape(image), "operator", "", "")
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s: %s", image, body)
	}
	for _, image := range []string{
		"nginx", "Registry.Example/acme/app", "[fd00::1]:5000/app:1", "localhost/app", "registry:5000/a__b/c-d.e:1@sha256:" + strings.Repeat("0", 64),
		"nginx:_" + strings.Repeat("T", 127), "cafe:1", "acme/cafe", "caf", "127.1", "reg.example:65535/scratch",
	} {
		resp, body := b.do("POST", deploys, "operator", js, `{"spec":`+spec(image)+`}`)
		require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s: %s", image, body)
	}
}
