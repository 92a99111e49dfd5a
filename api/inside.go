package api

import (
	"context"
	"net/http"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// insideKey marks the context of a request that was made inside this process.
type insideKey struct{}

// As returns a context for requests to Handler that another room of this process makes for
// a caller whom it has authenticated, as the console does. No request from outside has one.
func As(ctx context.Context, p access.Principal) context.Context {
	return context.WithValue(ctx, insideKey{}, p)
}

// Allow counts a request against the rates of a caller, or without one against that of its network, and refuses it
// above that.
func (a *API) Allow(p access.Principal, r *http.Request) error {
	budgets := budgetsOf(p)
	if p.PrincipalID == "" {
		budgets = budgetOf("address", r)
	}
	_, err := a.limiter.allow(r.Context(), budgets)
	return err
}

// Refusal is what the API answers to a request with an error: its code and text, the status, and after how many
// seconds to ask again, 0 if that is no use. What callers can't act on is logged.
func (a *API) Refusal(err error, c echo.Context) (coded *prego.Error, status, again int) {
	coded = a.coded(err, c)
	if status = statusOf(coded); status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		again = retryAfter(err)
	}
	return coded, status, again
}

// Contract is openapi.yaml, read. Nobody may change it.
func Contract() *openapi3.T { return embedded().doc }

// Mount serves everything below a prefix by another handler. It is called before Serve.
func (a *API) Mount(prefix string, h http.Handler) { a.mounted[prefix] = h }
