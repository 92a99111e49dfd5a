package benchjson_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/benchjson"
)

func TestRecordAppendsALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	t.Setenv(benchjson.EnvFile, path)
	benchjson.Record(t, "server_alone", 50, "ms", 20)
	benchjson.Record(t, "server_events", 29, "events", 0)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	first, second, _ := strings.Cut(string(got), "\n")
	require.JSONEq(t, `{"name":"server_alone","value":50,"unit":"ms","bare":20,"ratio":2.5}`, first)
	require.JSONEq(t, `{"name":"server_events","value":29,"unit":"events","bare":null,"ratio":null}`, second)
}

func TestRecordWithoutAFileOnlyPrints(t *testing.T) {
	t.Setenv(benchjson.EnvFile, "")
	benchjson.Record(t, "server_alone", 50, "ms", 20)
}
