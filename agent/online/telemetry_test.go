package online

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
	"github.com/prego/prego/lab/agenttest"
)

func TestMetricsAndLogsAreSentEveryMinute(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	k := stopTime(a.host)
	log := a.Logger()
	agenttest.Loop(t, func(ctx context.Context) error { return a.push(ctx, log) })
	require.InDelta(t, 60, k.next(t).Seconds(), 6)
	require.Empty(t, g.Seen().Metrics)
	log.With("unit", "x").Warn("something happened", "n", 1)
	log.Debug("this stays on the host")
	k.end <- struct{}{}
	k.next(t)

	require.Len(t, g.Seen().Metrics, 1)
	var m colmetrics.ExportMetricsServiceRequest
	require.NoError(t, proto.Unmarshal(g.Seen().Metrics[0], &m))
	attributes := map[string]string{}
	for _, kv := range m.ResourceMetrics[0].Resource.Attributes {
		attributes[kv.Key] = kv.Value.GetStringValue()
	}
	require.Equal(t, map[string]string{"service.name": "prego-agent", "service.version": "v-test", "host.id": agenttest.Server, "prego.role": "app", "prego.region": "eu"}, attributes)
	for _, metric := range m.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		p := metric.GetGauge().DataPoints[0]
		require.WithinDuration(t, time.Now(), time.Unix(0, int64(p.TimeUnixNano)), time.Minute)
		if metric.Name != "system.cpu.load_average.1m" {
			require.Positive(t, p.GetAsDouble(), metric.Name)
			require.LessOrEqual(t, p.GetAsDouble(), 1.0, metric.Name)
		}
	}
	require.Len(t, g.Seen().Logs, 1)
	require.Equal(t, "something happened unit=x n=1", g.Seen().Logs[0].Message)
	require.Equal(t, "WARN", g.Seen().Logs[0].Level)

	k.end <- struct{}{}
	k.next(t)
	require.Len(t, g.Seen().Metrics, 2)
	require.Equal(t, 1, g.Seen().Calls[wire.PathLogs], "nothing new, nothing sent")
}

func TestLogsWaitForTheGatewayToComeBack(t *testing.T) {
	t.Parallel()
	for status, kept := range map[int]bool{503: true, 429: true, 401: true, 400: false, 413: false} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			g := agenttest.NewGateway(t)
			a := enrolled(t, g)
			g.Fault(wire.PathLogs, func(n int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
				if n > 1 {
					return false
				}
				a.Logger().Info("during")
				agenttest.Refuse(w, status, "some_code")
				return true
			})
			a.Logger().Info("before")
			require.ErrorContains(t, a.sendLogs(t.Context(), a.current.Load()), fmt.Sprintf("the gateway answered %d some_code", status))
			require.Equal(t, 1, g.Hit(wire.PathLogs))
			require.NoError(t, a.sendLogs(t.Context(), a.current.Load()))
			var got []string
			for _, l := range g.Seen().Logs {
				got = append(got, l.Message)
			}
			if kept {
				require.Equal(t, []string{"before", "during"}, got)
			} else {
				require.Equal(t, []string{"1 earlier log lines were dropped", "during"}, got,
					"permanently refused lines must not block the others")
			}
		})
	}
}

func TestLogLinesAreBounded(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	log := a.Logger()
	for n := range maxShipped + 20 {
		log.Info("line", "n", n)
	}
	lines, dropped := a.ship.drain()
	a.ship.putBack(lines, dropped)
	log.Info("one more")
	require.NoError(t, a.sendLogs(t.Context(), a.current.Load()))
	require.Equal(t, "21 earlier log lines were dropped", g.Seen().Logs[0].Message)
	require.Len(t, g.Seen().Logs, maxShipped+1)
	require.Equal(t, "line n=21", g.Seen().Logs[1].Message, "the oldest go first")
	require.Equal(t, "one more", g.Seen().Logs[maxShipped].Message)

	log.Info(strings.Repeat("\x01", 5000), "error", strings.Repeat("é", 5000))
	lines, _ = a.ship.drain()
	require.LessOrEqual(t, len(lines[0].Message), maxMessage)
	log.Info("x", "error", strings.Repeat("é", 5000))
	lines, _ = a.ship.drain()
	require.LessOrEqual(t, len(lines[0].Message), maxMessage)
	require.True(t, utf8.ValidString(lines[0].Message), "not cut within a character")
	require.Equal(t, slog.LevelInfo.String(), lines[0].Level)
}
