package app

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

type inputSeries struct {
	Series string `yaml:"series"`
}

type alertSample struct {
	Labels string `yaml:"labels"`
}

// alertCase is a test of promtool.
type alertCase struct {
	Name   string        `yaml:"name"`
	Series []inputSeries `yaml:"input_series"`
	Exprs  []struct {
		Expr    string        `yaml:"expr"`
		Samples []alertSample `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
	Rules []struct {
		Alert  string `yaml:"alertname"`
		Alerts []any  `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
}

const deployed = "../deploy/"

var (
	inTemplate = regexp.MustCompile(`\$labels\.([a-z_]+)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
)

func readAlerts(t *testing.T) (rules []alertRule) {
	t.Helper()
	text, err := os.ReadFile(deployed + "alerts.yaml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Name  string      `yaml:"name"`
			Rules []alertRule `yaml:"rules"`
		} `yaml:"groups"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	require.NoError(t, dec.Decode(&file))
	for _, g := range file.Groups {
		require.NotEmpty(t, g.Name)
		rules = append(rules, g.Rules...)
	}
	return rules
}

// TestAlertsWatchWhatThereIs reads the rules as Prometheus does: a metric or a label that
// nobody makes would never fire, and nobody would know. Each says what to do and where that
// is written.
func TestAlertsWatchWhatThereIs(t *testing.T) {
	t.Parallel()
	j, names := judge(exported(t)), map[string]bool{}
	for _, r := range readAlerts(t) {
		require.Regexp(t, `^Prego[A-Za-z]+$`, r.Alert)
		require.False(t, names[r.Alert], "%s is there twice", r.Alert)
		names[r.Alert] = true
		require.Contains(t, []string{"info", "warning", "critical"}, r.Labels["severity"], r.Alert)
		for _, a := range []string{"summary", "description", "runbook"} {
			require.NotEmpty(t, r.Annotations[a], "%s: %s", r.Alert, a)
		}
		_, result := j.check(t, r.Alert, r.Expr)
		for _, s := range inTemplate.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
			require.Contains(t, result, s[1], "%s: the result has no such label", r.Alert)
		}
		page, anchor, ok := strings.Cut(r.Annotations["runbook"], "#")
		require.True(t, ok, r.Alert)
		text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(page)))
		require.NoError(t, err, r.Alert)
		require.Contains(t, anchors(string(text)), anchor, "%s: %s has no such section", r.Alert, page)
	}
	require.Greater(t, len(names), 50)
}

// anchors are the links to a page's sections.
func anchors(page string) (out []string) {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		out = append(out, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return out
}

// TestEveryAlertIsTried: make alerts tries for each that it fires, and that it does not
// although what it watches is there.
func TestEveryAlertIsTried(t *testing.T) {
	t.Parallel()
	var cases []alertCase
	for _, name := range []string{"alerts_test.yaml", "alerts_day_test.yaml"} {
		text, err := os.ReadFile(deployed + name)
		require.NoError(t, err)
		var file struct {
			Tests []alertCase `yaml:"tests"`
		}
		require.NoError(t, yaml.Unmarshal(text, &file))
		require.NotEmpty(t, file.Tests)
		cases = append(cases, file.Tests...)
	}
	selector := func(text string) *parser.VectorSelector {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		require.NoError(t, err, text)
		v, ok := expr.(*parser.VectorSelector)
		require.True(t, ok, "%s is more than a selector", text)
		return v
	}
	matches := func(v *parser.VectorSelector, alert string) bool {
		return v.Name == "ALERTS" && !slices.ContainsFunc(v.LabelMatchers, func(m *labels.Matcher) bool { return m.Name == "alertname" && !m.Matches(alert) })
	}
	j := judge(exported(t))
	var loud, silent []string
	for _, r := range readAlerts(t) {
		metrics, _ := j.check(t, r.Alert, r.Expr)
		fires, quiet := false, false
		for _, c := range cases {
			watched := slices.ContainsFunc(c.Series, func(s inputSeries) bool { return slices.Contains(metrics, selector(s.Series).Name) })
			for _, e := range c.Exprs {
				has := slices.ContainsFunc(e.Samples, func(s alertSample) bool { return strings.Contains(s.Labels, `alertname="`+r.Alert+`"`) })
				fires = fires || has
				quiet = quiet || watched && !has && matches(selector(e.Expr), r.Alert)
			}
			for _, a := range c.Rules {
				fires = fires || a.Alert == r.Alert && len(a.Alerts) > 0
				quiet = quiet || watched && a.Alert == r.Alert && len(a.Alerts) == 0
			}
		}
		if !fires {
			loud = append(loud, r.Alert)
		}
		if !quiet {
			silent = append(silent, r.Alert)
		}
	}
	require.Empty(t, loud, "no test has these fire")
	require.Empty(t, silent, "no test has these not fire although there is what they watch")
}
