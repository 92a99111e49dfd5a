package online

import (
	"log/slog"
	"net/http"
	"regexp"
	"time"
)

// traceParent is W3C's header: version, trace, span, flags.
var traceParent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)

// tellTraced logs a command that is part of a trace, with the ids that find it there. Hosts send no spans: the line
// goes to the gateway with the others.
func tellTraced(log *slog.Logger, r *http.Request, kind, auditID string, began time.Time) {
	if m := traceParent.FindStringSubmatch(r.Header.Get("Traceparent")); m != nil {
		log.Info("command of a traced request", "kind", kind, "audit_id", auditID, "trace_id", m[1], "span_id", m[2], "took", time.Since(began).String())
	}
}
