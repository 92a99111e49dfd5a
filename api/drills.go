package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

func drillView(d tenant.Drill) Drill {
	out := viewOf[Drill](d)
	if d.Tables > 0 {
		out.Rows, out.Files = &d.Rows, &d.Files
	}
	return out
}

// ListDrills shows a page of the drills of a tenant's backups.
func (a *API) ListDrills(c echo.Context, tenant TenantID, _ ListDrillsParams) error {
	return within(c, a.d.Store.GetTenant, "drills", store.Drills.In(a.d.Store), drillView, "tenant_id", string(tenant))
}

// CreateDrill requests a drill of a tenant's backup. A worker begins it.
func (a *API) CreateDrill(c echo.Context, tenantID TenantID, _ CreateDrillParams) error {
	return requestDrill(c, drillView, func(ctx context.Context, id prego.BackupID, by string) (tenant.Drill, error) {
		return a.d.Store.BeginDrill(ctx, tenantID, id, a.d.Resources.SiteDomain, by)
	})
}

// requestDrill requests a drill of the backup in the body, or of the newest.
func requestDrill[V any](c echo.Context, view func(tenant.Drill) V, begin func(ctx context.Context, id prego.BackupID, by string) (tenant.Drill, error)) error {
	var in struct {
		BackupID prego.BackupID `json:"backup_id"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	d, err := begin(c.Request().Context(), in.BackupID, caller(c).By())
	return answer(c, http.StatusCreated, d, err, view)
}

func volumeDrillView(d tenant.Drill) VolumeDrill {
	out := viewOf[VolumeDrill](d)
	out.Bytes = nil
	if d.Files > 0 {
		out.Entries, out.Bytes = &d.Files, &d.Bytes
	}
	return out
}

// ListVolumeDrills shows a page of the drills of a volume's backups.
func (a *API) ListVolumeDrills(c echo.Context, id VolumeInPath, _ ListVolumeDrillsParams) error {
	return list(c, "drills", store.Drills.In(a.d.Store), volumeDrillView, "volume_id", string(id))
}

// CreateVolumeDrill requests a drill of a volume's backup. A worker begins it.
func (a *API) CreateVolumeDrill(c echo.Context, id VolumeInPath, _ CreateVolumeDrillParams) error {
	return requestDrill(c, volumeDrillView, func(ctx context.Context, backup prego.BackupID, by string) (tenant.Drill, error) {
		return a.d.Store.BeginVolumeDrill(ctx, id, backup, by)
	})
}
