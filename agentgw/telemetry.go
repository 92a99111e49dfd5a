package agentgw

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

const (
	protobufType = "application/x-protobuf"
	maxLogLines  = 1000
	maxLogLine   = 8 << 10
)

// takeMetrics takes OTLP/HTTP metrics, counts them and forwards them as they are.
func (g *Gateway) takeMetrics(c echo.Context) error {
	if !strings.HasPrefix(c.Request().Header.Get(echo.HeaderContentType), protobufType) {
		return prego.Errorf(prego.CodeUnsupportedMedia, "metrics are OTLP as %s", protobufType)
	}
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return err
	}
	var req colmetrics.ExportMetricsServiceRequest
	if err := proto.Unmarshal(body, &req); err != nil {
		return prego.Errorf(prego.CodeInvalidField, "the body is not an OTLP metrics request")
	}
	g.metrics.points.Add(float64(countPoints(&req)))
	if g.settings.OTLPEndpoint != "" {
		if err := g.forwardMetrics(c, body); err != nil {
			g.metrics.forwards.WithLabelValues("failed").Inc()
			g.log.Warn("metrics not forwarded", zap.Error(err))
			return prego.Errorf(prego.CodeNotReady, "the metrics backend does not take them right now")
		}
		g.metrics.forwards.WithLabelValues("forwarded").Inc()
	}
	answer, err := proto.Marshal(&colmetrics.ExportMetricsServiceResponse{})
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, protobufType, answer)
}

func (g *Gateway) forwardMetrics(c echo.Context, body []byte) error {
	req, err := http.NewRequestWithContext(c.Request().Context(), http.MethodPost, strings.TrimSuffix(g.settings.OTLPEndpoint, "/")+"/v1/metrics", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(echo.HeaderContentType, protobufType)
	resp, err := g.forward.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		return prego.Errorf(prego.CodeNotReady, "the metrics backend answered %d", resp.StatusCode)
	}
	return nil
}

func countPoints(req *colmetrics.ExportMetricsServiceRequest) int {
	n := 0
	for _, r := range req.GetResourceMetrics() {
		for _, s := range r.GetScopeMetrics() {
			for _, m := range s.GetMetrics() {
				switch d := m.GetData().(type) {
				case *metricspb.Metric_Gauge:
					n += len(d.Gauge.GetDataPoints())
				case *metricspb.Metric_Sum:
					n += len(d.Sum.GetDataPoints())
				case *metricspb.Metric_Histogram:
					n += len(d.Histogram.GetDataPoints())
				}
			}
		}
	}
	return n
}

// takeLogs takes lines of JSON and writes them to our own log, redacted.
func (g *Gateway) takeLogs(c echo.Context) error {
	id := callerOf(c).serverID
	scanner := bufio.NewScanner(c.Request().Body)
	scanner.Buffer(make([]byte, 0, maxLogLine), maxLogLine)
	var lines []wire.LogLine
	for scanner.Scan() {
		if len(bytes.TrimSpace(scanner.Bytes())) == 0 {
			continue
		}
		var l wire.LogLine
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			return prego.Errorf(prego.CodeInvalidJSON, "line %d is not a log line", len(lines)+1)
		}
		if lines = append(lines, l); len(lines) > maxLogLines {
			return prego.Errorf(prego.CodeBodyTooLarge, "at most %d lines at once", maxLogLines)
		}
	}
	if err := scanner.Err(); err != nil {
		return prego.Errorf(prego.CodeBodyTooLarge, "a log line may hold at most %d bytes", maxLogLine)
	}
	for _, l := range lines {
		g.log.Info("host log", zap.String("server_id", id), zap.Time("at", l.At), zap.String("unit", prego.Redact(l.Unit)),
			zap.String("level", l.Level), zap.String("message", prego.Redact(l.Message)))
	}
	g.metrics.logs.Add(float64(len(lines)))
	return c.NoContent(http.StatusNoContent)
}

// backupReport notes that a bench backup ended.
func (g *Gateway) backupReport(c echo.Context) error {
	var in wire.BackupReport
	if err := decode(c, &in); err != nil {
		return err
	}
	if in.Status != "succeeded" && in.Status != "failed" {
		return prego.Invalid("status", "must be succeeded or failed")
	}
	if in.Site == "" || len(in.Site) > 255 {
		return prego.Invalid("site", "is required, at most 255 characters")
	}
	g.metrics.backups.WithLabelValues(in.Status).Inc()
	g.log.Info("backup report", zap.String("server_id", callerOf(c).serverID), zap.String("site", in.Site), zap.String("status", in.Status), zap.Int64("bytes", in.Bytes))
	return c.NoContent(http.StatusNoContent)
}
