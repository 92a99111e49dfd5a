package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// CatalogDeps are what requests for machines are checked against.
type CatalogDeps struct {
	Configured server.Catalog
	Stack      server.Stack // what runs on servers besides instances
	// StaleAfter is the age at which a catalog is called stale.
	StaleAfter time.Duration
}

// checkSpec rejects a spec that pins what the provider does not sell. The region is ""
// for a fleet in several regions.
func (a *API) checkSpec(ctx context.Context, provider prego.InfraProviderID, region prego.Region, spec server.Spec) error {
	if spec.ServerType == "" && spec.Location == "" && spec.Image == "" {
		return nil
	}
	if spec.Image != "" {
		golden, err := a.d.Store.IsGoldenImage(ctx, provider, spec.Image)
		if err != nil {
			return err
		}
		if golden {
			spec.Image = ""
		}
	}
	state, err := a.d.Store.ProviderCatalog(ctx, provider)
	if err != nil {
		return err
	}
	return state.CheckSpec(a.d.Catalog.Configured, region, spec, time.Now())
}

// checkOffer rejects a fleet that promises more to instances than its machines have.
func (a *API) checkOffer(ctx context.Context, f server.Fleet) error {
	state, err := a.d.Store.ProviderCatalog(ctx, f.InfraProvider)
	if err != nil {
		return err
	}
	return state.CheckOffer(a.d.Catalog.Configured, a.d.Catalog.Stack, f)
}

// GetCatalog shows what a provider sells, and what of the configured catalog it does
// not.
func (a *API) GetCatalog(c echo.Context, p GetCatalogParams) error {
	provider := prego.ProviderHetzner
	if p.Provider != nil {
		provider = prego.InfraProviderID(*p.Provider)
	}
	state, err := a.d.Store.ProviderCatalog(c.Request().Context(), provider)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a.catalogView(state, time.Now()))
}

func (a *API) catalogView(s server.CatalogState, now time.Time) Catalog {
	configured := a.d.Catalog.Configured
	out := Catalog{
		Provider: string(s.Provider), Known: s.Known(), Stale: !s.Known() || now.Sub(s.RefreshedAt) > a.d.Catalog.StaleAfter, Failure: optional(s.Failure),
		Currency: optional(s.Currency), VatRate: optional(s.VATRate), ServerTypes: []CatalogServerType{}, Locations: []CatalogLocation{},
		Images: views(s.Images, viewOf[CatalogImage]), Configured: configuredView(configured), Problems: views(s.Problems(configured, now), viewOf[CatalogProblem]),
	}
	if s.Known() {
		out.RefreshedAt = utc(&s.RefreshedAt)
		out.VolumeGbMonth, out.ImageGbMonth = new(viewOf[Price](s.VolumeGBMonth)), new(viewOf[Price](s.ImageGBMonth))
	}
	if !s.AttemptedAt.IsZero() {
		out.AttemptedAt = utc(&s.AttemptedAt)
	}
	for _, l := range s.Locations {
		v := viewOf[CatalogLocation](l)
		if ip, ok := s.IPv4[l.Name]; ok {
			v.Ipv4 = new(viewOf[PeriodPrice](ip))
		}
		for _, region := range prego.Regions() {
			if slices.Contains(configured.Locations[region], l.Name) {
				v.Region = &region
			}
		}
		out.Locations = append(out.Locations, v)
	}
	for _, t := range s.ServerTypes {
		v := viewOf[CatalogServerType](t)
		v.Locations = []CatalogOffer{}
		for _, at := range t.At {
			v.Locations = append(v.Locations, CatalogOffer{
				Location: at.Location, Available: at.Available && !at.Retired(now), DeprecatedAt: utc(at.DeprecatedAt), UnavailableAfter: utc(at.UnavailableAfter), Price: viewOf[PeriodPrice](at.PeriodPrice),
			})
		}
		out.ServerTypes = append(out.ServerTypes, v)
	}
	return out
}

func configuredView(c server.Catalog) CatalogConfigured {
	out := CatalogConfigured{Image: c.Image, ServerTypes: map[string]map[string][]string{}, Locations: map[string][]string{}}
	for role, regions := range c.ServerTypes {
		types := make(map[string][]string, len(regions))
		for region, names := range regions {
			if region == "" {
				region = "any"
			}
			types[string(region)] = names
		}
		out.ServerTypes[string(role)] = types
	}
	for region, names := range c.Locations {
		out.Locations[string(region)] = names
	}
	return out
}

// costView is the cost of a server, nil if unknown.
func (a *API) costView(ctx context.Context, s server.Server) *Cost {
	if s.ServerType == "" || s.ProviderServerID == "" {
		return nil
	}
	state, err := a.d.Store.ProviderCatalog(ctx, s.InfraProvider)
	if err != nil {
		a.d.Log.Warn("a server is shown without its cost", zap.String("error", prego.Redact(err.Error())))
		return nil
	}
	cost, ok := state.ServerCost(s.ServerType, s.Location, s.Spec.VolumeGB)
	if !ok {
		return nil
	}
	return new(viewOf[Cost](cost))
}

// RefreshCatalog starts a refresh of the providers' catalogs.
func (a *API) RefreshCatalog(c echo.Context, _ RefreshCatalogParams) error {
	return a.startWorkflow(c, "the catalog is not read", a.d.Runs.StartCatalogRefresh)
}
