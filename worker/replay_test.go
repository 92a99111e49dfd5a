package worker

import (
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// TestRecordedHistoriesReplay replays what runs did when their histories were recorded. A change that would break a
// run under way fails here.
func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../workflows/testdata/histories/*.json")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 70, "record them with go test ./lab/e2e -run 'TestRecord.*Histories' -record")
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".json"), func(t *testing.T) {
			t.Parallel()
			r, err := Replayer()
			require.NoError(t, err)
			require.NoError(t, r.ReplayWorkflowHistoryFromJSONFile(nil, f))
		})
	}
}

// registered keeps what is registered.
type registered struct {
	worker.WorkflowRegistry
	workflows map[string]reflect.Type
}

func (r *registered) RegisterWorkflow(w any) {
	name := runtime.FuncForPC(reflect.ValueOf(w).Pointer()).Name()
	r.workflows[name[strings.LastIndexByte(name, '.')+1:]] = reflect.TypeOf(w)
}

func (r *registered) RegisterWorkflowWithOptions(w any, o workflow.RegisterOptions) {
	r.workflows[o.Name] = reflect.TypeOf(w)
}

// TestEveryRunLeavesAResult: people who open a completed run in Temporal's UI see what it came to.
func TestEveryRunLeavesAResult(t *testing.T) {
	t.Parallel()
	r := &registered{workflows: map[string]reflect.Type{}}
	Register(r)
	require.Greater(t, len(r.workflows), 25)
	for name, w := range r.workflows {
		require.Equal(t, 2, w.NumOut(), "%s has no result", name)
		require.Equal(t, reflect.Struct, w.Out(0).Kind(), name)
	}
	require.Contains(t, r.workflows, "ChangeTenantState", "by the name that it is started by")
}
