package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/placement/scale"
)

// impactType is the media type of a dry run's answer. It differs from that of the operation's own, so that neither is
// taken for the other.
const impactType = "application/vnd.prego.impact+json"

// dryRun reports whether a request is a dry run.
func dryRun(c echo.Context) bool {
	dry, _ := strconv.ParseBool(c.QueryParam("dry_run"))
	return dry
}

// settled lets each change state its impact (impact.Demand). With dry_run it rolls the change back and
// answers with the impact: the real handler runs on the real rows, up to its answer, so whatever would refuse the
// change refuses the dry run. No request reaches Temporal meanwhile (workflows.Untried).
func (a *API) settled(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		op := a.contract.operation(c)
		if op == nil || op.bound == "" {
			return next(c)
		}
		r := c.Request()
		change := &impact.Change{
			Operation: r.Method + " " + r.URL.Path, Bound: op.bound, At: time.Now(), DryRun: dryRun(c),
			Accepted: r.Header.Get("Impact-Accepted"),
			Impact:   impact.Impact{Class: impact.None, Affected: []impact.Thing{}, Destroyed: []impact.Loss{}},
		}
		ctx := impact.With(r.Context(), change)
		if !change.DryRun {
			c.SetRequest(r.WithContext(ctx))
			return next(c)
		}
		answer, unanswered := c.Response(), &recorder{ResponseWriter: nowhere{}, keep: true}
		err := a.d.Store.Try(ctx, func(ctx context.Context) error {
			c.SetRequest(r.WithContext(ctx))
			c.SetResponse(echo.NewResponse(unanswered, a.echo))
			return next(c)
		})
		status := c.Response().Status
		c.SetResponse(answer)
		if err != nil {
			return err
		}
		out := tried{Impact: seen(c, change.Impact)}
		if l := access.LimitsOf(ctx); l != nil && l.Refused != nil {
			refused := seen(c, l.Refused)
			p := a.problem(a.coded(refused, c), c)
			p.Caveat = &refused.Caveat
			out.Refusal = &p
		}
		if status == http.StatusOK && unanswered.body.Len() > 0 {
			out.Plan = json.RawMessage(unanswered.body.Bytes())
		}
		c.Response().Header().Set(echo.HeaderContentType, impactType)
		c.Response().WriteHeader(http.StatusOK)
		return c.Echo().JSONSerializer.Serialize(c, out, "")
	}
}

// seen is an impact, or a refusal because of one, as the caller may see it. It was computed from the rows of all.
func seen[T interface {
	Seen(by func(prego.OrgID) bool) T
}](c echo.Context, v T) T {
	if reach, ok := access.ReachOf(c.Request().Context()); ok && !reach.Everywhere {
		return v.Seen(reach.Includes)
	}
	return v
}

// ListUpcoming shows what will be destroyed in the next days.
func (a *API) ListUpcoming(c echo.Context, p ListUpcomingParams) error {
	days, limit := 7, 100
	prego.Assign(&days, p.Days)
	prego.Assign(&limit, p.Limit)
	until := time.Now().AddDate(0, 0, days)
	all, truncated, err := a.d.Store.Upcoming(c.Request().Context(), until, a.d.Periods, scale.Plan)
	if err != nil {
		return err
	}
	shown := append([]Upcoming{}, all[:min(limit, len(all))]...)
	return c.JSON(http.StatusOK, UpcomingList{Upcoming: shown, Total: len(all), Truncated: truncated})
}

// nowhere is where the answer of a change goes that is rolled back.
type nowhere struct{}

// Header returns a header that is never sent.
func (nowhere) Header() http.Header { return http.Header{} }

// Write does nothing.
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader does nothing.
func (nowhere) WriteHeader(int) {}

// tried is a dry run's answer: the contract's Tried, whose plan has any form.
type tried struct {
	Impact  impact.Impact   `json:"impact"`
	Refusal *Problem        `json:"refusal,omitempty"`
	Plan    json.RawMessage `json:"plan,omitempty"`
}
