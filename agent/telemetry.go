package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego/agent/wire"
)

// pushEvery is how often metrics and logs are sent.
const pushEvery = time.Minute

// push sends metrics as OTLP and the agent's own log lines.
func (a *Agent) push(ctx context.Context, log *slog.Logger) error {
	for {
		if pause(ctx, pushEvery) != nil {
			return nil //nolint:nilerr // asked to stop
		}
		id, gw := a.current()
		body, err := proto.Marshal(a.metricsRequest(a.sensors.read(ctx)))
		if err == nil {
			err = gw.post(ctx, wire.PathMetrics, id.Token, "application/x-protobuf", body, nil)
		}
		if err != nil {
			log.Debug("metrics not sent", "error", err.Error())
		}
		if lines := a.ship.take(); len(lines) > 0 {
			if err := gw.post(ctx, wire.PathLogs, id.Token, "application/x-ndjson", lines, nil); err != nil {
				log.Debug("logs not sent", "error", err.Error())
			}
		}
	}
}

func (a *Agent) metricsRequest(r reading) *colmetrics.ExportMetricsServiceRequest {
	text := func(k, v string) *commonpb.KeyValue {
		return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
	}
	now := uint64(time.Now().UnixNano()) //nolint:gosec // after 1970
	gauge := func(name, unit string, v float64) *metricspb.Metric {
		return &metricspb.Metric{Name: name, Unit: unit, Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{
			DataPoints: []*metricspb.NumberDataPoint{{TimeUnixNano: now, Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: v}}},
		}}}
	}
	return &colmetrics.ExportMetricsServiceRequest{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{
			text("service.name", "prego-agent"), text("service.version", a.version), text("host.id", a.host.Config.ServerID),
			text("prego.role", a.host.Config.Role), text("prego.region", a.host.Config.Region),
		}},
		ScopeMetrics: []*metricspb.ScopeMetrics{{
			Scope: &commonpb.InstrumentationScope{Name: "prego-agent"},
			Metrics: []*metricspb.Metric{
				gauge("system.cpu.load_average.1m", "1", r.load1),
				gauge("system.memory.utilization", "1", r.memoryPct/100),
				gauge("system.filesystem.utilization", "1", r.diskPct/100),
			},
		}},
	}}}
}

// shipper keeps the agent's last log lines for sending; when there are more than
// it holds, the oldest go and are counted.
type shipper struct {
	mu      sync.Mutex
	lines   []wire.LogLine
	dropped int
}

const maxShipped = 500

func newShipper(*Agent) *shipper { return &shipper{} }

func (s *shipper) add(l wire.LogLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == maxShipped {
		s.lines = s.lines[1:]
		s.dropped++
	}
	s.lines = append(s.lines, l)
}

func (s *shipper) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if s.dropped > 0 {
		_ = enc.Encode(wire.LogLine{At: time.Now(), Unit: "prego-agent", Level: "WARN", Message: "earlier log lines were dropped"})
	}
	for _, l := range s.lines {
		_ = enc.Encode(l)
	}
	s.lines, s.dropped = nil, 0
	return b.Bytes()
}

// handler passes records on and keeps a copy of those worth sending.
func (s *shipper) handler(next slog.Handler) slog.Handler {
	return &shipHandler{Handler: next, ship: s}
}

type shipHandler struct {
	slog.Handler
	ship *shipper
}

func (h *shipHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		var text strings.Builder
		text.WriteString(r.Message)
		r.Attrs(func(a slog.Attr) bool {
			text.WriteString(" " + a.String())
			return text.Len() < 4096
		})
		h.ship.add(wire.LogLine{At: r.Time, Unit: "prego-agent", Level: r.Level.String(), Message: text.String()})
	}
	return h.Handler.Handle(ctx, r)
}

func (h *shipHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &shipHandler{Handler: h.Handler.WithAttrs(attrs), ship: h.ship}
}

func (h *shipHandler) WithGroup(name string) slog.Handler {
	return &shipHandler{Handler: h.Handler.WithGroup(name), ship: h.ship}
}
