package api

import (
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
)

// fresh refuses what may destroy to a login whose user has not proved for a while who they are: a browser that was left
// open, or a stolen cookie, destroys nothing. Tokens are not asked: a program has nobody to ask.
func fresh(c echo.Context, op *operation, p access.Principal) error {
	if !p.Login || op.bound != impact.Destroys || dryRun(c) || time.Now().Before(p.FreshUntil) {
		return nil
	}
	return prego.Errorf(prego.CodeLoginNotFresh, "this may destroy data, and you logged in too long ago: prove again who you are")
}
