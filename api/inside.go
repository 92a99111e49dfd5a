package api

import (
	"context"
	"net/http"

	"github.com/getkin/kin-openapi/openapi3"
)

// insideKey marks the context of a request that was made inside this process.
type insideKey struct{}

// As returns a context for requests to Handler that another room of this process makes for
// a caller whom it has authenticated, as the console does. No request from outside has one.
func As(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, insideKey{}, p)
}

// Allow counts a request against the rate of a caller, and refuses it above that.
func (a *API) Allow(key string) error {
	_, _, err := a.limiter.allow(key)
	return err
}

// Contract is openapi.yaml, read. Nobody may change it.
func Contract() *openapi3.T { return embedded().doc }

// Mount serves everything below a prefix by another handler. It is called before Serve.
func (a *API) Mount(prefix string, h http.Handler) { a.mounted[prefix] = h }
