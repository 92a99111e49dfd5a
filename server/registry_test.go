package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func TestRegistryOf(t *testing.T) {
	t.Parallel()
	for image, host := range map[string]string{
		"frappe/erpnext:v15": DockerHub, "redis:7-alpine": DockerHub, "docker.io/library/redis": DockerHub, "index.docker.io/a/b": DockerHub,
		"ghcr.io/a/b:1": "ghcr.io", "registry:5000/a": "registry:5000", "localhost/a": "localhost",
		"r.example.com/team/bench@sha256:" + strings.Repeat("0", 64): "r.example.com",
	} {
		require.Equal(t, host, RegistryOf(image), image)
		require.NoError(t, ValidateImage("image", image))
	}
	for _, image := range []string{"", "A/b", "a b", "a:", "a@sha256:12", "$(x)", "a\n"} {
		require.Equal(t, prego.CodeInvalidField, prego.CodeOf(ValidateImage("image", image)), image)
		require.Empty(t, RegistryOf(image), image)
	}
	require.NoError(t, ValidateRegistryLogin("robot$ci", "s3cret with spaces"))
	for _, login := range [][2]string{{"", "x"}, {"a:b", "x"}, {"a", ""}, {"a", "x\ny"}, {"a", strings.Repeat("x", 4097)}} {
		require.Equal(t, prego.CodeInvalidField, prego.CodeOf(ValidateRegistryLogin(login[0], login[1])), login)
	}
}
