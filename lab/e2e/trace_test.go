package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// receiver keeps spans that are sent to it by OTLP, each with the process that made it.
type receiver struct {
	t     *testing.T
	mu    sync.Mutex
	spans []receivedSpan
}

type receivedSpan struct {
	process string
	*tracepb.Span
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var in collectorpb.ExportTraceServiceRequest
	if err != nil || q.URL.Path != "/v1/traces" || proto.Unmarshal(body, &in) != nil {
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range in.GetResourceSpans() {
		process := ""
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				process = a.GetValue().GetStringValue()
			}
		}
		for _, s := range of.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				r.spans = append(r.spans, receivedSpan{process, span})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// of are the spans of a trace.
func (r *receiver) of(trace string) (out []receivedSpan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			out = append(out, s)
		}
	}
	return out
}

// TestARequestIsOneTrace asks for a tenant as a part of a caller's trace. API, run, steps,
// statements and commands are in it, each below another one, and the host's log names it.
func TestARequestIsOneTrace(t *testing.T) {
	t.Parallel()
	spans := &receiver{t: t}
	at := httptest.NewServer(spans)
	t.Cleanup(at.Close)
	c := newCell(t, options{vars: func() map[string]string {
		vars := sharedVars()
		vars["OTEL_EXPORTER_OTLP_ENDPOINT"] = at.URL
		return vars
	}()})
	c.org("acme", "")
	app := c.sharedFleet(1)
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	c.headers = map[string]string{"Traceparent": "00-" + trace + "-" + span + "-01"}
	id := c.tenant("alpha", prego.PlanStarter, nil)
	c.headers = nil
	c.settledTenant(id, tenant.Active)

	wants := map[string]string{
		"POST /v1/tenants": "prego-api", "postgres select": "prego-api", "StartWorkflow:ProvisionTenant": "prego-api",
		"RunWorkflow:ProvisionTenant": "prego-worker", "StartActivity:BuildTenant": "prego-worker", "RunActivity:BuildTenant": "prego-worker", "agent bench": "prego-worker",
	}
	var got []receivedSpan
	names := map[string]string{}
	if !assert.Eventually(t, func() bool {
		got = spans.of(trace)
		for _, s := range got {
			if want := wants[s.GetName()]; want == s.process || want == "" {
				names[s.GetName()] = s.process
			}
		}
		for name := range wants {
			if names[name] == "" {
				return false
			}
		}
		return true
	}, patience, 100*time.Millisecond) {
		require.Subset(t, names, wants)
	}
	byID := map[string]receivedSpan{span: {}}
	for _, s := range got {
		byID[hex.EncodeToString(s.GetSpanId())] = s
	}
	above := func(s receivedSpan) (names []string) {
		for s.Span != nil {
			names = append(names, s.GetName())
			s = byID[hex.EncodeToString(s.GetParentSpanId())]
		}
		return names
	}
	var commands []string
	for _, s := range got {
		require.Contains(t, byID, hex.EncodeToString(s.GetParentSpanId()), "%s hangs in the air", s.GetName())
		if s.GetName() == "agent bench" {
			require.Equal(t, []string{"agent bench", "RunActivity:BuildTenant", "StartActivity:BuildTenant", "RunWorkflow:ProvisionTenant", "StartWorkflow:ProvisionTenant", "POST /v1/tenants"}, above(s))
			commands = append(commands, hex.EncodeToString(s.GetSpanId()))
		}
		for _, secret := range []string{c.masterKey, c.operator, c.vars["HCLOUD_TOKEN"]} {
			require.NotContains(t, s.String(), secret)
		}
	}
	require.NotEmpty(t, commands)
	var logged string
	for _, h := range c.sim.Hosts() {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(h.Root), "agent.log"))
		require.NoError(t, err)
		logged += string(b)
	}
	for _, command := range commands {
		require.True(t, strings.Contains(logged, trace) && strings.Contains(logged, command), "no host logged the command %s on %s", command, app)
	}
}
