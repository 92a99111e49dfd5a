package agentgw

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
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

// takeMetrics accepts OTLP/HTTP metrics, counts them and forwards them unchanged.
func (g *Gateway) takeMetrics(c echo.Context) error {
	if !strings.HasPrefix(c.Request().Header.Get(echo.HeaderContentType), protobufType) {
		return prego.Errorf(prego.CodeUnsupportedMedia, "metrics must be OTLP as %s", protobufType)
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
		attribute(&req, callerOf(c).serverID)
		outcome, err := g.forwardMetrics(c.Request().Context(), &req)
		g.metrics.forwards.WithLabelValues(outcome).Inc()
		if err != nil {
			g.log.Warn("metrics not forwarded", zap.String("outcome", outcome), zap.Error(err))
		}
		if outcome == forwardFailed {
			return prego.Errorf(prego.CodeNotReady, "the metrics backend does not accept metrics right now")
		}
	}
	answer, err := proto.Marshal(&colmetrics.ExportMetricsServiceResponse{})
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, protobufType, answer)
}

// hostID is the resource attribute that names the host of the metrics.
const hostID = "host.id"

// attribute assigns metrics to the server of the client certificate, regardless of their claim.
func attribute(req *colmetrics.ExportMetricsServiceRequest, serverID prego.ServerID) {
	name := &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: string(serverID)}}
	id := &commonpb.KeyValue{Key: hostID, Value: name}
	for _, r := range req.GetResourceMetrics() {
		if r.Resource == nil {
			r.Resource = &resourcepb.Resource{}
		}
		r.Resource.Attributes = slices.DeleteFunc(r.Resource.Attributes, func(a *commonpb.KeyValue) bool {
			return a.GetKey() == hostID
		})
		r.Resource.Attributes = append(r.Resource.Attributes, id)
	}
}

// Outcomes of forwarding metrics. Rejected metrics are not sent again, because the backend would reject them again.
const (
	forwardTaken    = "forwarded"
	forwardRejected = "rejected"
	forwardFailed   = "failed"
)

func (g *Gateway) forwardMetrics(
	ctx context.Context, metrics *colmetrics.ExportMetricsServiceRequest,
) (outcome string, err error) {
	body, err := proto.Marshal(metrics)
	if err != nil {
		return forwardRejected, err
	}
	url := strings.TrimSuffix(g.settings.OTLPEndpoint, "/") + "/v1/metrics"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return forwardFailed, err
	}
	req.Header.Set(echo.HeaderContentType, protobufType)
	resp, err := g.forward.Do(req)
	if err != nil {
		return forwardFailed, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is reused
	err = fmt.Errorf("the metrics backend answered %d", resp.StatusCode)
	switch {
	case resp.StatusCode/100 == 2:
		return forwardTaken, nil
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout:
		return forwardFailed, err
	case resp.StatusCode/100 == 4:
		return forwardRejected, err
	}
	return forwardFailed, err
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
				case *metricspb.Metric_ExponentialHistogram:
					n += len(d.ExponentialHistogram.GetDataPoints())
				case *metricspb.Metric_Summary:
					n += len(d.Summary.GetDataPoints())
				}
			}
		}
	}
	return n
}

// takeLogs accepts lines of JSON and writes them to our own log, redacted.
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
			return prego.Errorf(prego.CodeBodyTooLarge, "at most %d lines per request", maxLogLines)
		}
	}
	var tooLarge *http.MaxBytesError
	switch err := scanner.Err(); {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, bufio.ErrTooLong):
		return prego.Errorf(prego.CodeBodyTooLarge, "a log line may hold at most %d bytes", maxLogLine)
	case err != nil:
		return prego.Errorf(prego.CodeInvalidJSON, "the body ended early")
	}
	for _, l := range lines {
		g.log.Info("host log", zap.String("server_id", string(id)), zap.Time("at", l.At), zap.String("unit", prego.Redact(l.Unit)),
			zap.String("level", prego.Redact(l.Level)), zap.String("message", prego.Redact(l.Message)))
	}
	g.metrics.logs.Add(float64(len(lines)))
	return c.NoContent(http.StatusNoContent)
}

// backupReport records that a bench backup ended.
func (g *Gateway) backupReport(ctx context.Context, who caller, in wire.BackupReport) (any, error) {
	if in.Status != "succeeded" && in.Status != "failed" {
		return nil, prego.Invalid("status", "must be succeeded or failed")
	}
	if in.Site == "" || len(in.Site) > 255 {
		return nil, prego.Invalid("site", "is required, at most 255 characters")
	}
	if in.Bytes < 0 {
		return nil, prego.Invalid("bytes", "must not be negative")
	}
	g.metrics.backups.WithLabelValues(in.Status).Inc()
	g.log.Info("backup report", zap.String("server_id", string(who.serverID)),
		zap.String("site", prego.Redact(in.Site)), zap.String("status", in.Status), zap.Int64("bytes", in.Bytes))
	return nothing{}, nil
}
