package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
)

func TestSettingsAreOfAClosedSet(t *testing.T) {
	t.Parallel()
	s, err := policy.ParseSettings(`{"host_name":"https://a.example.com","mail_port":587,"use_tls":true,"mail_server":null,"mail_password":null,"prego_tenant_id":"t-1"}`)
	require.NoError(t, err)
	require.Len(t, s, 6)
	require.Equal(t, "t-1", s.Text("prego_tenant_id"))
	require.Empty(t, s.Text("mail_port"), "no text")
	require.Equal(t, "null", string(s["mail_server"]))
	for text, want := range map[string]string{
		``: "must be a JSON object", `[]`: "must be a JSON object", `null`: "must be a JSON object", `"x"`: "must be a JSON object",
		`{"host_name":"x"`: "must be a JSON object", `{"host_name":}`: "must be a JSON object", `{"host_name":"x",}`: "must be a JSON object",
		`{}`:                                "there must be a setting",
		`{"host_name":"x"} {}`:              "something follows the settings",
		`{"host_name":"x","host_name":"y"}`: "host_name is there twice",
		`{"db_name":"pool_1"}`:              `"db_name" may not be set`,
		`{"db_password":"x"}`:               `"db_password" may not be set`,
		`{"maintenance_mode":1}`:            `"maintenance_mode" may not be set`,
		`{"Host_name":"x"}`:                 `"Host_name" may not be set`,
		`{"host_name":{"a":1}}`:             "host_name must be text, a number",
		`{"host_name":["a"]}`:               "host_name must be text, a number",
		`{"mail_password":"as a setting"}`:  "mail_password is given as a secret, or null",
		`{"host_name":"` + strings.Repeat("x", 5000) + `"}`: "host_name is too long",
		"{\"host_name\":\"\xff\"}":                          "host_name is too long",
	} {
		_, err := policy.ParseSettings(text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "as a setting")
	}
}

func TestKeysOfTheHostAreReserved(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"db_name", "db_host", "db_password", "redis_cache", "root_password", "admin_password", "encryption_key", "extra_config", "backup_path", "prego_tenant_id", "prego_plan"} {
		require.True(t, policy.Reserved(key), key)
	}
	for _, key := range []string{"host_name", "pregox", "mail_server", "dbx"} {
		require.False(t, policy.Reserved(key), key)
	}
}
