package agentgw

import (
	"testing"

	"github.com/stretchr/testify/require"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego"
)

// FuzzMetrics: metrics with any claim are forwarded under the certificate's host, named once, with the same number of
// points.
func FuzzMetrics(f *testing.F) {
	seed := &colmetrics.ExportMetricsServiceRequest{ResourceMetrics: []*metricspb.ResourceMetrics{{ScopeMetrics: []*metricspb.ScopeMetrics{{Metrics: []*metricspb.Metric{
		{Name: "a", Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: []*metricspb.NumberDataPoint{{}}}}}, {Name: "b"},
	}}}}, {}}}
	attribute(seed, "srv-another")
	wire, err := proto.Marshal(seed)
	require.NoError(f, err)
	f.Add(wire)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		var req colmetrics.ExportMetricsServiceRequest
		if proto.Unmarshal(body, &req) != nil {
			return
		}
		points := countPoints(&req)
		attribute(&req, prego.ServerID("srv-own"))
		out, err := proto.Marshal(&req)
		require.NoError(t, err)
		var again colmetrics.ExportMetricsServiceRequest
		require.NoError(t, proto.Unmarshal(out, &again))
		require.Equal(t, points, countPoints(&again))
		for _, r := range again.GetResourceMetrics() {
			named := 0
			for _, a := range r.GetResource().GetAttributes() {
				if a.GetKey() == hostID {
					named++
					require.Equal(t, "srv-own", a.GetValue().GetStringValue())
				}
			}
			require.Equal(t, 1, named)
		}
	})
}
