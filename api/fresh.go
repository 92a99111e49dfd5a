package api

import (
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
)

// fresh refuses what may destroy, and what makes a credential or a grant that could, to a login whose user has not
// proved for a while who they are: a browser that was left open, or a stolen cookie, destroys nothing. Tokens are not
// asked: a program has no user to ask. A link to the console is as fresh as the login that made it.
func fresh(c echo.Context, op *operation, p access.Principal) error {
	gives := op.OperationID == "narrowToken" || access.Act{Capability: op.capability, Bound: op.changes()}.GivesAccess()
	if !p.Login || op.bound != impact.Destroys && !gives || dryRun(c) || time.Now().Before(p.FreshUntil) {
		return nil
	}
	does := "may destroy data"
	if gives {
		does = "gives access"
	}
	return prego.Errorf(prego.CodeLoginNotFresh, "this %s, and you logged in too long ago: prove again who you are", does)
}

// changes is the worst that an operation may do, "" if it changes nothing.
func (o *operation) changes() impact.Class {
	if o.changesNothing {
		return ""
	}
	return o.bound
}
