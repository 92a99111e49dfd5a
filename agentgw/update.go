package agentgw

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// offersEvery is how often the offers are read: a rollout waits for heartbeats anyway.
const offersEvery = 2 * time.Second

func (g *Gateway) followOffers(ctx context.Context) {
	g.follow(ctx, offersEvery, "releases of the agent", func() error {
		offers, err := g.store.AgentOffers(ctx)
		if err != nil {
			return err
		}
		byID := make(map[prego.ServerID]int64, len(offers))
		for _, one := range offers {
			byID[one.ServerID] = one.Serial
		}
		g.offers.take(byID, true)
		return nil
	})
}

// agentUpdate notes the outcome of the last release of the agent that a host tried, and answers with the next signed
// one.
func (g *Gateway) agentUpdate(ctx context.Context, who caller, in wire.UpdateReport) (any, error) {
	statuses := []wire.UpdateStatus{"", wire.UpdateTrying, wire.UpdateGood, wire.UpdateBack, wire.UpdateRefused}
	if in.Serial < 0 || len(in.Reason) > wire.MaxUpdateReason || !slices.Contains(statuses, in.Status) {
		return nil, prego.Invalid("status",
			"must be one of trying, good, back, refused; the serial must not be negative, the reason is limited")
	}
	reason := strings.ToValidUTF8(strings.ReplaceAll(in.Reason, "\x00", ""), "")
	report := server.AgentReport{Serial: in.Serial, Status: string(in.Status), Reason: prego.Redact(reason)}
	wanted, err := g.store.AckAgentUpdate(ctx, who.serverID, report)
	if err != nil {
		return nil, err
	}
	var out wire.UpdateResponse
	if wanted != nil {
		out.Signed = &wire.SignedAgentUpdate{Document: wanted.Document, Signature: wanted.Signature}
	}
	return out, nil
}

var agentDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// updateBinary serves a release of the agent: the program for booting hosts, or a file of the directory of releases,
// which is named by its digest. Hosts check the digest themselves.
func (g *Gateway) updateBinary(c echo.Context) error {
	want := c.QueryParam("sha256")
	switch {
	case !agentDigest.MatchString(want):
		return prego.Invalid("sha256", "must be a SHA-256 digest in hex")
	case want == g.settings.AgentSHA256:
		return c.Blob(http.StatusOK, echo.MIMEOctetStream, g.settings.AgentBinary)
	case g.settings.AgentReleases == "":
	default:
		name := filepath.Join(g.settings.AgentReleases, want)
		if _, err := os.Stat(name); err == nil {
			return c.File(name)
		}
	}
	return prego.Errorf(prego.CodeNotFound, "this gateway has no agent with digest %s", want)
}
