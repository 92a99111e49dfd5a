package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestQuotaVerbs has the verbs ask a recorded API, and compares what they ask and print.
func TestQuotaVerbs(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	reason, by := "contract", "me"
	override := api.OrgQuota{Dimension: "max_apps", Limit: 40, Source: "override", Usage: 3, Headroom: 37, Reason: &reason, UpdatedBy: &by, UpdatedAt: &at}
	app := api.App{AppId: "app-1", OrgId: "acme", Name: "shop", CreatedBy: "me", CreatedAt: at}
	env := api.Env{EnvId: "env-1", AppId: "app-1", OrgId: "acme", Name: "prod", Region: "eu", CreatedBy: "me", CreatedAt: at}
	for _, tc := range []struct {
		args, asked, sent string
		answer            any
		printed           []string
	}{
		{"org put acme --tier paid", "PUT /v1/orgs/acme", `{"tier":"paid"}`, api.Org{OrgId: "acme", Tier: "paid", CreatedBy: "me", CreatedAt: at}, []string{"org acme, paid"}},
		{
			"org events acme --type org. --limit 5", "GET /v1/orgs/acme/events?limit=5&type=org.", "",
			api.OrgEventPage{Events: []api.OrgEvent{{EventId: 1, At: at, Type: "org.quota_set", Subject: "max_apps", Actor: "me", Reason: &reason, Payload: json.RawMessage(`{"new":40}`)}}},
			[]string{"org.quota_set", "contract", `{"new":40}`},
		},
		{"quota show acme", "GET /v1/orgs/acme/quotas", "", api.OrgQuotas{OrgId: "acme", Tier: "paid", Quotas: []api.OrgQuota{override}}, []string{"org acme, paid", "max_apps", "override", "37", "contract, by me"}},
		{"quota set acme max_total_cpu_request 0.5 --reason contract", "PUT /v1/orgs/acme/quotas/max_total_cpu_request", `{"limit":0.5,"reason":"contract"}`, override, []string{"40"}},
		{"quota unset acme max_apps", "DELETE /v1/orgs/acme/quotas/max_apps", `{}`, override, []string{"max_apps"}},
		{"app create shop --org acme --idempotency-key k", "POST /v1/apps k", `{"name":"shop","org_id":"acme"}`, app, []string{"app-1", "shop"}},
		{"app list --org acme", "GET /v1/apps?limit=200&org_id=acme", "", api.AppPage{Apps: []api.App{app}}, []string{"app-1"}},
		{"app show app-1", "GET /v1/apps/app-1", "", app, []string{"acme"}},
		{"app delete app-1", "DELETE /v1/apps/app-1", "", nil, []string{"app-1 is deleted"}},
		{"env create prod --app app-1 --region eu", "POST /v1/apps/app-1/envs", `{"name":"prod","region":"eu"}`, env, []string{"env-1", "eu"}},
		{"env list --app app-1", "GET /v1/apps/app-1/envs?limit=200", "", api.EnvPage{Envs: []api.Env{env}}, []string{"env-1"}},
		{"env show env-1", "GET /v1/envs/env-1", "", env, []string{"prod"}},
		{"env delete env-1", "DELETE /v1/envs/env-1", "", nil, []string{"env-1 is deleted"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var asked, sent string
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked, sent = strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Idempotency-Key")), string(body)
				if tc.answer == nil {
					w.WriteHeader(http.StatusNoContent)
					return
				}
				_ = json.NewEncoder(w).Encode(tc.answer)
			}))
			defer srv.Close()
			t.Setenv("PREGO_API_URL", srv.URL)
			t.Setenv("PREGO_TOKEN", "x")
			root := &cobra.Command{Use: "prego", SilenceUsage: true, SilenceErrors: true}
			root.AddCommand(newOrgCommand(), newQuotaCommand(), newAppCommand(), newEnvCommand())
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetArgs(strings.Fields(tc.args))
			require.NoError(t, root.Execute())
			require.Equal(t, tc.asked, asked)
			if tc.sent == "" {
				require.Empty(t, sent)
			} else {
				require.JSONEq(t, tc.sent, sent)
			}
			for _, text := range tc.printed {
				require.Contains(t, out.String(), text)
			}
		})
	}
}

func TestNumbersThatAreNoneAreRefusedHere(t *testing.T) {
	for _, limit := range []string{"many", "NaN", "Inf", ""} {
		_, a, err := operate(t, newQuotaCommand(), "", nil, "set", "acme", "max_apps", limit, "--reason", "x")
		exitCode(t, err, 2)
		require.Empty(t, a.bodies)
	}
	for _, gb := range []string{"-1", "9223372037", "9223372036854775807"} {
		_, a, err := operate(t, newVolumeCommand(), "", nil, "create", "acme", "data", "--gb="+gb)
		exitCode(t, err, 2)
		require.Empty(t, a.bodies)
	}
}
