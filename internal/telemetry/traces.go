package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/contrib/opentelemetry"
	"go.temporal.io/sdk/interceptor"

	"github.com/prego/prego"
)

// TraceConfig configures the receiver of traces and their labels.
type TraceConfig struct {
	Endpoint    string  // base URL of a receiver that speaks OTLP over HTTP; "" for no traces
	Ratio       float64 // the part of traces that is kept
	Process     string  // api, agentgw or worker
	Environment string
	Version     string
}

// Traces makes spans and sends them. A nil *Traces makes none: nothing runs, and nothing is added to requests.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// scope is the name of what makes the spans.
const scope = "github.com/prego/prego"

// NewTraces starts sending; it returns nil without a receiver. A receiver that does not answer costs spans, but no
// request.
func NewTraces(ctx context.Context, cfg TraceConfig) (*Traces, error) {
	if cfg.Endpoint == "" {
		return nil, nil //nolint:nilnil // nil is a Traces that makes none
	}
	url := strings.TrimSuffix(cfg.Endpoint, "/") + "/v1/traces"
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(url))
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	return newTraces(sdktrace.NewBatchSpanProcessor(exporter, sdktrace.WithBatchTimeout(time.Second)), cfg), nil
}

func newTraces(to sdktrace.SpanProcessor, cfg TraceConfig) *Traces {
	p := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(to), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Ratio))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.namespace", "prego"), attribute.String("service.name", "prego-"+cfg.Process),
			attribute.String("service.version", cfg.Version), attribute.String("deployment.environment.name", cfg.Environment),
		)),
	)
	return &Traces{provider: p, tracer: p.Tracer(scope)}
}

// Close sends the remaining spans.
func (t *Traces) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = t.provider.Shutdown(ctx)
}

// Interceptors have Temporal's client and its workers make spans of runs and steps. They add headers and no commands,
// so that running workflows can continue.
func (t *Traces) Interceptors() ([]interceptor.ClientInterceptor, error) {
	if t == nil {
		return nil, nil
	}
	i, err := opentelemetry.NewTracingInterceptor(opentelemetry.TracerOptions{
		Tracer: t.tracer, TextMapPropagator: propagation.TraceContext{}, DisableBaggage: true,
		DisableQueryTracing: true, AllowInvalidParentSpans: true,
	})
	if err != nil {
		return nil, fmt.Errorf("traces of runs: %w", err)
	}
	return []interceptor.ClientInterceptor{i}, nil
}

// Statements makes spans of Postgres statements that are part of a recorded span: a statement's text without its
// values, which are parameters. It returns nil for no traces.
func (t *Traces) Statements() pgx.QueryTracer {
	if t == nil {
		return nil
	}
	return statements{t.tracer}
}

type statements struct{ tracer trace.Tracer }

// maxStatement bounds how much of a statement is in its span.
const maxStatement = 200

func (s statements) begin(ctx context.Context, name string, attrs ...attribute.KeyValue) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx // looks and other work in the background
	}
	ctx, _ = s.tracer.Start(ctx, name, //nolint:spancheck // end ends it
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(append(attrs, attribute.String("db.system.name", "postgresql"))...))
	return context.WithValue(ctx, statementKey{}, true)
}

type statementKey struct{}

func (statements) end(ctx context.Context, err error) {
	if ctx.Value(statementKey{}) == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	Failed(span, err)
	span.End()
}

// TraceQueryStart implements pgx.QueryTracer.
func (s statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	text := strings.Join(strings.Fields(q.SQL), " ")
	verb, _, _ := strings.Cut(text, " ")
	if len(text) > maxStatement {
		text = strings.ToValidUTF8(text[:maxStatement], "")
	}
	return s.begin(ctx, "postgres "+strings.ToLower(verb), attribute.String("db.query.text", prego.Redact(text)))
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	s.end(ctx, q.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (s statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	return s.begin(ctx, "postgres batch", attribute.Int("db.operation.batch.size", b.Batch.Len()))
}

// TraceBatchQuery implements pgx.BatchTracer.
func (statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (s statements) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchEndData) {
	s.end(ctx, b.Err)
}

// Failed marks a span as failed, unless err is nil. The error's text may quote a host or a caller, and is redacted.
func Failed(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, prego.Redact(err.Error()))
	}
}

// Call starts the span of a command to a host and gives it to the request. The returned function ends it.
func (t *Traces) Call(r *http.Request, serverID prego.ServerID, kind string) (end func(error)) {
	if t == nil {
		return func(error) {}
	}
	ctx, span := t.tracer.Start(r.Context(), "agent "+kind, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("prego.server_id", string(serverID)),
			attribute.String("prego.command.kind", kind)))
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	return func(err error) {
		Failed(span, err)
		span.End()
	}
}

// Answer starts the span of a request to the API: a part of the caller's trace if it names one. The returned function
// names the route and ends the span.
func (t *Traces) Answer(r *http.Request) (ctx context.Context, end func(method, route string, status int)) {
	if t == nil {
		return r.Context(), func(string, string, int) {}
	}
	ctx = propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	//nolint:spancheck // the returned function ends it
	ctx, span := t.tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(method, route string, status int) { //nolint:spancheck // see above
		span.SetName(method + " " + route)
		span.SetAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route),
			attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
		span.End()
	}
}
