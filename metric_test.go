package prego

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

var (
	metricInExpr = regexp.MustCompile(`prego_[a-z0-9_]+`)
	selectors    = regexp.MustCompile(`(prego_[a-z0-9_]+)\{([^}]*)\}`)
	matcher      = regexp.MustCompile(`^\s*([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*$`)
	grouping     = regexp.MustCompile(`by \(([^)]*)\) \((?:(?:rate|increase)\()?(prego_[a-z0-9_]+)`)
	duration     = regexp.MustCompile(`^[1-9][0-9]*[smhd]$`)
	inTemplate   = regexp.MustCompile(`\$labels\.([a-z_]+)`)
)

// labelsOf are the labels of a metric in an expression, nil of one that there is not. A
// histogram has three names, and its buckets a label more.
func labelsOf(name string) []string {
	known := Metrics()
	if labels, ok := known[name]; ok {
		return append([]string{}, labels...)
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && strings.HasSuffix(base, "_seconds") {
			if labels, ok := known[base]; ok {
				return append([]string{"le"}, labels...)
			}
		}
	}
	return nil
}

func balanced(expr string) bool {
	var open []rune
	pairs := map[rune]rune{')': '(', '}': '{', ']': '['}
	quoted := false
	for _, r := range expr {
		switch {
		case r == '"':
			quoted = !quoted
		case quoted:
		case strings.ContainsRune("({[", r):
			open = append(open, r)
		case strings.ContainsRune(")}]", r):
			if len(open) == 0 || open[len(open)-1] != pairs[r] {
				return false
			}
			open = open[:len(open)-1]
		}
	}
	return len(open) == 0 && !quoted
}

// TestAlertsWatchWhatThereIs reads the rules as Prometheus would: a metric or a label that
// nobody makes would never fire, and nobody would know.
func TestAlertsWatchWhatThereIs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("deploy/alerts.yaml")
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
	names, watched := map[string]bool{}, map[string]bool{}
	for _, g := range file.Groups {
		require.NotEmpty(t, g.Name)
		for _, r := range g.Rules {
			require.Regexp(t, `^Prego[A-Za-z]+$`, r.Alert)
			require.False(t, names[r.Alert], "%s is there twice", r.Alert)
			names[r.Alert] = true
			require.True(t, balanced(r.Expr), r.Alert)
			require.Contains(t, []string{"info", "warning", "critical"}, r.Labels["severity"], r.Alert)
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.NotEmpty(t, r.Annotations["description"], r.Alert)
			if r.For != "" {
				require.Regexp(t, duration, r.For, r.Alert)
			}
			used := metricInExpr.FindAllString(r.Expr, -1)
			require.NotEmpty(t, used, r.Alert)
			kept := map[string]bool{} // labels that the expression's result has
			for _, m := range used {
				require.NotNil(t, labelsOf(m), "%s: there is no metric %s", r.Alert, m)
				watched[m] = true
			}
			for _, s := range selectors.FindAllStringSubmatch(r.Expr, -1) {
				for m := range strings.SplitSeq(s[2], ",") {
					parts := matcher.FindStringSubmatch(m)
					require.NotNil(t, parts, "%s: %s", r.Alert, m)
					require.Contains(t, labelsOf(s[1]), parts[1], "%s: %s has no such label", r.Alert, s[1])
					if strings.HasSuffix(parts[2], "~") {
						_, err := regexp.Compile(parts[3])
						require.NoError(t, err, r.Alert)
					}
				}
			}
			for _, s := range grouping.FindAllStringSubmatch(r.Expr, -1) {
				for l := range strings.SplitSeq(s[1], ",") {
					require.Contains(t, labelsOf(s[2]), strings.TrimSpace(l), "%s: %s has no such label", r.Alert, s[2])
					kept[strings.TrimSpace(l)] = true
				}
			}
			for _, s := range inTemplate.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
				require.True(t, kept[s[1]], "%s: label %s is not in the result", r.Alert, s[1])
			}
		}
	}
	for _, m := range []string{MetricQuotaRejections, MetricOrgQuotaRatio, MetricGroupsUnscheduled, MetricInstanceSchedule + "_bucket", MetricSitesByStorage, MetricUnmeasured} {
		require.True(t, watched[m], "nothing watches %s", m)
	}
	require.Nil(t, labelsOf("prego_org_quota_usage_ration"), "a metric that is misspelt is caught")
	require.False(t, slices.Contains(labelsOf(MetricOrgQuotaRatio), "endpoint"))
}
