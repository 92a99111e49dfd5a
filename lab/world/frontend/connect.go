package frontend

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"go.temporal.io/api/serviceerror"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Call is one request to the service, by the name of its method.
type Call struct {
	Method  string
	Request proto.Message
}

// Around runs a call: do carries it out, and its error, or another, is what the caller gets.
type Around func(ctx context.Context, c Call, do func(context.Context) error) error

// Connect is how a client of the SDK reaches the service: no connection is made. Messages are
// copied, as a wire does.
func (s *Service) Connect(around Around) []grpc.DialOption {
	service := reflect.ValueOf(s)
	call := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker,
		_ ...grpc.CallOption,
	) error {
		name := method[strings.LastIndex(method, "/")+1:]
		if strings.HasPrefix(method, "/grpc.health.") {
			return nil
		}
		m := service.MethodByName(name)
		if !m.IsValid() {
			return status.Errorf(codes.Unimplemented, "%s", name)
		}
		in := proto.Clone(req.(proto.Message))
		do := func(ctx context.Context) error {
			if err := ctx.Err(); err != nil {
				return statusOf(err).Err()
			}
			out := m.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(in)})
			if err, _ := out[1].Interface().(error); err != nil {
				return serviceerror.ToStatus(err).Err()
			}
			proto.Reset(reply.(proto.Message))
			proto.Merge(reply.(proto.Message), out[0].Interface().(proto.Message))
			return nil
		}
		if around == nil {
			return do(ctx)
		}
		return around(ctx, Call{Method: name, Request: in}, do)
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(call),
	}
}

// Target is the address for clients that are connected by Connect.
const Target = "passthrough:///frontend"

func statusOf(err error) *status.Status { return status.FromContextError(err) }

// Named returns a token's task for logs: the workflow's id.
func (s *Service) Named(token []byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.SplitN(string(token), "/", 3)
	r := s.runs[parts[0]]
	if r == nil {
		return "?"
	}
	if len(parts) == 3 {
		for id, a := range r.activities {
			if parts[1] == fmt.Sprint(id) {
				return r.activityName(a)
			}
		}
		return fmt.Sprintf("%s#%s", r.id, parts[1])
	}
	return r.id
}
