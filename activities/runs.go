package activities

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// Runs starts and signals workflows from within a step. Ensure… starts a run for a row unless one is running; started
// reports which. If a start fails, a look or the reconciler repeats it: the row is what counts.
type Runs interface {
	// StopProvisioning cancels a server's provisioning run and waits until it has
	// cleaned up; success if there is none.
	StopProvisioning(ctx context.Context, serverID prego.ServerID, beat func()) error
	// WakeProvision has a server that waits for capacity try its candidates now.
	WakeProvision(ctx context.Context, serverID prego.ServerID) error
	EnsureProvision(ctx context.Context, serverID prego.ServerID, generation int) (started bool, err error)
	EnsureDecommission(ctx context.Context, serverID prego.ServerID) (started bool, err error)

	EnsureTenantProvision(ctx context.Context, tenantID prego.TenantID, generation int) (started bool, err error)
	EnsureTenantChange(ctx context.Context, tenantID prego.TenantID) (started bool, err error)
	// ResumeTenant wakes the run of a tenant that has its place now, and starts it if it waited without one.
	ResumeTenant(ctx context.Context, t tenant.Tenant) error
	EnsureScaleFleet(ctx context.Context, fleetID prego.FleetID) error
	EnsureScaleOut(ctx context.Context, region prego.Region, role prego.Role, trigger string) error
	EnsureRefill(ctx context.Context, appServerID prego.ServerID) error
	EnsureWarmPool(ctx context.Context, region prego.Region, plan prego.Plan) error
	StartTenantSweep(ctx context.Context) error
	StartMeasureSites(ctx context.Context) error
	StartCatalogRefresh(ctx context.Context) (id string, err error)

	EnsureAddress(ctx context.Context, id string) (started bool, err error)
	EnsureVolume(ctx context.Context, id prego.VolumeID) (started bool, err error)
	EnsureSnapshot(ctx context.Context, id prego.SnapshotID) (started bool, err error)
	EnsureRestore(ctx context.Context, id string) (started bool, err error)
	EnsureSnapshotErase(ctx context.Context, id prego.SnapshotID) (started bool, err error)

	EnsureBackup(ctx context.Context, id prego.BackupID) (started bool, err error)
	EnsureDrill(ctx context.Context, id string) (started bool, err error)
	EnsureBackupDelete(ctx context.Context, id prego.BackupID) (started bool, err error)
	EnsureVolumeRestore(ctx context.Context, id string) (started bool, err error)

	EnsureMove(ctx context.Context, id prego.MoveID) (started bool, err error)
	CancelMove(ctx context.Context, id prego.MoveID) error
	// WakeRuns signals runs whose turn to do long work of their org has come.
	WakeRuns(ctx context.Context, ids []string) error

	// WakeGroup signals a group's workflow that something changed, and starts it if necessary.
	WakeGroup(ctx context.Context, groupID prego.GroupID, orgID prego.OrgID) error
	EnsureMaintenance(ctx context.Context, serverID prego.ServerID) (started bool, err error)
	// WakeMaintenance signals the run that empties a server, and starts it if necessary.
	WakeMaintenance(ctx context.Context, serverID prego.ServerID) error

	EnsureStackRelease(ctx context.Context, name server.StackReleaseName) (started bool, err error)
	WakeStackRelease(ctx context.Context, name server.StackReleaseName) error
	EnsureBenchUpdate(ctx context.Context, name server.StackReleaseName, serverID prego.ServerID) (started bool, err error)
	CancelBenchUpdate(ctx context.Context, name server.StackReleaseName, serverID prego.ServerID) error

	EnsureImageBuild(ctx context.Context, imageID prego.ImageID) (started bool, err error)
	EnsureImageDelete(ctx context.Context, imageID prego.ImageID) (started bool, err error)

	EnsureCertificate(ctx context.Context, id prego.CertificateID) (started bool, err error)
	StartCertificateSweep(ctx context.Context) error
	StartKeepNames(ctx context.Context) error

	OpenRuns(ctx context.Context) ([]string, error)
}
