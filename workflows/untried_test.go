package workflows

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/prego/prego/ops/impact"
)

// TestADryRunSendsNothingToTemporal: no call of the client, except the one that is kept in its memory.
func TestADryRunSendsNothingToTemporal(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sent []string
	srv := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(s)
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, method)
		return status.Error(codes.Unimplemented, "unknown method GetSystemInfo")
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	c, err := client.NewLazyClient(client.Options{
		HostPort:          l.Addr().String(),
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(Untried)}},
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)

	start := client.StartWorkflowOptions{ID: "x", TaskQueue: "q"}
	calls := map[string]func(context.Context) error{
		"start":  func(ctx context.Context) error { _, err := c.ExecuteWorkflow(ctx, start, "W"); return err },
		"signal": func(ctx context.Context) error { return c.SignalWorkflow(ctx, "x", "", "s", nil) },
		"signal with start": func(ctx context.Context) error {
			_, err := c.SignalWithStartWorkflow(ctx, "x", "s", nil, start, "W")
			return err
		},
		"cancel":    func(ctx context.Context) error { return c.CancelWorkflow(ctx, "x", "") },
		"terminate": func(ctx context.Context) error { return c.TerminateWorkflow(ctx, "x", "", "") },
		"schedule": func(ctx context.Context) error {
			_, err := c.ScheduleClient().Create(ctx, client.ScheduleOptions{ID: "x", Action: &client.ScheduleWorkflowAction{Workflow: "W", TaskQueue: "q"}})
			return err
		},
	}
	dry := impact.With(t.Context(), &impact.Change{DryRun: true})
	for name, call := range calls {
		require.NoError(t, call(dry), name)
	}
	for _, method := range sent {
		require.Equal(t, workflowservice.WorkflowService_GetSystemInfo_FullMethodName, method)
	}
	for name, call := range calls {
		before := len(sent)
		require.Error(t, call(impact.With(t.Context(), &impact.Change{})), name)
		require.Greater(t, len(sent), before, name)
	}
}
