package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego/agent/wire"
)

func TestMetricsAndLogsAreSentEveryMinute(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := enrolled(t, g)
	k := stopTime(a.host)
	log := a.Logger()
	run(t, func(ctx context.Context) error { return a.push(ctx, log) })
	require.InDelta(t, 60, k.next(t).Seconds(), 6)
	require.Empty(t, g.seen().metrics)
	log.With("unit", "x").Warn("something happened", "n", 1)
	log.Debug("this stays on the host")
	k.end <- struct{}{}
	k.next(t)

	require.Len(t, g.seen().metrics, 1)
	var m colmetrics.ExportMetricsServiceRequest
	require.NoError(t, proto.Unmarshal(g.seen().metrics[0], &m))
	attributes := map[string]string{}
	for _, kv := range m.ResourceMetrics[0].Resource.Attributes {
		attributes[kv.Key] = kv.Value.GetStringValue()
	}
	require.Equal(t, map[string]string{"service.name": "prego-agent", "service.version": "v-test", "host.id": testServer, "prego.role": "app", "prego.region": "eu"}, attributes)
	for _, metric := range m.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		p := metric.GetGauge().DataPoints[0]
		require.WithinDuration(t, time.Now(), time.Unix(0, int64(p.TimeUnixNano)), time.Minute)
		if metric.Name != "system.cpu.load_average.1m" {
			require.Positive(t, p.GetAsDouble(), metric.Name)
			require.LessOrEqual(t, p.GetAsDouble(), 1.0, metric.Name)
		}
	}
	require.Len(t, g.seen().logs, 1)
	require.Equal(t, "something happened unit=x n=1", g.seen().logs[0].Message)
	require.Equal(t, "WARN", g.seen().logs[0].Level)

	k.end <- struct{}{}
	k.next(t)
	require.Len(t, g.seen().metrics, 2)
	require.Equal(t, 1, g.seen().calls[wire.PathLogs], "nothing new, nothing sent")
}

func TestLogsWaitForTheGatewayToComeBack(t *testing.T) {
	t.Parallel()
	for status, kept := range map[int]bool{503: true, 429: true, 401: true, 400: false, 413: false} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			g := newTestGateway(t)
			a := enrolled(t, g)
			g.fault(wire.PathLogs, func(n int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
				if n > 1 {
					return false
				}
				a.Logger().Info("during")
				refuse(w, status, "some_code")
				return true
			})
			a.Logger().Info("before")
			require.ErrorContains(t, a.sendLogs(t.Context(), a.current.Load()), fmt.Sprintf("the gateway answered %d some_code", status))
			require.Equal(t, 1, g.hit(wire.PathLogs))
			require.NoError(t, a.sendLogs(t.Context(), a.current.Load()))
			var got []string
			for _, l := range g.seen().logs {
				got = append(got, l.Message)
			}
			if kept {
				require.Equal(t, []string{"before", "during"}, got)
			} else {
				require.Equal(t, []string{"1 earlier log lines were dropped", "during"}, got, "lines that are refused for good must not block the others")
			}
		})
	}
}

func TestLogLinesAreBounded(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := enrolled(t, g)
	log := a.Logger()
	for n := range maxShipped + 20 {
		log.Info("line", "n", n)
	}
	lines, dropped := a.ship.drain()
	a.ship.putBack(lines, dropped)
	log.Info("one more")
	require.NoError(t, a.sendLogs(t.Context(), a.current.Load()))
	require.Equal(t, "21 earlier log lines were dropped", g.seen().logs[0].Message)
	require.Len(t, g.seen().logs, maxShipped+1)
	require.Equal(t, "line n=21", g.seen().logs[1].Message, "the oldest go first")
	require.Equal(t, "one more", g.seen().logs[maxShipped].Message)

	log.Info(strings.Repeat("\x01", 5000), "error", strings.Repeat("é", 5000))
	lines, _ = a.ship.drain()
	require.LessOrEqual(t, len(lines[0].Message), maxMessage)
	log.Info("x", "error", strings.Repeat("é", 5000))
	lines, _ = a.ship.drain()
	require.LessOrEqual(t, len(lines[0].Message), maxMessage)
	require.True(t, utf8.ValidString(lines[0].Message), "not cut within a character")
	require.Equal(t, slog.LevelInfo.String(), lines[0].Level)
}
