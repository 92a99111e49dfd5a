package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Changes to sites that must end before a server's sites are taken offline.
const sqlBenchWaits = `
WITH here AS (SELECT t.tenant_id, t.state, t.converged_state, t.opening_since FROM tenant_allocations a
    JOIN tenants t ON t.tenant_id = a.tenant_id WHERE a.app_server_id = $1 AND a.released_at IS NULL)
SELECT text FROM (
    SELECT 1 AS n, 'tenant ' || tenant_id || ' is ' || CASE WHEN state = 'provisioning' THEN 'being provisioned' ELSE 'becoming ' || state END AS text FROM here
    WHERE state = 'provisioning' AND opening_since IS NULL OR has_site(state) AND converged_state IS DISTINCT FROM state
    UNION ALL SELECT 2, 'tenant ' || tenant_id || ' is being restored' FROM here h WHERE EXISTS (SELECT FROM restore_jobs j WHERE j.tenant_id = h.tenant_id AND j.status IN ('queued', 'running'))
    UNION ALL SELECT 2, 'tenant ' || tenant_id || ' is being moved' FROM tenant_moves WHERE $1 IN (from_server_id, to_server_id) AND (state IN ('copying', 'frozen') OR state = 'switched' AND opened_at IS NULL)
    UNION ALL SELECT 3, 'a site of the pool is being built' FROM site_pool WHERE app_server_id = $1 AND state = 'reserved' AND tenant_id IS NULL
) w ORDER BY n, text LIMIT 1`

const sqlBenchRecord = `
SELECT v.release, v.server_id, v.status, v.reason, v.message, v.from_image, v.undoing, v.try, r.image, r.apps, s.role, s.region, COALESCE(s.host, '') AS host, ` + serverGone + ` AS gone,
    r.status = 'cancelled' AS cancelled, NOT v.undoing AND s.bench_image = v.from_image AND NOT EXISTS (SELECT FROM stack_release_sites z
        WHERE z.release = v.release AND z.server_id = v.server_id AND z.offline_at IS NOT NULL) AS untouched
FROM stack_release_servers v JOIN stack_releases r ON r.name = v.release JOIN servers s ON s.server_id = v.server_id WHERE v.release = $1 AND v.server_id = $2`

const sqlHoldBench = `SELECT FROM stack_release_servers WHERE release = $1 AND server_id = $2 FOR NO KEY UPDATE`

const sqlBenchSites = `
SELECT site, tenant_id, pool_site_id, status, offline_at IS NOT NULL AS closed FROM stack_release_sites WHERE release = $1 AND server_id = $2 ORDER BY site`

// A failed try leaves nothing to finish; sites that came and went since are found again.
const (
	sqlForgetBenchSites = `DELETE FROM stack_release_sites WHERE release = $1 AND server_id = $2`
	sqlFindBenchSites   = `
INSERT INTO stack_release_sites (release, server_id, site, tenant_id, pool_site_id, org_id)
SELECT $1, $2, t.site, t.tenant_id, '', t.org_id FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
WHERE a.app_server_id = $2 AND a.released_at IS NULL AND t.site <> ''
  AND (has_site(t.state) OR t.opening_since IS NOT NULL)
UNION ALL SELECT $1, $2, site_name, '', pool_site_id, '' FROM site_pool WHERE app_server_id = $2 AND state = 'available'`
	sqlBenchPhase = `UPDATE stack_release_servers SET phase = $3, message = CASE WHEN undoing THEN message ELSE '' END, updated_at = now()
WHERE release = $1 AND server_id = $2 AND status = 'updating'`
	sqlBenchRetries = `
UPDATE stack_release_servers SET message = $3, updated_at = now()
WHERE release = $1 AND server_id = $2 AND status = 'updating' AND NOT undoing AND message <> $3`
)

type benchRow struct {
	Release   server.StackReleaseName
	ServerID  prego.ServerID
	Status    server.BenchStatus
	Reason    prego.Reason
	Message   string
	FromImage string
	Undoing   bool
	Try       int
	Image     string
	Apps      map[string]string
	Role      prego.Role
	Region    prego.Region
	Host      string
	Gone      bool
	Cancelled bool
	Untouched bool
}

func benchIn(ctx context.Context, q querier, name server.StackReleaseName, id prego.ServerID) (server.BenchRecord, error) {
	v, err := get[benchRow](ctx, q, noSuchRelease(name), sqlBenchRecord, name, id)
	if err != nil {
		return server.BenchRecord{}, err
	}
	out := server.BenchRecord{
		BenchUpdate: server.BenchUpdate{Release: v.Release, ServerID: v.ServerID, Status: v.Status, Reason: v.Reason, Message: v.Message, FromImage: v.FromImage},
		Undoing:     v.Undoing, Try: v.Try, Image: v.Image, Apps: v.Apps, Role: v.Role, Region: v.Region, Host: v.Host, Gone: v.Gone,
		Cancelled: v.Cancelled, Untouched: v.Untouched,
	}
	out.Sites, err = many[server.StackReleaseSite](ctx, q, sqlBenchSites, name, id)
	return out, err
}

// BenchRecord reads a server that is being updated, with its sites.
func (s *Store) BenchRecord(ctx context.Context, name server.StackReleaseName, id prego.ServerID) (server.BenchRecord, error) {
	out, err := benchIn(ctx, s.pool, name, id)
	return out, failed(fmt.Sprintf("release %s on %s", name, id), err)
}

// BeginBenchUpdate finds the sites of a server to update, once no other process is changing a site; until then it
// reports what it waits for. Repeated, it returns the same sites.
func (s *Store) BeginBenchUpdate(ctx context.Context, name server.StackReleaseName, id prego.ServerID) (out server.BenchRecord, err error) {
	err = s.inTx(ctx, fmt.Sprintf("release %s on %s", name, id), func(tx *txn) error {
		tx.run(ctx, sqlHoldBench, name, id)
		if out, err = benchIn(ctx, tx, name, id); err != nil || out.Status != server.BenchUpdating || out.Undoing || out.Gone || out.Cancelled {
			return err
		}
		phase, err := value[string](ctx, tx, sqlBenchIsAt, name, id)
		if err != nil || phase != "waiting" {
			return err
		}
		waits := findIn[struct{ Text string }](ctx, tx, sqlBenchWaits, id)
		if waits != nil {
			out.Waits = waits.Text
			return nil
		}
		tx.run(ctx, sqlForgetBenchSites, name, id)
		tx.run(ctx, sqlFindBenchSites, name, id)
		tx.run(ctx, sqlBenchPhase, name, id, "preparing")
		out = got(benchIn(ctx, tx, name, id)).in(tx)
		return nil
	})
	return out, err
}

const sqlBenchIsAt = `SELECT phase FROM stack_release_servers WHERE release = $1 AND server_id = $2`

// BenchPhase records the current phase of a server's update.
func (s *Store) BenchPhase(ctx context.Context, name server.StackReleaseName, id prego.ServerID, phase string) error {
	return s.exec(ctx, fmt.Sprintf("release %s on %s", name, id), sqlBenchPhase, name, id, phase)
}

// BenchRetries records why the current phase of a server's update has not succeeded yet, while it is tried again.
func (s *Store) BenchRetries(ctx context.Context, name server.StackReleaseName, id prego.ServerID, why string) error {
	return s.exec(ctx, fmt.Sprintf("release %s on %s", name, id), sqlBenchRetries, name, id, prego.Redact(why))
}

// Edges show the maintenance page after the first, and the sites after the second.
const (
	sqlCloseBenchSites = `
WITH closed AS (UPDATE stack_release_sites SET offline_at = COALESCE(offline_at, now()), opened_at = NULL, updated_at = now()
    WHERE release = $1 AND server_id = $2 AND tenant_id <> '' AND (offline_at IS NULL OR opened_at IS NOT NULL) RETURNING tenant_id)
INSERT INTO changes (kind, id) SELECT 'tenants', tenant_id FROM closed`
	sqlOpenBenchSites = `
WITH opened AS (UPDATE stack_release_sites SET opened_at = now(), updated_at = now()
    WHERE release = $1 AND server_id = $2 AND tenant_id <> '' AND offline_at IS NOT NULL AND opened_at IS NULL RETURNING tenant_id)
INSERT INTO changes (kind, id) SELECT 'tenants', tenant_id FROM opened`
)

// CloseBenchSites makes edges show the maintenance page instead of a server's sites.
func (s *Store) CloseBenchSites(ctx context.Context, name server.StackReleaseName, id prego.ServerID) error {
	return s.exec(ctx, fmt.Sprintf("release %s closes the sites on %s", name, id), sqlCloseBenchSites, name, id)
}

// OpenBenchSites makes edges show a server's sites again.
func (s *Store) OpenBenchSites(ctx context.Context, name server.StackReleaseName, id prego.ServerID) error {
	return s.exec(ctx, fmt.Sprintf("release %s opens the sites on %s", name, id), sqlOpenBenchSites, name, id)
}

const sqlBenchSiteStep = `UPDATE stack_release_sites SET status = $4, updated_at = now() WHERE release = $1 AND server_id = $2 AND site = $3`

// BenchSiteStep records the progress of a site's update.
func (s *Store) BenchSiteStep(ctx context.Context, name server.StackReleaseName, id prego.ServerID, site string, step server.StackReleaseSiteStep) error {
	return s.exec(ctx, fmt.Sprintf("release %s of site %s", name, site), sqlBenchSiteStep, name, id, site, step)
}

const sqlSetBenchImage = `
UPDATE servers s SET bench_image = $3, updated_at = now() FROM stack_release_servers v
WHERE v.release = $1 AND v.server_id = $2 AND v.status = 'updating' AND s.server_id = v.server_id AND s.bench_image <> $3`

// SetBenchImage records the image that a server's bench must run; "" is the configured one.
func (s *Store) SetBenchImage(ctx context.Context, name server.StackReleaseName, id prego.ServerID, image string) error {
	return s.exec(ctx, string("bench of "+id), sqlSetBenchImage, name, id, image)
}

// A server being created gets the bench of the current release.
const sqlContainerPlace = `
WITH adopted AS (
    UPDATE servers s SET bench_image = r.image FROM stack_releases r
    WHERE s.server_id = $1 AND s.status = 'provisioning' AND s.bench_image = '' AND s.role IN ('app', 'node') AND r.current RETURNING r.image
)
SELECT COALESCE(host(private_address), ''), COALESCE((SELECT image FROM adopted), bench_image) FROM servers WHERE server_id = $1`

// ContainerPlace returns what a server's containers depend on besides its role: its address in its private network,
// "" without one, and the image of its bench, "" for the configured one.
func (s *Store) ContainerPlace(ctx context.Context, id prego.ServerID) (private, bench string, err error) {
	err = s.pool.QueryRow(ctx, sqlContainerPlace, id).Scan(&private, &bench)
	return private, bench, failed(fmt.Sprintf("containers of %s", id), ifNoRows(err, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id)))
}

const sqlUndoBench = `
UPDATE stack_release_servers SET undoing = true, phase = 'undoing', reason = $3, message = $4, updated_at = now() WHERE release = $1 AND server_id = $2 AND status = 'updating' AND try = $5 AND NOT undoing`

// UndoBench records that a server rolls back in a try, and why. The first reason stays.
func (s *Store) UndoBench(
	ctx context.Context, name server.StackReleaseName, id prego.ServerID, try int, reason prego.Reason, message string,
) error {
	return s.exec(ctx, fmt.Sprintf("release %s on %s", name, id), sqlUndoBench, name, id, reason, prego.Redact(message), try)
}

const (
	sqlEndBench = `
UPDATE stack_release_servers SET status = $3, phase = '', reason = CASE WHEN $4 <> '' THEN $4 ELSE reason END, message = CASE WHEN $5 <> '' THEN $5 ELSE message END, finished_at = now(), updated_at = now()
WHERE release = $1 AND server_id = $2 AND status = 'updating' AND try = $6 RETURNING reason, message`
	sqlPoolSiteLost = `
UPDATE site_pool p SET state = 'failed', reason = 'bench_rolled_back', updated_at = now() FROM stack_release_sites t
WHERE t.release = $1 AND t.server_id = $2 AND t.pool_site_id = p.pool_site_id AND t.status <> 'waiting' AND p.state = 'available'`
)

// EndBench records how a try to update a server ended, and opens the server to new tenants again, unless it is broken.
// Sites of the pool whose migration had started before a rollback are lost. A repetition of an earlier try's end, after
// the release was resumed, changes nothing.
func (s *Store) EndBench(ctx context.Context, name server.StackReleaseName, id prego.ServerID, try int,
	status server.BenchStatus, reason prego.Reason, message string,
) error {
	return s.inTx(ctx, fmt.Sprintf("release %s on %s", name, id), func(tx *txn) error {
		ended, err := find[struct {
			Reason  prego.Reason
			Message string
		}](ctx, tx, sqlEndBench, name, id, status, reason, prego.Redact(message), try)
		if err != nil || ended == nil {
			return err
		}
		if status == server.BenchRolledBack {
			tx.run(ctx, sqlPoolSiteLost, name, id)
		}
		if status != server.BenchBroken {
			tx.run(ctx, sqlUncordon, id)
		}
		return addEvent(ctx, tx, server.Event{
			ServerID: id, Step: server.StepBenchUpdated, Reason: ended.Reason, Actor: prego.ActorWorkflow,
			Message: fmt.Sprintf("release %s: %s %s", name, status, ended.Message),
		}, "")
	})
}
