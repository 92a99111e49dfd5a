package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

// may reports whether the user may do an operation somewhere, or on a thing, nil for none in particular. It decides
// what a page offers; the API decides again.
func (v *visitor) may(op *operation, thing object) bool {
	return v != nil && api.May(v.Principal, op.OperationID, prego.OrgID(thing.text("org_id")))
}

// mayDo lets in who may do the operation of a form.
func mayDo(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		op := operations()[ec.Param("operation")]
		if op != nil && !ec.Get(visitorKey).(*visitor).may(op, nil) {
			return prego.Errorf(prego.CodeForbidden, "this requires the capability %s", op.Extensions["x-capability"])
		}
		return next(ec)
	}
}

// pageOperations are the operations that pages of the navigation show, besides lists.
var pageOperations = map[string]string{"": "listAttention", "map": "getFleetMap", "costs": "getCosts"}

// offered is the navigation without pages that the user may not see.
func (v *visitor) offered(all []navGroup) (out []navGroup) {
	listings, _ := described()
	for _, g := range all {
		g.Items = slices.DeleteFunc(g.Items, func(i navItem) bool {
			path := strings.TrimPrefix(strings.TrimPrefix(i.Href, "/console"), "/")
			op := operations()[pageOperations[path]]
			for _, l := range listings {
				if l.Page == path {
					op = l.Op
				}
			}
			return op != nil && !v.may(op, nil)
		})
		if len(g.Items) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// home leads users who may not see the whole installation to what is theirs: their org, or the list of their orgs.
func (c *Console) home(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		v := ec.Get(visitorKey).(*visitor)
		if v.may(operations()["listAttention"], nil) {
			return next(ec)
		}
		to := "/console/orgs"
		if orgs := v.Reach("org:read").Orgs; len(orgs) == 1 {
			to += "/" + url.PathEscape(string(orgs[0]))
		}
		return ec.Redirect(http.StatusSeeOther, to)
	}
}
