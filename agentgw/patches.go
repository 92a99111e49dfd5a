package agentgw

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// patches records the security updates that a host lacks.
func (g *Gateway) patches(ctx context.Context, who caller, in wire.PatchReport) (any, error) {
	if in.Pending < 0 || len(in.Packages) > min(in.Pending, wire.MaxPatchPackages) ||
		len(in.RebootFor) > wire.MaxPatchText || len(in.Failed) > wire.MaxPatchText {
		return nil, prego.Invalid("packages", "must be the first 40 pending packages; texts have at most 512 bytes")
	}
	p := server.Patches{
		Pending: in.Pending, RebootSince: in.RebootSince.UTC(), RebootFor: printable(in.RebootFor),
		CheckedAt: in.CheckedAt.UTC(), Failed: prego.Redact(printable(in.Failed)),
	}
	for _, u := range in.Packages {
		for _, word := range []string{u.Name, u.From, u.To} {
			if len(word) > 128 || word != printable(word) {
				return nil, prego.Invalid("packages", "must be names and versions of packages")
			}
		}
		p.Packages = append(p.Packages, server.PackageUpdate(u))
	}
	return nothing{}, g.store.TellPatches(ctx, who.serverID, p)
}
