package online

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOnlyTracedCommandsAreTold: a header that is no trace's is not repeated in the log.
func TestOnlyTracedCommandsAreTold(t *testing.T) {
	t.Parallel()
	for header, told := range map[string]bool{
		"": false, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": true,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nfoo": false, "ff-short": false, "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01": false,
	} {
		var out bytes.Buffer
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/exec", http.NoBody)
		r.Header["Traceparent"] = []string{header}
		tellTraced(slog.New(slog.NewTextHandler(&out, nil)), r, "bench", "a-1", time.Now())
		require.Equal(t, told, out.Len() > 0, header)
		if told {
			require.Contains(t, out.String(), "trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331")
			require.Contains(t, out.String(), "kind=bench audit_id=a-1")
		}
	}
}
