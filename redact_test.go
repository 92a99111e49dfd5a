package prego

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRedactMasksSecrets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, secret string }{
		{"mysql --password=hunter2 -e x", "hunter2"},
		{"mysql --db-password hunter2 -e x", "hunter2"},
		{"mysql -u root -phunter2", "hunter2"},
		{"postgres://prego:s3cr3t@db:5432/prego", "s3cr3t"},
		{"redis://:s3cr3t@cache:6379", "s3cr3t"},
		{"Authorization: Bearer abcdef.ghijk", "abcdef.ghijk"},
		{`{"api_token": "q1w2e3r4"}`, "q1w2e3r4"},
		{"HCLOUD_TOKEN=abc123", "abc123"},
		{"jwt eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln", "eyJzdWIiOiJ4In0"},
		{"-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----", "MC4CAQ"},
		{"cut off -----BEGIN EC PRIVATE KEY-----\nMC4CAQ", "MC4CAQ"},
		{"raw " + strings.Repeat("0a1b", 16), strings.Repeat("0a1b", 16)},
		{"raw Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZmdoaWprbG1ub3A", "Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZmdoaWprbG1ub3A"},
	} {
		got := Redact(tc.in)
		require.NotContains(t, got, tc.secret, tc.in)
		require.Contains(t, got, Redacted, tc.in)
		require.Equal(t, got, Redact(got), "redacting twice changes nothing")
	}
}

func TestRedactKeepsWhatPeopleNeed(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"server app-sgp-007 in fsn1: error during placement",
		"the token you have provided is invalid",
		"run 0d9fa3c2-8f0e-4a52-9b8d-6b2f0f3f1c11 of server-provision/app-1",
		"/internal/agent/handshake of prego-demo-app-with-a-rather-long-name-of-its-own",
		"bench --site tenant.example.com list-apps",
		"no handshake within 1m30s",
	} {
		require.Equal(t, s, Redact(s))
	}
}
