package app

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/workflows"
)

var described = regexp.MustCompile(`fqName: "([^"]+)", help: .*, constLabels: \{.*\}, variableLabels: \{([^}]*)\}`)

var known struct {
	sync.Mutex
	metrics map[string][]string
}

// exported are the metrics that API, gateway and worker have, as they are wired, each with
// its labels. Only the database is there.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	known.Lock()
	defer known.Unlock()
	if known.metrics == nil {
		known.metrics = export(t)
	}
	return known.metrics
}

func export(t *testing.T) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	keys, agent := filepath.Join(dir, "keys"), filepath.Join(dir, "agent")
	require.NoError(t, pki.Init(keys, "metrics"))
	require.NoError(t, token.InitKeys(keys))
	require.NoError(t, os.WriteFile(agent, []byte("an agent"), 0o600))
	cfg, err := config.From(map[string]string{
		"PREGO_ENV": "metrics", "PREGO_KEYS_DIR": keys, "PREGO_MASTER_KEY": hex.EncodeToString(make([]byte, 32)), "DATABASE_URL": pgtest.URL(t),
		"PREGO_AGENTGW_AGENT_BINARY": agent, "HCLOUD_ENDPOINT": "http://127.0.0.1:1/v1", "HCLOUD_TOKEN": "of-nobody", "PREGO_SIMULATED": "true",
		"PREGO_EGRESS_CIDRS": "127.0.0.1/32", "PREGO_NETWORK_RANGE": "none", "PREGO_DNS_RESOLVERS": "127.0.0.1:1", "PREGO_SITE_DOMAIN": "sites.test", "PREGO_DNS_ZONE": "sites.test", "TEMPORAL_ADDRESS": "127.0.0.1:1",
	})
	require.NoError(t, err)
	pool, err := pgxpool.New(context.Background(), cfg.DatabaseURL)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	out := map[string][]string{}
	for _, build := range []func(*Process, *workflows.Client) error{
		func(p *Process, runs *workflows.Client) error { _, err := p.API(runs); return err },
		func(p *Process, runs *workflows.Client) error { _, _, err := p.Gateway(runs); return err },
		func(p *Process, runs *workflows.Client) error {
			b, err := p.Worker(t.Context(), runs, workflows.Queues())
			if err == nil {
				p.exportRows(b.catalogs)
			}
			return err
		},
	} {
		p, err := New(t.Context(), Options{Config: cfg, Log: zap.NewNop(), Pool: pool})
		require.NoError(t, err)
		runs, err := p.Runs()
		require.NoError(t, err)
		t.Cleanup(runs.Temporal.Close)
		require.NoError(t, build(p, runs))
		found := make(chan *prometheus.Desc)
		go func() { p.reg.Describe(found); close(found) }()
		for d := range found {
			m := described.FindStringSubmatch(d.String())
			require.NotNil(t, m, d.String())
			out[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	require.Greater(t, len(out), 60)
	require.Equal(t, []string{"endpoint", "dimension"}, out[prego.MetricQuotaRejections])
	return out
}

// judge says whether expressions ask for what there is.
type judge map[string][]string

// scraped are the labels that a scrape adds.
var scraped = []string{"job", "instance"}

// labelsOf are the labels of a metric; one that Prometheus makes itself has those of the scrape.
func (j judge) labelsOf(name string) ([]string, bool) {
	if name == "up" {
		return scraped, true
	}
	if of, ok := j[name]; ok {
		return append(slices.Clone(of), scraped...), true
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if of, ok := j[strings.TrimSuffix(name, part)]; ok && strings.HasSuffix(name, part) {
			return append(append(slices.Clone(of), "le"), scraped...), true
		}
	}
	return nil, false
}

// check parses an expression, checks every metric and label in it, and returns the metrics
// that it asks for and the labels that its result has.
func (j judge) check(t *testing.T, what, text string) (metrics, result []string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	require.NoError(t, err, what)
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			of, ok := j.labelsOf(n.Name)
			require.True(t, ok, "%s: no process exports %s", what, n.Name)
			metrics = append(metrics, n.Name)
			for _, m := range n.LabelMatchers {
				require.True(t, m.Name == "__name__" || slices.Contains(of, m.Name), "%s: %s has no label %s", what, n.Name, m.Name)
			}
		case *parser.AggregateExpr:
			below := j.result(n.Expr)
			for _, l := range n.Grouping {
				require.Contains(t, below, l, "%s: what is grouped by %s has no such label", what, l)
			}
		}
		return nil
	})
	require.NotEmpty(t, metrics, what)
	return metrics, j.result(expr)
}

// result are the labels that the result of an expression has.
func (j judge) result(e parser.Expr) []string {
	switch e := e.(type) {
	case *parser.VectorSelector:
		of, _ := j.labelsOf(e.Name)
		return of
	case *parser.MatrixSelector:
		return j.result(e.VectorSelector)
	case *parser.SubqueryExpr:
		return j.result(e.Expr)
	case *parser.ParenExpr:
		return j.result(e.Expr)
	case *parser.UnaryExpr:
		return j.result(e.Expr)
	case *parser.AggregateExpr:
		if e.Op == parser.TOPK || e.Op == parser.BOTTOMK {
			return j.result(e.Expr)
		}
		if !e.Without {
			return e.Grouping
		}
		return slices.DeleteFunc(slices.Clone(j.result(e.Expr)), func(l string) bool { return slices.Contains(e.Grouping, l) })
	case *parser.Call:
		var out []string
		for _, a := range e.Args {
			if out = j.result(a); len(out) > 0 {
				break
			}
		}
		switch e.Func.Name {
		case "absent":
			return nil
		case "histogram_quantile":
			return slices.DeleteFunc(slices.Clone(out), func(l string) bool { return l == "le" })
		}
		return out
	case *parser.BinaryExpr:
		if out := j.result(e.LHS); len(out) > 0 {
			return out
		}
		return j.result(e.RHS)
	}
	return nil
}

// TestMetricsHaveTheLabelsThatAlertsKnow compares the names that code and alerts share with
// what is exported, and shows that the judge finds what it is for.
func TestMetricsHaveTheLabelsThatAlertsKnow(t *testing.T) {
	t.Parallel()
	j := judge(exported(t))
	for name, want := range prego.Metrics() {
		got, ok := j[name]
		require.True(t, ok, "no process exports %s", name)
		require.ElementsMatch(t, want, got, name)
	}
	_, ok := j.labelsOf("prego_org_quota_usage_ration")
	require.False(t, ok, "a metric that is misspelt")
	_, ok = j.labelsOf("prego_backups_late_bucket_total")
	require.False(t, ok)
	_, result := j.check(t, "sums", `histogram_quantile(0.9, sum by (le, role) (rate(prego_provision_seconds_bucket[5m]))) > 1`)
	require.Equal(t, []string{"role"}, result)
}
