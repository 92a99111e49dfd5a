package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestTheVerbsOfSitesAndRegistries(t *testing.T) {
	// Not parallel: the client reads the environment.
	var asked, body string
	answer := "{}"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		asked, body = r.Method+" "+r.URL.RequestURI(), string(b)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("PREGO_API_URL", srv.URL)
	t.Setenv("PREGO_TOKEN", "t")
	run := func(make func() *cobra.Command, stdin string, args ...string) (string, error) {
		cmd := make()
		var out bytes.Buffer
		cmd.SetIn(strings.NewReader(stdin))
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(args)
		err := cmd.Execute()
		return out.String(), err
	}
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("from a file\n"), 0o600))
	for _, tc := range []struct {
		make  func() *cobra.Command
		stdin string
		args  []string
		asks  string
		sends string
	}{
		{newTenantCommand, "", []string{"password", "t-1"}, "POST /v1/tenants/t-1/admin-password", ""},
		{newTenantCommand, "", []string{"user", "add", "t-1", "a@b.c", "--name", "Ann"}, "POST /v1/tenants/t-1/users", `{"email":"a@b.c","name":"Ann"}`},
		{newTenantCommand, "", []string{"user", "add", "t-1", "a@b.c", "--no-password"}, "POST /v1/tenants/t-1/users", `{"email":"a@b.c","password":"none"}`},
		{newTenantCommand, "s3cret\nmore", []string{"mail", "set", "t-1", "--server", "smtp.b.c", "--login", "erp", "--sender", "a@b.c"}, "PUT /v1/tenants/t-1/mail", `{"server":"smtp.b.c","port":587,"tls":true,"login":"erp","password":"s3cret","sender":"a@b.c"}`},
		{newTenantCommand, "", []string{"mail", "set", "t-1", "--server", "smtp.b.c", "--port", "25", "--tls=false", "--sender", "a@b.c"}, "PUT /v1/tenants/t-1/mail", `{"server":"smtp.b.c","port":25,"tls":false,"sender":"a@b.c"}`},
		{newTenantCommand, "", []string{"mail", "unset", "t-1"}, "DELETE /v1/tenants/t-1/mail", ""},
		{newTenantCommand, "", []string{"storage-quota", "t-1", "--gb", "7"}, "PUT /v1/tenants/t-1/storage-quota", `{"gb":7}`},
		{newRegistryCommand, "", []string{"set", "r.b.c:5000", "--username", "robot", "--password-file", secret}, "PUT /v1/registries/r.b.c:5000", `{"username":"robot","password":"from a file"}`},
		{newRegistryCommand, "s3cret", []string{"set", "r.b.c", "--username", "robot"}, "PUT /v1/registries/r.b.c", `{"username":"robot","password":"s3cret"}`},
		{newRegistryCommand, "", []string{"show", "r.b.c"}, "GET /v1/registries/r.b.c", ""},
		{newRegistryCommand, "", []string{"list"}, "GET /v1/registries", ""},
		{newRegistryCommand, "", []string{"rotate"}, "POST /v1/registries/rotate", ""},
		{newRegistryCommand, "", []string{"delete", "r.b.c"}, "DELETE /v1/registries/r.b.c", ""},
		{newRegistryCommand, "", []string{"images"}, "GET /v1/image-digests", ""},
		{newRegistryCommand, "", []string{"unpin", "r.b.c/team/bench:v15"}, "DELETE /v1/image-digests?image=r.b.c%2Fteam%2Fbench%3Av15", ""},
	} {
		_, err := run(tc.make, tc.stdin, tc.args...)
		require.NoError(t, err, "%q", tc.args)
		require.Equal(t, tc.asks, asked, "%q", tc.args)
		if tc.sends == "" {
			require.Empty(t, body, "%q", tc.args)
		} else {
			require.JSONEq(t, tc.sends, body, "%q", tc.args)
		}
	}
	asked = ""
	for _, args := range [][]string{{"set", "r.b.c", "--username", "robot"}, {"set", "r.b.c", "--username", "robot", "--password-file", secret + ".none"}} {
		_, err := run(newRegistryCommand, "\n", args...)
		require.ErrorContains(t, err, "password")
	}
	require.Empty(t, asked, "nothing is sent without a password")

	answer = `{"user":"Administrator","password":"abc","site_url":"https://a.b.c"}`
	out, err := run(newTenantCommand, "", "password", "t-1")
	require.NoError(t, err)
	require.Equal(t, "user      Administrator\npassword  abc\nsite      https://a.b.c\n", out)
	out, err = run(newTenantCommand, "", "password", "t-1", "--output", "json")
	require.NoError(t, err)
	require.JSONEq(t, answer, out)
}

func TestStorageIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	since, message := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "no\nanswer"
	s := api.TenantStorage{
		UsedBytes: 11e9, DatabaseBytes: 8e9, FilesBytes: 3e9, BackupsBytes: 1e9, QuotaBytes: 10e9, UsedPct: 110, Level: "read_only", OverSince: &since, ReadOnly: true,
		MeasuredAt: since, Message: &message,
	}
	require.Equal(t, "11.00 of 10.00 GB (110 %): database 8.00, files 3.00; backups 1.00 GB beside; read_only, over since 2026-01-02T03:04:05Z, the site is read-only; "+
		"measured 2026-01-02T03:04:05Z, the last try failed: no answer", storageText(s))
}
