package api

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/org"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// Status is the HTTP status of a code.
func Status(code prego.Code) int { return statuses[code] }

// Codes lists the codes that callers can meet.
func Codes() []prego.Code { return slices.Collect(maps.Keys(statuses)) }

// Spending are the operations that tables of caveats name.
var Spending = slices.Concat(priced, ordersNothing, movesLater)

// CheckCaveats checks the caveats of a new token.
var CheckCaveats = (*API).caveats

// Accepting is an API that accepts every authenticated request, and does nothing.
func (a *API) Accepting() http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = a.refuse
	e.Pre(a.observe)
	e.Use(a.authenticate, a.audited)
	for route := range a.contract.ops {
		method, path, _ := strings.Cut(route, " ")
		e.Add(method, path, func(c echo.Context) error { return c.NoContent(http.StatusNoContent) })
	}
	return e
}

// Limits of streams, and of the feed of events.
const (
	MaxStreamsOfOne  = maxStreamsOfOne
	MaxVisitorsOfOne = maxVisitorsOfOne
	FollowEvery      = followEvery
	FeedBuffer       = feedBuffer
	WatchEvery       = watchEvery
)

// Following reports whether the feed of events is being read.
func (a *API) Following() bool {
	a.feed.mu.Lock()
	defer a.feed.mu.Unlock()
	return a.feed.running
}

// ReadFeed replaces the database that the feed of events is read from.
func (a *API) ReadFeed(read func(context.Context, ops.EventQuery) (ops.EventPage, error)) {
	a.feed.read = read
}

// NoteRefusals writes the refused requests that wait for their entries.
func (a *API) NoteRefusals(ctx context.Context) { a.refusals.flush(ctx, true) }

// WatchNow reads what the callers of open streams may do.
func (a *API) WatchNow(ctx context.Context) error {
	_, err := a.watches.look(ctx, false)
	return err
}

// End ends long requests, as the end of the process does.
func (a *API) End() { a.end() }

// SimulateOn decides over a fleet from a request.
func SimulateOn(ctx context.Context, f placement.DocFleet, rs []placement.Request) ([]placement.Decision, error) {
	return simulateOn(ctx, placement.DefaultPolicy(), f, rs)
}

// Simulating takes the places of so many simulations of a caller.
func (a *API) Simulating(p access.Principal, n int) (leave func()) {
	leaves := make([]func(), n)
	for i := range leaves {
		leaves[i], _ = a.simulations.enter(p)
	}
	return func() {
		for _, leave := range leaves {
			leave()
		}
	}
}

// Exporting takes the places of so many exports of a caller.
func (a *API) Exporting(p access.Principal, n int) (leave func()) {
	leaves := make([]func(), n)
	for i := range leaves {
		leaves[i], _ = a.exports.enter(p)
	}
	return func() {
		for _, leave := range leaves {
			leave()
		}
	}
}

// InReach is inReach for a request as the API routes it, with the body that check would store.
func (a *API) InReach(r *http.Request, body string, reach access.Reach) error {
	c := a.echo.NewContext(r, httptest.NewRecorder())
	a.echo.Router().Find(r.Method, echo.GetPath(r), c)
	c.Set(bodyKey, []byte(body))
	return a.inReach(c, a.contract.operation(c), reach)
}

// MayPutOrg is mayPutOrg.
func MayPutOrg(reach func(access.Capability) access.Reach, id prego.OrgID, in tenant.PutOrgRequest) func(*org.Org) error {
	return mayPutOrg(reach, access.Principal{}.MayGiveAccess, id, in)
}

// Unchecked removes the API's own check of the orgs of objects: what is left is Postgres's.
func (a *API) Unchecked() {
	k := *a.contract
	k.ops = map[string]*operation{}
	for route, op := range a.contract.ops {
		o := *op
		if !o.decidesItself() && !slices.Contains(o.orgOf, orgOfInstallation) {
			o.orgOf = []string{orgOfReach}
		}
		k.ops[route] = &o
	}
	a.contract = &k
}
