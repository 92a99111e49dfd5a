package online

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

func TestSecretsAreForVerbsThatTakeThem(t *testing.T) {
	t.Parallel()
	_, call := withBench(t, `echo done`)
	const pw = "a pass word ü"
	setAdmin := []string{"--site", "a.example.com", "set-admin-password"}
	for name, tc := range map[string]struct {
		args    []string
		secrets map[string]string
		ok      bool
	}{
		"its own":           {setAdmin, map[string]string{wire.SecretAdminPassword: pw}, true},
		"none":              {setAdmin, nil, false},
		"empty":             {setAdmin, map[string]string{wire.SecretAdminPassword: ""}, false},
		"another's":         {setAdmin, map[string]string{wire.SecretAdminPassword: pw, wire.SecretUserPassword: pw}, false},
		"two lines":         {setAdmin, map[string]string{wire.SecretAdminPassword: "a\nb"}, false},
		"spaces around it":  {setAdmin, map[string]string{wire.SecretAdminPassword: " " + pw}, false},
		"too long":          {setAdmin, map[string]string{wire.SecretAdminPassword: strings.Repeat("x", 257)}, false},
		"optional":          {[]string{"--site", "a.example.com", "add-user", "a@example.com", "A"}, nil, true},
		"a user's":          {[]string{"--site", "a.example.com", "add-user", "a@example.com", "A"}, map[string]string{wire.SecretUserPassword: pw}, true},
		"mail's":            {[]string{"--site", "a.example.com", "configure", `{"mail_login":"x"}`}, map[string]string{wire.SecretMailPassword: pw}, true},
		"the host's":        {[]string{"new-site", "a.example.com", "--db-name", "pool_1"}, map[string]string{"mariadb_root_password": pw}, false},
		"of no verb's":      {[]string{"list-sites"}, map[string]string{wire.SecretAdminPassword: pw}, false},
		"of a kind of none": {nil, map[string]string{wire.SecretAdminPassword: pw}, false},
	} {
		in := wire.ExecRequest{Args: tc.args, Secrets: tc.secrets}
		if tc.args == nil {
			in.Kind, in.Args = wire.KindRedisCLI, []string{"ping"}
		}
		out := call(in)
		if tc.ok {
			require.Equal(t, http.StatusOK, out.StatusCode, "%s: %v", name, out.problem)
			continue
		}
		require.Equal(t, []any{http.StatusUnprocessableEntity, "secrets"}, []any{out.StatusCode, out.problem.Field}, name)
		require.NotContains(t, out.problem.Detail, pw, name)
	}
}

// TestSecretsTellCommandsApartAndAreKeptNowhere repeats a command with the same
// secret, which joins it, and with another, which is another command.
func TestSecretsTellCommandsApartAndAreKeptNowhere(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `echo ran >> ran`)
	const pw = "Xq7-never-written"
	in := wire.ExecRequest{Args: []string{"--site", "a.example.com", "set-admin-password"}, AuditID: "one", Secrets: map[string]string{wire.SecretAdminPassword: pw}}
	require.Equal(t, http.StatusOK, call(in).StatusCode)
	require.Equal(t, http.StatusOK, call(in).StatusCode)
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")))
	in.Secrets = map[string]string{wire.SecretAdminPassword: "another"}
	require.Equal(t, "audit_id_reused", call(in).problem.Code)

	require.NoError(t, filepath.WalkDir(a.host.Root, func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(name)
		require.NotContains(t, string(b), pw, name)
		return err
	}))
}
