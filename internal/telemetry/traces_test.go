package telemetry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// TestNothingIsTracedUnlessConfigured: no exporter, no interceptor, no tracer of statements, no
// header.
func TestNothingIsTracedUnlessConfigured(t *testing.T) {
	t.Parallel()
	off, err := NewTraces(t.Context(), TraceConfig{Ratio: 1, Process: "api"})
	require.NoError(t, err)
	require.Nil(t, off)
	require.Nil(t, off.Statements())
	interceptors, err := off.Interceptors()
	require.NoError(t, err)
	require.Empty(t, interceptors)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/exec", http.NoBody)
	off.Call(r, "web-1", "bench")(nil)
	require.Empty(t, r.Header)
	ctx, end := off.Answer(r)
	require.Equal(t, r.Context(), ctx)
	end(http.MethodPost, "/", http.StatusOK)
	off.Close()
}

// TestSpansAreOneTrace: spans of a caller, the API, a statement and a command, without secrets.
func TestSpansAreOneTrace(t *testing.T) {
	t.Parallel()
	kept := tracetest.NewInMemoryExporter()
	traces := newTraces(sdktrace.NewSimpleSpanProcessor(kept), TraceConfig{Ratio: 0, Process: "api", Environment: "e"})
	defer traces.Close()
	const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/tenants?token=no", http.NoBody)
	r.Header.Set("Traceparent", caller) // it is traced, regardless of the ratio
	ctx, end := traces.Answer(r)
	s, ok := traces.Statements().(interface {
		pgx.QueryTracer
		pgx.BatchTracer
	})
	require.True(t, ok)
	asked := s.TraceQueryStart(ctx, nil, pgx.TraceQueryStartData{SQL: "SELECT a\n  FROM b WHERE c = $1", Args: []any{"secret"}})
	s.TraceQueryEnd(asked, nil, pgx.TraceQueryEndData{Err: errors.New("Bearer abcdefghijklmnopqrstuvwxyz")})
	out := httptest.NewRequestWithContext(ctx, http.MethodPost, "/exec", http.NoBody)
	called := traces.Call(out, "web-1", "bench")
	require.Regexp(t, "^00-0af7651916cd43dd8448eb211c80319c-[0-9a-f]{16}-01$", out.Header.Get("Traceparent"))
	called(nil)
	end(http.MethodPost, "/v1/tenants", http.StatusAccepted)
	// What belongs to no request makes no span.
	s.TraceQueryEnd(s.TraceQueryStart(context.Background(), nil, pgx.TraceQueryStartData{SQL: "SELECT 1"}), nil, pgx.TraceQueryEndData{})

	var names []string
	for _, span := range kept.GetSpans() {
		names = append(names, span.Name)
		require.Equal(t, "0af7651916cd43dd8448eb211c80319c", span.SpanContext.TraceID().String())
		for _, a := range span.Attributes {
			require.NotContains(t, a.Value.String(), "secret")
			require.NotContains(t, a.Value.String(), "token=")
		}
		require.NotContains(t, span.Status.Description, "abcdefghijklmnopqrstuvwxyz")
	}
	require.Equal(t, []string{"postgres select", "agent bench", "POST /v1/tenants"}, names)
}
