package online

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego/agent/gateway"
	"github.com/prego/prego/agent/wire"
)

// pushEvery is how often metrics and logs are sent, plus or minus a tenth.
const pushEvery = 60 // seconds

// push sends metrics as OTLP and the agent's own log lines.
func (a *Agent) push(ctx context.Context, log *slog.Logger) error {
	for {
		if a.host.Pause(ctx, heartbeatInterval(pushEvery)) != nil {
			return nil //nolint:nilerr // asked to stop
		}
		s := a.current.Load()
		body, err := proto.Marshal(a.metricsRequest(a.sensors.read(ctx)))
		if err == nil {
			err = s.Gateway.Post(ctx, wire.PathMetrics, s.ID.Token, "application/x-protobuf", body, nil)
		}
		if err != nil {
			log.Debug("metrics not sent", "error", err.Error())
		}
		if err := a.sendLogs(ctx, s); err != nil {
			log.Debug("logs not sent", "error", err.Error())
		}
	}
}

// sendLogs sends the collected lines. Lines that did not arrive are kept for the next
// time, unless the gateway would refuse them again.
func (a *Agent) sendLogs(ctx context.Context, s *gateway.Session) error {
	lines, dropped := a.ship.drain()
	if len(lines) == 0 && dropped == 0 {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if dropped > 0 {
		_ = enc.Encode(wire.LogLine{At: time.Now(), Unit: logUnit, Level: slog.LevelWarn.String(), Message: fmt.Sprintf("%d earlier log lines were dropped", dropped)})
	}
	for _, l := range lines {
		_ = enc.Encode(l)
	}
	err := s.Gateway.Post(ctx, wire.PathLogs, s.ID.Token, "application/x-ndjson", b.Bytes(), nil)
	var refusal *gateway.Refusal
	switch {
	case err == nil:
	case errors.As(err, &refusal) && (refusal.Status == http.StatusBadRequest || refusal.Status == http.StatusRequestEntityTooLarge):
		a.ship.putBack(nil, dropped+len(lines))
	default:
		a.ship.putBack(lines, dropped)
	}
	return err
}

func (a *Agent) metricsRequest(r reading) *colmetrics.ExportMetricsServiceRequest {
	text := func(k, v string) *commonpb.KeyValue {
		return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
	}
	now := uint64(time.Now().UnixNano())
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

const (
	logUnit    = "prego-agent"
	maxShipped = 500
	// maxMessage bytes stay below the gateway's limit of 8 KiB per line even if JSON escapes each with six.
	maxMessage = 1024
)

// shipper keeps the agent's latest log lines for sending; when it is full, the oldest are dropped and counted.
type shipper struct {
	mu      sync.Mutex
	lines   []wire.LogLine
	dropped int
}

func (s *shipper) add(l wire.LogLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, l)
	s.trim()
}

// drain returns the lines, and how many were dropped before them.
func (s *shipper) drain() (lines []wire.LogLine, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines, dropped = s.lines, s.dropped
	s.lines, s.dropped = nil, 0
	return lines, dropped
}

// putBack returns lines to the front, after a failed send.
func (s *shipper) putBack(lines []wire.LogLine, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines, s.dropped = append(lines, s.lines...), s.dropped+dropped
	s.trim()
}

func (s *shipper) trim() {
	if over := len(s.lines) - maxShipped; over > 0 {
		s.lines, s.dropped = slices.Clone(s.lines[over:]), s.dropped+over
	}
}

// handler passes records on and keeps a copy of those to send.
func (s *shipper) handler(next slog.Handler) slog.Handler {
	return &shipHandler{Handler: next, ship: s}
}

type shipHandler struct {
	slog.Handler
	ship  *shipper
	attrs []slog.Attr
}

// Enabled is true for records to send, even if the host's own log leaves them out.
func (h *shipHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelInfo || h.Handler.Enabled(ctx, l)
}

func (h *shipHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		var text strings.Builder
		text.WriteString(r.Message)
		write := func(a slog.Attr) bool {
			text.WriteString(" " + a.String())
			return text.Len() < maxMessage
		}
		for _, a := range h.attrs {
			write(a)
		}
		r.Attrs(write)
		h.ship.add(wire.LogLine{At: r.Time, Unit: logUnit, Level: r.Level.String(), Message: truncateLine(text.String())})
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func truncateLine(s string) string {
	if len(s) > maxMessage {
		s = s[:maxMessage]
	}
	return strings.ToValidUTF8(s, "")
}

func (h *shipHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &shipHandler{Handler: h.Handler.WithAttrs(attrs), ship: h.ship, attrs: slices.Concat(h.attrs, attrs)}
}

func (h *shipHandler) WithGroup(name string) slog.Handler {
	return &shipHandler{Handler: h.Handler.WithGroup(name), ship: h.ship, attrs: h.attrs}
}
