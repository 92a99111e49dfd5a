package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

const catalogAnswer = `{"provider":"hetzner","known":true,"stale":true,"refreshed_at":"2026-11-22T00:00:00Z","failure":"no answer","currency":"EUR","vat_rate":"19.00",
 "volume_gb_month":{"net":"0.0440","gross":"0.0524"},"image_gb_month":{"net":"0.0110","gross":"0.0131"},
 "locations":[{"name":"fsn1","city":"Falkenstein","country":"DE","network_zone":"eu-central","region":"eu","ipv4":{"hourly":{"net":"0.0008","gross":"0.0010"},"monthly":{"net":"0.5000","gross":"0.5950"}}}],
 "server_types":[{"name":"cx43","cores":8,"memory_gb":16,"disk_gb":160,"cpu":"shared","architecture":"x86","locations":[
  {"location":"fsn1","available":true,"price":{"hourly":{"net":"0.0256","gross":"0.0305"},"monthly":{"net":"15.9900","gross":"19.0281"}}},
  {"location":"nbg1","available":false,"price":{"hourly":{"net":"0.0256","gross":"0.0305"},"monthly":{"net":"15.9900","gross":"19.0281"}}},
  {"location":"hel1","available":false,"unavailable_after":"2026-01-31T00:00:00Z","price":{"hourly":{"net":"0.0256","gross":"0.0305"},"monthly":{"net":"15.9900","gross":"19.0281"}}}]}],
 "images":[{"id":"1","name":"debian-12","kind":"system","architecture":"x86","disk_gb":5,"deprecated_at":"2026-06-01T00:00:00Z"}],
 "configured":{"image":"debian-12","server_types":{},"locations":{}},"problems":[{"kind":"server_type","name":"cx22","message":"is not a machine type of the provider"}]}`

// TestTheVerbsOfCatalogAndImages is not parallel: the client reads the environment.
func TestTheVerbsOfCatalogAndImages(t *testing.T) {
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
	run := func(make func() *cobra.Command, args ...string) (string, error) {
		cmd := make()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(args)
		cmd.SilenceUsage = true
		err := cmd.Execute()
		return out.String(), err
	}

	answer = catalogAnswer
	out, err := run(newCatalogCommand)
	require.NoError(t, err)
	require.Equal(t, "GET /v1/catalog", asked)
	for _, want := range []string{
		"STALE: read ", "(no answer)", "WARNING: configured server type cx22 is not a machine type of the provider", "15.9900", "available", "out of stock", "retired", "deprecated",
		"snapshot, GB and month       0.0110", "IPv4 address in fsn1, month  0.5000",
	} {
		require.Contains(t, out, want)
	}
	out, err = run(newSimulateCommand, "--tenants", "20", "--prices", "fsn1")
	require.ErrorContains(t, err, "ccx23 is not sold in fsn1", out)
	out, err = run(newCatalogCommand, "--location", "nbg1")
	require.NoError(t, err)
	require.NotContains(t, out, "fsn1")
	_, err = run(newCatalogCommand, "-o", "yaml")
	require.EqualError(t, err, `--output must be table or json, not "yaml"`)
	answer = `{"workflow_id":"refresh-catalog/prod"}`
	out, err = run(newCatalogCommand, "refresh")
	require.NoError(t, err)
	require.Equal(t, "POST /internal/catalog/refresh", asked)
	require.Equal(t, "started: workflow refresh-catalog/prod\n", out)
	answer = `{"provider":"hetzner","known":false,"stale":true,"locations":[],"server_types":[],"images":[],"problems":[]}`
	out, err = run(newCatalogCommand)
	require.NoError(t, err)
	require.Contains(t, out, "hetzner never said what it sells")

	image := func(status, more string) string {
		return `{"image_id":"img-1","provider":"hetzner","region":"eu","base_image":"debian-13","architecture":"x86","status":"` + status + `","current":true,"containers":["redis:7"],"workflow_id":"image-build/img-1","created_by":"a","created_at":"2026-11-22T00:00:00Z"` + more + `}`
	}
	answer = image("building", "")
	out, err = run(newImageCommand, "build", "--debian", "13")
	require.NoError(t, err)
	require.Equal(t, "POST /v1/images", asked)
	require.JSONEq(t, `{"debian":"13","region":"eu"}`, body)
	require.Equal(t, "accepted: image img-1 is building, workflow image-build/img-1\n", out)
	answer = image("failed", `,"reason":"build_timeout","message":"too slow"`)
	_, err = run(newImageCommand, "build", "--watch")
	var exit *exitError
	require.True(t, errors.As(err, &exit))
	require.Equal(t, exitOutcome, exit.code)
	require.ErrorContains(t, err, "image img-1 is failed: build_timeout, too slow")
	answer = image("ready", `,"size_gb":2.5`)
	_, err = run(newImageCommand, "build", "--watch")
	require.NoError(t, err)
	out, err = run(newImageCommand, "show", "img-1")
	require.NoError(t, err)
	require.Equal(t, "GET /v1/images/img-1", asked)
	require.Contains(t, out, "debian-13 x86")
	answer = `{"images":[` + image("ready", `,"size_gb":2.5`) + `]}`
	out, err = run(newImageCommand, "list", "--deleted")
	require.NoError(t, err)
	require.Contains(t, asked, "GET /v1/images?deleted=true")
	require.Contains(t, out, "2.5 GB")
	answer = image("deleting", "")
	_, err = run(newImageCommand, "delete", "img-1")
	require.NoError(t, err)
	require.Equal(t, "DELETE /v1/images/img-1", asked)
}
