package api

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/org"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// Where the orgs of an operation's objects are found (x-org-of), besides the names of parameters in its path
// ("tenant_id") and of fields of its body ("body.org_id").
const (
	orgOfInstallation = "installation" // nowhere: they belong to the installation
	orgOfReach        = "reach"        // in the rows: the answer shows those in reach
	orgOfCaller       = "caller"       // nowhere: it is about the caller, who needs no capability
	orgOfHandler      = "handler"      // in the row that the handler holds: see mayPutOrg
	orgOfBody         = "body."
)

// decidesItself reports whether an operation is about the caller, who needs no capability, or its handler decides.
func (o *operation) decidesItself() bool {
	return slices.Equal(o.orgOf, []string{orgOfCaller}) || slices.Equal(o.orgOf, []string{orgOfHandler})
}

// May reports whether a caller may request an operation: on an object of an org or, with "", on any that it may reach.
// Other rooms of this process decide with it what they offer; each request is decided again.
func May(p access.Principal, operationID string, org prego.OrgID) bool {
	op := embedded().named(operationID)
	if op.capability == "" {
		return true
	}
	reach := ReachOf(p, operationID)
	switch {
	case len(op.orgOf) == 0 || slices.Contains(op.orgOf, orgOfInstallation):
		return reach.Everywhere
	case org != "":
		return reach.Includes(org)
	}
	return !reach.None()
}

// ReachOf is where a caller may request an operation of the contract.
func ReachOf(p access.Principal, operationID string) access.Reach {
	return p.Reach(embedded().named(operationID).capability)
}

// Withheld are the fields of an operation's body that a caller may not set: those of operators.
func Withheld(p access.Principal, operationID string) []string {
	if ReachOf(p, operationID).Everywhere {
		return nil
	}
	return embedded().named(operationID).operators
}

// operatorsFieldsIn refuses fields of a checked body that are operators' (x-operators): they decide what is the
// installation's.
func (o *operation) operatorsFieldsIn(body []byte) error {
	fields := map[string]json.RawMessage{}
	if len(o.operators) > 0 {
		_ = json.Unmarshal(body, &fields) // check has parsed it
	}
	for _, name := range o.operators {
		if fields[name] != nil {
			return &prego.Error{Code: prego.CodeForbidden, Field: name, Message: "may only be set by operators; leave it out"}
		}
	}
	return nil
}

// inReach refuses an operation on an object outside of the reach as if the object did not exist: it is looked up
// by the same statement, and refused with the same code and text. It needs the body that check stores, and
// precedes once, so that a kept answer passes it too.
func (a *API) inReach(c echo.Context, op *operation, reach access.Reach) error {
	if reach.Everywhere {
		return nil
	}
	if len(op.orgOf) == 0 {
		return onInstallation(op.capability)
	}
	body, _ := c.Get(bodyKey).([]byte)
	if err := op.operatorsFieldsIn(body); err != nil {
		return err
	}
	for _, source := range op.orgOf {
		if err := a.sourceInReach(c, op, source, reach); err != nil {
			return err
		}
	}
	return nil
}

func (a *API) sourceInReach(c echo.Context, op *operation, source string, reach access.Reach) error {
	switch source {
	case orgOfReach, orgOfCaller, orgOfHandler:
		return nil
	case orgOfInstallation:
		return onInstallation(op.capability)
	}
	if field, ok := strings.CutPrefix(source, orgOfBody); ok {
		if org := namedOrg(c, field); org != "" && !reach.Includes(org) { // the contract requires those that must be there
			return store.OrgUnknown(field)
		}
		return nil
	}
	kind, id, err := ofOrg(op, source, pathValue(c, source))
	if err != nil {
		return err
	}
	org, err := a.d.Store.OrgOf(c.Request().Context(), kind, id)
	if err == nil && !reach.Includes(org) {
		err = store.NoSuch(kind, id)
	}
	return err
}

// ofOrg is the kind of object that a parameter of a path names, and its id, as OrgOf finds its org.
func ofOrg(op *operation, source, id string) (kind, of string, err error) {
	if source != "owner" { // of a backup policy
		return strings.TrimSuffix(source, "_id"), id, nil
	}
	switch owner := policyOwner(id); {
	case owner.OrgID != "":
		return "org", string(owner.OrgID), nil
	case owner.Default():
		return "", "", onInstallation(op.capability)
	case owner.VolumeID != "":
		return "volume", id, nil
	}
	return "tenant", id, nil
}

func onInstallation(c access.Capability) error {
	return prego.Errorf(prego.CodeForbidden, "this requires the capability %s on the installation", c)
}

// namedOrg is the org in a field of a checked body, "" if the field is absent.
func namedOrg(c echo.Context, field string) prego.OrgID {
	body, _ := c.Get(bodyKey).([]byte)
	fields := map[string]json.RawMessage{}
	var org prego.OrgID
	_ = json.Unmarshal(body, &fields) // check has parsed it
	_ = json.Unmarshal(fields[field], &org)
	return org
}

// pathValue is a parameter of the path as the handler gets it.
func pathValue(c echo.Context, name string) string {
	if c.Request().URL.RawPath != "" {
		if value, err := url.PathUnescape(c.Param(name)); err == nil {
			return value
		}
	}
	return c.Param(name)
}

// mayPutOrg decides on PUT /v1/orgs/{org_id} with the org as it was, because what the request requires depends on that.
// A new org requires org:create on its parent, or without one on the installation. An existing org requires org:change
// for another tier, which raises its limits; and for another parent access:grant on the old and the new one and gives,
// because grants on a parent apply below it. A repeated request that changes nothing shows the org, which requires
// org:read.
func mayPutOrg(
	reach func(access.Capability) access.Reach, gives func() error, id prego.OrgID, in tenant.PutOrgRequest,
) func(*org.Org) error {
	parent := func(c access.Capability) error {
		switch wanted := deref(in.ParentOrgID); {
		case reach(c).Includes(wanted):
			return nil
		case wanted == "":
			return onInstallation(c)
		}
		return store.OrgUnknown("parent_org_id")
	}
	return func(old *org.Org) error {
		switch {
		case old == nil:
			return parent("org:create")
		case !reach("org:read").Includes(id):
			return prego.Errorf(prego.CodeForbidden, "the id %q belongs to an org that you may not see; choose another", id)
		case in.Tier != "" && in.Tier != old.Tier && !reach("org:change").Includes(id):
			return prego.Errorf(prego.CodeForbidden, "another tier requires the capability org:change")
		case in.ParentOrgID == nil || *in.ParentOrgID == old.ParentOrgID:
			return nil
		case !reach("access:grant").Includes(old.ParentOrgID):
			return prego.Errorf(prego.CodeForbidden, "another parent requires the capability access:grant on the present one")
		}
		if err := gives(); err != nil {
			return err
		}
		return parent("access:grant")
	}
}
