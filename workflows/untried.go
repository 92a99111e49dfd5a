package workflows

import (
	"context"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"

	"github.com/prego/prego/ops/impact"
)

// Untried is a grpc.UnaryClientInterceptor that keeps dry runs from Temporal: a call in the context of one is not sent,
// and succeeds. Only the question what the server can do is: the client remembers its answer.
func Untried(
	ctx context.Context, method string, in, out any, c *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption,
) error {
	if impact.Trying(ctx) && method != workflowservice.WorkflowService_GetSystemInfo_FullMethodName {
		return nil
	}
	return call(ctx, method, in, out, c, o...)
}
