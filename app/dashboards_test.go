package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/stretchr/testify/require"
)

// units are Grafana's names of the units that panels use.
var units = []string{"none", "short", "s", "bytes", "Bps", "cps", "reqps", "percentunit"}

// registerPanels makes the kinds of panels and queries known that dashboards use.
var registerPanels = sync.OnceFunc(func() {
	r := cog.NewRuntime()
	r.RegisterPanelcfgVariant(timeseries.VariantConfig())
	r.RegisterPanelcfgVariant(stat.VariantConfig())
	r.RegisterDataqueryVariant(prometheus.VariantConfig())
})

// misfits says what of a dashboard is not in Grafana's schema. The error is never nil, and
// without a text if there is nothing.
func misfits(text []byte) string {
	var d dashboard.Dashboard //nolint:staticcheck // the form that Grafana imports from files
	return d.UnmarshalJSONStrict(text).Error()
}

// TestMisfitsOfDashboardsAreFound: an unknown field is, wherever it is.
func TestMisfitsOfDashboardsAreFound(t *testing.T) {
	t.Parallel()
	registerPanels()
	d := `{"annotations":{"list":[]},"templating":{"list":[]},"schemaVersion":39,"panels":[{"type":"timeseries","id":1,"gridPos":{"x":0,"y":0,"w":1,"h":1},
"fieldConfig":{"defaults":{"custom":{"drawStyle":"line"}},"overrides":[]},"datasource":{"type":"prometheus"},"targets":[{"refId":"A","expr":"up","legendFormat":"a","datasource":{"type":"prometheus"}}]}]}`
	require.Empty(t, misfits([]byte(d)))
	for _, field := range []string{"schemaVersion", "fieldConfig", "gridPos", "drawStyle", "legendFormat"} {
		require.NotEmpty(t, misfits([]byte(strings.Replace(d, `"`+field+`"`, `"`+field+`x"`, 1))), field)
	}
}

// TestDashboardsShowWhatThereIs loads each dashboard as strictly as Grafana's own schema is
// written, and has each query parsed and compared with what processes export.
func TestDashboardsShowWhatThereIs(t *testing.T) {
	t.Parallel()
	registerPanels()
	j := judge(exported(t))
	files, err := filepath.Glob(deployed + "grafana/*.json")
	require.NoError(t, err)
	require.Len(t, files, 3)
	uids, titles, shown := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		require.Empty(t, misfits(text), f)
		var d dashboard.Dashboard //nolint:staticcheck // see misfits
		require.NoError(t, json.Unmarshal(text, &d), f)
		require.NoError(t, d.Validate(), f)
		require.Regexp(t, `^prego-[a-z-]{1,34}$`, *d.Uid, f)
		require.False(t, uids[*d.Uid] || titles[*d.Title], "%s: another one has this uid or title", f)
		uids[*d.Uid], titles[*d.Title] = true, true
		require.NotEmpty(t, *d.Description, f)
		require.Len(t, d.Templating.List, 1, f)
		require.Equal(t, dashboard.VariableTypeDatasource, d.Templating.List[0].Type, f)
		require.Equal(t, "prometheus", *d.Templating.List[0].Query.String, f)
		ids, names := map[uint32]bool{}, map[string]bool{}
		row := ""
		for _, p := range d.Panels {
			if p.RowPanel != nil {
				row = *p.RowPanel.Title
				require.Empty(t, p.RowPanel.Panels, "%s: %s is folded", f, row)
				require.False(t, ids[p.RowPanel.Id], f)
				ids[p.RowPanel.Id] = true
				continue
			}
			panel := p.Panel
			where := filepath.Base(f) + ", " + row + ", " + *panel.Title
			require.False(t, ids[*panel.Id] || names[row+*panel.Title], where)
			ids[*panel.Id], names[row+*panel.Title] = true, true
			require.NotEmpty(t, *panel.Title, where)
			require.True(t, strings.HasSuffix(*panel.Description, "."), where)
			require.Contains(t, units, *panel.FieldConfig.Defaults.Unit, where)
			require.Equal(t, "${datasource}", *panel.Datasource.Uid, where)
			require.LessOrEqual(t, panel.GridPos.X+panel.GridPos.W, uint32(24), where)
			require.NotEmpty(t, panel.Targets, where)
			for _, target := range panel.Targets {
				query, ok := target.(*prometheus.Dataquery)
				require.True(t, ok, "%s: %T", where, target)
				require.Equal(t, "${datasource}", *query.Datasource.Uid, where)
				metrics, result := j.check(t, where, strings.NewReplacer("$__rate_interval", "5m").Replace(query.Expr))
				for _, m := range metrics {
					shown[m] = true
				}
				for _, l := range strings.Split(*query.LegendFormat, "{{")[1:] {
					label, _, _ := strings.Cut(l, "}}")
					require.Contains(t, result, label, "%s: the legend has no such label", where)
				}
			}
		}
	}
	// Whatever is worth an alert is worth a look.
	for _, a := range readAlerts(t) {
		metrics, _ := j.check(t, a.Alert, a.Expr)
		for _, m := range metrics {
			require.True(t, shown[m] || m == "up", "%s watches %s, and no dashboard shows it", a.Alert, m)
		}
	}
}
