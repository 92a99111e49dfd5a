package agentgw

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// patches records the security updates that a host lacks.
func (g *Gateway) patches(c echo.Context) error {
	var in wire.PatchReport
	if err := decode(c, &in); err != nil {
		return err
	}
	if in.Pending < 0 || len(in.Packages) > min(in.Pending, wire.MaxPatchPackages) ||
		len(in.RebootFor) > wire.MaxPatchText || len(in.Failed) > wire.MaxPatchText {
		return prego.Invalid("packages", "must be the first 40 pending packages; texts have at most 512 bytes")
	}
	p := server.Patches{
		Pending: in.Pending, RebootSince: in.RebootSince.UTC(), RebootFor: printable(in.RebootFor),
		CheckedAt: in.CheckedAt.UTC(), Failed: prego.Redact(printable(in.Failed)),
	}
	for _, u := range in.Packages {
		for _, word := range []string{u.Name, u.From, u.To} {
			if len(word) > 128 || word != printable(word) {
				return prego.Invalid("packages", "must be names and versions of packages")
			}
		}
		p.Packages = append(p.Packages, server.PackageUpdate(u))
	}
	if err := g.store.TellPatches(c.Request().Context(), callerOf(c).serverID, p); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
