package agentgw

import (
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// bootIdentity checks the bootstrap token of a host that has no identity yet, without
// consuming it.
func (g *Gateway) bootIdentity(c echo.Context) (server.BootIdentity, error) {
	raw, ok := bearerToken(c)
	if !ok || len(raw) > 128 {
		return server.BootIdentity{}, prego.Errorf(prego.CodeTokenUnknown,
			"a bootstrap token is required as bearer token")
	}
	return g.store.BootIdentity(c.Request().Context(), g.tokens.HashBootstrap(raw))
}

// bootStage records a milestone of a booting host, so that a boot that fails before the agent runs is visible. A
// reported failure ends the run's wait.
func (g *Gateway) bootStage(c echo.Context) error {
	return g.guarded(c, func() error {
		who, err := g.bootIdentity(c)
		if err != nil {
			return err
		}
		var in wire.BootStageRequest
		if err := decode(c, &in); err != nil {
			return err
		}
		switch {
		case !slices.Contains(wire.BootStages(), in.Stage):
			return prego.Invalid("stage", "is not a boot stage")
		case prego.ServerID(in.ServerID) != who.ServerID:
			return prego.Errorf(prego.CodeTokenUnknown, "the bootstrap token belongs to another server")
		case len(in.Detail) > 512:
			return prego.Invalid("detail", "must be at most 512 bytes")
		}
		detail := strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return ' '
		}, in.Detail)
		if err := g.store.AddBootStage(c.Request().Context(), who, string(in.Stage), detail); err != nil {
			return err
		}
		if in.Stage == wire.StageFailed {
			g.log.Warn("boot failed", zap.String("server_id", string(who.ServerID)), zap.Int("attempt", who.Attempt),
				zap.String("cause", prego.Redact(detail)))
			g.signal(c.Request().Context(), handshakeSlotTimeout, "boot_failed", who.ServerID, who.Attempt, g.runs.BootFailed)
		}
		return c.NoContent(http.StatusNoContent)
	})
}

// stageTwo serves the rest of a cloud-init document that was too large for user_data.
func (g *Gateway) stageTwo(c echo.Context) error {
	return g.guarded(c, func() error {
		if _, err := g.bootIdentity(c); err != nil {
			return err
		}
		content, err := g.store.BootArtifact(c.Request().Context(), c.QueryParam("sha256"))
		if err != nil {
			return err
		}
		return c.Blob(http.StatusOK, "application/gzip", content)
	})
}

// agentBinary serves the agent. Its digest is pinned in the host's user_data.
func (g *Gateway) agentBinary(c echo.Context) error {
	return g.guarded(c, func() error {
		if _, err := g.bootIdentity(c); err != nil {
			return err
		}
		if want := c.QueryParam("sha256"); want != g.settings.AgentSHA256 {
			return prego.Errorf(prego.CodeNotFound, "this gateway serves the agent with digest %s", g.settings.AgentSHA256)
		}
		return c.Blob(http.StatusOK, "application/octet-stream", g.settings.AgentBinary)
	})
}
