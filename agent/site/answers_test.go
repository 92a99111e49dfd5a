package site

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestASiteSaysItsVersionsAndAnswers: a release is checked by both.
func TestASiteSaysItsVersionsAndAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site, db := "a.example.com", "pool_a"+b.id
	require.Contains(t, b.bad("--site", site, "versions"), "does not exist")
	b.good("new-site", site, "--db-name", db)
	require.JSONEq(t, `{}`, b.good("--site", site, "versions"), "before its first migration")
	for _, table := range []string{"Installed Applications", "Other"} {
		_, err := b.db.Exec("INSERT INTO `"+db+"`.`tabInstalled Application` (name, parent, app_name, app_version) VALUES (?, ?, 'frappe', ?)", table, table, "15.60.0 of "+table)
		require.NoError(t, err)
	}
	require.JSONEq(t, `{"frappe":"15.60.0 of Installed Applications"}`, b.good("--site", site, "versions"))

	var says atomic.Value
	says.Store(`{"message":"pong"}`)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != site || r.Header.Get("X-Frappe-Site-Name") != site || r.URL.Path != "/api/method/ping" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		text, _ := says.Load().(string)
		if text == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = fmt.Fprint(w, text)
	}))
	defer web.Close()
	_, port, err := net.SplitHostPort(web.Listener.Addr().String())
	require.NoError(t, err)
	var common map[string]any
	text, err := os.ReadFile(b.path("sites/common_site_config.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &common))
	common["webserver_port"] = json.Number(port)
	b.write("sites/common_site_config.json", common)

	require.JSONEq(t, `{"status":200}`, b.good("--site", site, "answers"))
	says.Store("")
	require.Contains(t, b.bad("--site", site, "answers"), "answers with 503")
	says.Store("<html>a page of another program</html>")
	require.Contains(t, b.bad("--site", site, "answers"), "answers with 200 OK")
	web.Close()
	require.Contains(t, b.bad("--site", site, "answers"), "connection refused")
}
