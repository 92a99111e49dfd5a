package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workload"
)

// ResourceDeps are what those requests need.
type ResourceDeps struct {
	Environment string
	SiteDomain  string                    // whose names are this installation's own
	Locations   map[prego.Region][]string // of the provider, best first
	EdgePorts   []int                     // on which the control plane calls edges
}

// location is the default location of a region.
func (d ResourceDeps) location(r prego.Region) string {
	if l := d.Locations[r]; len(l) > 0 {
		return l[0]
	}
	return ""
}

// startRun starts the run of an accepted request. If that fails, the request stays
// accepted: the reconciler starts the run later.
func (a *API) startRun(c echo.Context, start func(ctx context.Context, org, id string) error, org prego.OrgID, id string, workflowID string) {
	a.started(c, workflowID, func(ctx context.Context) error { return start(ctx, string(org), id) })
}

// CreateRoute publishes a port of a process group.
func (a *API) CreateRoute(c echo.Context, env EnvInPath, _ CreateRouteParams) error {
	var in struct {
		GroupID    prego.GroupID          `json:"group_id"`
		Hostname   string                 `json:"hostname"`
		Listener   workload.ListenerScope `json:"listener"`
		ListenPort int                    `json:"listen_port"`
		Protocol   workload.RouteProtocol `json:"protocol"`
		TargetPort int                    `json:"target_port"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	r := workload.Route{
		RouteID: prego.RouteID(newID("rte-")), EnvID: env, GroupID: in.GroupID, Hostname: in.Hostname, Listener: in.Listener, ListenPort: in.ListenPort,
		Protocol: in.Protocol, TargetPort: in.TargetPort,
	}
	if err := r.Validate(); err != nil {
		return err
	}
	raw, shared := r.Protocol == workload.RouteTCP, r.Listener == workload.ListenerSharedV6
	if why := server.EdgePort(r.ListenPort, raw, shared, a.d.Resources.EdgePorts); why != "" {
		return &prego.Error{Code: prego.CodePortTaken, Field: "listen_port", Message: why}
	}
	if r.Hostname != "" {
		if _, err := org.NormalizeDomain(r.Hostname, a.d.Resources.SiteDomain); err != nil {
			return err
		}
	}
	r, err := a.d.Store.CreateRoute(c.Request().Context(), r, caller(c).By())
	return answer(c, http.StatusCreated, r, err, viewOf[Route])
}

// ListRoutes shows a page of an env's routes.
func (a *API) ListRoutes(c echo.Context, env EnvInPath, _ ListRoutesParams) error {
	return within(c, a.d.Store.GetEnv, "routes", named("hostname", store.Routes.In(a.d.Store)), viewOf[Route],
		"env_id", string(env))
}

// ListAllRoutes shows a page of the routes of all envs.
func (a *API) ListAllRoutes(c echo.Context, _ ListAllRoutesParams) error {
	return list(c, "routes", named("hostname", store.Routes.In(a.d.Store)), viewOf[Route])
}

// ListIPv4Addresses shows a page of the IPv4 addresses of all envs.
func (a *API) ListIPv4Addresses(c echo.Context, _ ListIPv4AddressesParams) error {
	return list(c, "ipv4_addresses", store.IPv4s.In(a.d.Store), ipv4View)
}

// ListAttachments shows a page of what volumes are attached to.
func (a *API) ListAttachments(c echo.Context, _ ListAttachmentsParams) error {
	return list(c, "attachments", store.Attachments.In(a.d.Store), viewOf[VolumeAttachment])
}

// GetRoute shows a route.
func (a *API) GetRoute(c echo.Context, env EnvInPath, route RouteInPath) error {
	r, err := a.d.Store.GetRoute(c.Request().Context(), env, route)
	return answer(c, http.StatusOK, r, err, viewOf[Route])
}

// DeleteRoute deletes a route.
func (a *API) DeleteRoute(c echo.Context, env EnvInPath, route RouteInPath, _ DeleteRouteParams) error {
	return noContent(c, a.d.Store.DeleteRoute(c.Request().Context(), env, route, caller(c).By()))
}

// TraefikRoutes shows all routes as Traefik's HTTP provider reads them.
func (a *API) TraefikRoutes(c echo.Context, p TraefikRoutesParams) error {
	routes, err := a.d.Store.PublishedRoutes(c.Request().Context())
	if err != nil {
		return err
	}
	doc, err := traefikDocument(routes)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(doc)
	etag := `"` + hex.EncodeToString(sum[:16]) + `"`
	c.Response().Header().Set("ETag", etag)
	c.Response().Header().Set("Cache-Control", "no-cache")
	if p.IfNoneMatch != nil && matchesETag(*p.IfNoneMatch, etag) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, doc)
}

// matchesETag compares weakly, as RFC 9110 §13.1.2 requires.
func matchesETag(header, etag string) bool {
	for v := range strings.SplitSeq(header, ",") {
		if v = strings.TrimPrefix(strings.TrimSpace(v), "W/"); v == etag || v == "*" {
			return true
		}
	}
	return false
}

func ipv4View(a workload.IPv4Allocation) IPv4 {
	out := viewOf[IPv4](a)
	out.Served = &a.Served
	return out
}

// GetIPv4 shows the IPv4 add-on of an env.
func (a *API) GetIPv4(c echo.Context, env EnvInPath) error {
	return show(c, a.d.Store.GetIPv4, env, ipv4View)
}

// EnableIPv4 requests an IPv4 address for an env.
func (a *API) EnableIPv4(c echo.Context, env EnvInPath, _ EnableIPv4Params) error {
	d := a.d.Resources
	v, err := a.d.Store.EnableIPv4(c.Request().Context(), env, newID("ip4-"), d.Environment, d.location, caller(c).By())
	return a.ipv4Accepted(c, v, err)
}

// DisableIPv4 releases the IPv4 address of an env.
func (a *API) DisableIPv4(c echo.Context, env EnvInPath, _ DisableIPv4Params) error {
	v, err := a.d.Store.DisableIPv4(c.Request().Context(), env, caller(c).By())
	return a.ipv4Accepted(c, v, err)
}

func (a *API) ipv4Accepted(c echo.Context, v workload.IPv4Allocation, err error) error {
	if err != nil {
		return err
	}
	if v.Status != workload.ResourceReady {
		a.startRun(c, a.d.Runs.StartAddress, v.OrgID, v.AllocationID, workload.AddressWorkflowID(v.AllocationID))
	}
	return accepted(a, c, v, ipv4View)
}

// CreateVolume requests a volume.
func (a *API) CreateVolume(c echo.Context, _ CreateVolumeParams) error {
	var in struct {
		OrgID     prego.OrgID  `json:"org_id"`
		Region    prego.Region `json:"region"`
		Location  string       `json:"location"`
		Name      string       `json:"name"`
		SizeBytes int64        `json:"size_bytes"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	d := a.d.Resources
	v := workload.Volume{VolumeID: prego.VolumeID(newID("vol-")), OrgID: in.OrgID, Region: in.Region, Location: in.Location, Name: in.Name, SizeBytes: in.SizeBytes}
	if err := v.Validate(); err != nil {
		return err
	}
	switch {
	case v.Location == "":
		if v.Location = d.location(v.Region); v.Location == "" {
			return &prego.Error{Code: prego.CodeRegionNotServed, Field: "region", Message: "has no location of the provider"}
		}
	case !slices.Contains(d.Locations[v.Region], v.Location):
		return prego.Invalid("location", "must be one of "+strings.Join(d.Locations[v.Region], ", ")+", the region's")
	}
	v, err := a.d.Store.CreateVolume(c.Request().Context(), v, d.Environment, caller(c).By())
	return a.volumeAccepted(c, v, err)
}

func (a *API) volumeAccepted(c echo.Context, v workload.Volume, err error) error {
	if err != nil {
		return err
	}
	a.startRun(c, a.d.Runs.StartVolume, v.OrgID, string(v.VolumeID), workload.VolumeWorkflowID(v.VolumeID))
	return accepted(a, c, v, viewOf[Volume])
}

// ListVolumes shows a page of volumes.
func (a *API) ListVolumes(c echo.Context, _ ListVolumesParams) error {
	return list(c, "volumes", a.d.Store.ListVolumes, viewOf[Volume])
}

// GetVolume shows a volume.
func (a *API) GetVolume(c echo.Context, id VolumeInPath) error {
	ctx, store := c.Request().Context(), a.d.Store
	v, err := store.GetVolume(ctx, string(id))
	if err != nil {
		return err
	}
	newest, err := store.VolumeRestorable(ctx, id)
	return answer(c, http.StatusOK, v, err, func(v workload.Volume) Volume {
		out := viewOf[Volume](v)
		out.LastRestorable = restorableView(newest)
		return out
	})
}

// GrowVolume makes a volume larger.
func (a *API) GrowVolume(c echo.Context, id VolumeInPath, _ GrowVolumeParams) error {
	var in struct {
		SizeBytes int64 `json:"size_bytes"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	v, err := a.d.Store.GrowVolume(c.Request().Context(), id, in.SizeBytes, caller(c).By())
	return a.volumeAccepted(c, v, err)
}

// DeleteVolume deletes an unattached volume, after its last backup.
func (a *API) DeleteVolume(c echo.Context, id VolumeInPath, params DeleteVolumeParams) error {
	v, err := a.d.Store.DeleteVolume(c.Request().Context(), id, deref(params.NoFinalBackupReason), caller(c).By())
	return a.volumeAccepted(c, v, err)
}

// UndeleteVolume takes back the deletion of a volume.
func (a *API) UndeleteVolume(c echo.Context, id VolumeInPath, _ UndeleteVolumeParams) error {
	v, err := a.d.Store.UndeleteVolume(c.Request().Context(), id, caller(c).By())
	return a.volumeAccepted(c, v, err)
}

// AttachVolume attaches a volume to a process group.
func (a *API) AttachVolume(c echo.Context, id VolumeInPath, _ AttachVolumeParams) error {
	var in struct {
		GroupID   prego.GroupID `json:"group_id"`
		MountPath string        `json:"mount_path"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := workload.ValidateMountPath("mount_path", in.MountPath); err != nil {
		return err
	}
	t, err := a.d.Store.AttachVolume(c.Request().Context(),
		workload.VolumeAttachment{AttachmentID: newID("vat-"), VolumeID: id, GroupID: in.GroupID, MountPath: in.MountPath}, caller(c).By())
	if err != nil {
		return err
	}
	a.wake(c, t.GroupID, t.OrgID)
	return c.JSON(http.StatusCreated, viewOf[VolumeAttachment](t))
}

// DetachVolume detaches a volume from its process group.
func (a *API) DetachVolume(c echo.Context, id VolumeInPath, attachment AttachmentInPath, _ DetachVolumeParams) error {
	if err := a.d.Store.DetachVolume(c.Request().Context(), id, attachment, caller(c).By()); err != nil {
		return err
	}
	a.startRun(c, a.d.Runs.StartVolume, "", string(id), workload.VolumeWorkflowID(id))
	return c.NoContent(http.StatusNoContent)
}

// sessionLease is how long a session counts after its process died.
const sessionLease = time.Minute

// session counts a session for the org of a tenant or an instance until end is called;
// without one, it counts for no org. It is refused before anything has run.
func (a *API) session(c echo.Context, of org.SessionOf, kind org.SessionKind, subject string) (end func(), err error) {
	if of == (org.SessionOf{}) {
		return func() {}, nil
	}
	s, id := a.d.Store, newID("ses-")
	if err := s.OpenSession(c.Request().Context(), id, of, kind, subject, caller(c).By(), sessionLease); err != nil {
		return nil, err
	}
	if dryRun(c) {
		return func() {}, nil
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	warn := func(what string, err error) {
		if err != nil {
			a.d.Log.Warn(what, zap.String("session_id", id), zap.String("error", prego.Redact(err.Error())))
		}
	}
	ctx := context.WithoutCancel(c.Request().Context())
	go func() {
		defer close(ended)
		t := time.NewTicker(sessionLease / 3)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				renew, cancel := context.WithTimeout(ctx, recordWithin)
				warn("a session's lease was not renewed", s.RenewSession(renew, id, sessionLease))
				cancel()
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
		last, cancel := context.WithTimeout(ctx, recordWithin)
		defer cancel()
		warn("a session was not closed; it counts until its lease ends", s.CloseSession(last, id))
	}, nil
}
