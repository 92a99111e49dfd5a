package site_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/site"
)

func TestSettingsAreOfAClosedSet(t *testing.T) {
	t.Parallel()
	s, err := site.ParseSettings(`{"host_name":"https://a.example.com","mail_port":587,"use_tls":true,"mail_server":null,"mail_password":null,"prego_tenant_id":"t-1"}`)
	require.NoError(t, err)
	require.Len(t, s, 6)
	require.Equal(t, "t-1", s.Text("prego_tenant_id"))
	require.Empty(t, s.Text("mail_port"), "no text")
	require.Equal(t, "null", string(s["mail_server"]))
	for _, text := range []string{
		``, `{}`, `[]`, `null`, `"x"`, `{"host_name":"x"`, `{"host_name":"x"} {}`, `{"host_name":"x","host_name":"y"}`,
		`{"db_name":"pool_1"}`, `{"db_password":"x"}`, `{"Host_name":"x"}`, `{"host_name":{"a":1}}`, `{"host_name":["a"]}`, `{"host_name":}`,
		`{"mail_password":"as a setting"}`, `{"maintenance_mode":1}`,
	} {
		_, err := site.ParseSettings(text)
		require.Error(t, err, "%s", text)
		require.NotContains(t, err.Error(), "as a setting")
	}
}

func TestKeysOfTheHostAreReserved(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"db_name", "db_host", "db_password", "redis_cache", "root_password", "admin_password", "encryption_key", "extra_config", "backup_path"} {
		require.True(t, site.Reserved(key), key)
	}
	for _, key := range []string{"host_name", "prego_plan", "mail_server", "dbx"} {
		require.False(t, site.Reserved(key), key)
	}
}
