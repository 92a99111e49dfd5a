package store

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
)

// The last gate: whatever deletes something outside this database passes it immediately before, on every road. It
// reads the rows of that moment, not those that the road was chosen by. What holds nothing passes. What holds something
// live, or the only copy of something, passes only in a state that nothing enters without an accepted impact.

// holder is something live, or the only copy of something, in what is to be deleted.
type holder struct {
	Kind, ID string
	What     string // in words
	Accepted bool   // its row has the state of a deletion
}

// $1 is the provider, $2 the kind and $3 the provider's id of a resource. Data is on the machine of the last attempt,
// and of an earlier one that was in use, as its protection shows; other attempts never enrolled.
const sqlHeldByResource = `
SELECT 'server' AS kind, s.server_id AS id,
    format('server %s is %s and has %s tenants, %s instances and %s volumes',
        s.server_id, s.status, u.tenants, u.instances, u.volumes) AS what,
    s.status IN ('draining', 'terminated') AS accepted
FROM servers s CROSS JOIN LATERAL server_use(s.server_id) u
WHERE u.tenants + u.instances + u.volumes > 0 AND s.server_id IN (
    SELECT o.server_id FROM servers o WHERE $2 = 'server' AND o.infra_provider = $1 AND o.provider_server_id = $3
    UNION SELECT r.server_id FROM resources r JOIN servers o USING (server_id)
    WHERE r.provider = $1 AND r.kind = $2 AND r.provider_id = $3 AND r.state <> 'released' AND (r.attempt = o.attempt
        OR EXISTS (SELECT FROM resources m WHERE m.server_id = r.server_id AND m.attempt = r.attempt AND m.protected)))
UNION ALL SELECT 'tenant', l.tenant_id,
    format('tenant %s was lost with server %s and is not restored', t.slug, l.lost_with), false
FROM lost_data l JOIN tenants t USING (tenant_id) JOIN servers s ON s.server_id = l.server_id
WHERE s.infra_provider = $1 AND ($2 = 'server' AND s.provider_server_id = $3
    OR $2 = 'volume' AND EXISTS (SELECT FROM resources r WHERE r.server_id = s.server_id
        AND r.provider = $1 AND r.kind = 'volume' AND r.provider_id = $3 AND r.state <> 'released'))
UNION ALL SELECT 'volume', v.volume_id, format('volume %s of org %s is %s', v.name, v.org_id, v.status),
    v.status = 'releasing' AND NOT ` + isKept + ` OR v.deleted_at IS NOT NULL
FROM (SELECT * FROM volumes WHERE $2 = 'volume' AND provider = $1 AND provider_id = $3 FOR SHARE) v
WHERE v.made_bytes > 0
UNION ALL SELECT 'ipv4', a.allocation_id, format('address %s of org %s is %s', a.address, a.org_id, a.status), false
FROM ipv4_allocations a
WHERE $2 = 'floating_ip' AND a.provider = $1 AND a.provider_id = $3 AND a.deleted_at IS NULL AND a.status = 'ready'`

// Data is destroyed in two phases: for a day after the request it is only out of use, and the request can be taken
// back. The day is a constant, since it is meant for mistakes; backups keep data for longer. The gate locks the row,
// and an undo reads the clock behind that lock: one of them sees the other.
const (
	keepUntil = `now() + interval '1 day'`
	isKept    = `COALESCE(kept_until > now(), false)`
	canUndo   = `kept_until > clock_timestamp()`
)

// undoUntil is how a deletion is undone, and until when.
func undoUntil(until *time.Time, command string, args ...any) string {
	if until == nil {
		return ""
	}
	return fmt.Sprintf(command, args...) + ", until " + until.UTC().Format("2006-01-02T15:04Z")
}

const sqlUnrestoredOf = `SELECT count(*) FROM lost_data WHERE lost_with = $1 AND server_id = $1`

// $1 is the server, $2 the site and $3 the database that a command erases there; an empty one is none. A site that is
// being built for the first time holds nothing. What a tenant has lost with a server is the only copy of it until its
// next site is restored and compared with the backup; its cache is none.
const sqlHeldBySite = `
SELECT 'tenant' AS kind, t.tenant_id AS id,
    format('tenant %s is %s, and its data is on server %s', t.slug, t.state, $1::text) AS what,
    t.state = 'data_purged' AS accepted
FROM tenant_allocations a JOIN tenants t USING (tenant_id)
LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id LEFT JOIN redis_pools r ON r.pool_id = a.redis_pool_id
WHERE a.allocation_id IN (
    SELECT o.allocation_id FROM tenant_allocations o JOIN tenants h USING (tenant_id)
    WHERE o.released_at IS NULL AND h.site <> '' AND (has_site(h.state) OR h.state IN ('terminated', 'data_purged'))
      AND (o.app_server_id = $1 OR o.db_shard_id IN (SELECT shard_id FROM db_shards WHERE server_id = $1)
        OR o.redis_pool_id IN (SELECT pool_id FROM redis_pools WHERE server_id = $1))
    UNION SELECT l.allocation_id FROM lost_data l JOIN tenants t USING (tenant_id)
    WHERE l.cleared_at IS NULL AND t.site = '')
  AND (a.app_server_id = $1 AND ($2 <> '' AND $2 IN (a.site_name, t.site) OR NOT a.on_shard AND a.database_name = $3)
    OR a.on_shard AND d.server_id = $1 AND a.database_name = $3
    OR a.on_pool AND r.server_id = $1 AND a.database_name = $3 AND a.released_at IS NULL)`

// The row is locked whatever it is (OFFSET 0 keeps the condition outside), and read behind the lock.
const sqlHeldBySnapshot = `
SELECT 'tenant' AS kind, s.tenant_id AS id,
    format('snapshot %s of tenant %s is %s', s.snapshot_id, s.tenant_id, s.status) AS what, false AS accepted
FROM (SELECT * FROM snapshots WHERE snapshot_id = $1 OFFSET 0 FOR SHARE) s
WHERE s.status = 'succeeded' OR ` + isKeptSnapshot

// The deletion of a backup is worth counting if no other usable one is left of its owner, and is too early while the
// backup is kept.
const sqlHeldByObject = `
SELECT CASE WHEN b.tenant_id IS NULL THEN 'volume' ELSE 'tenant' END AS kind, COALESCE(b.tenant_id, b.volume_id) AS id,
    format('backup %s of %s is %s', b.backup_id, COALESCE(b.tenant_id, b.volume_id), b.state) AS what,
    b.state = 'deleting' AND NOT ` + isKept + ` AS accepted
FROM (SELECT * FROM backups WHERE backup_id = $1 FOR SHARE) b
WHERE $2 IN (b.object_key, b.manifest_key) AND (b.state IN ('uploading', 'stored')
    OR b.state = 'deleting' AND ` + isKept + `
    OR b.state = 'deleting' AND b.bytes > 0 AND NOT EXISTS (SELECT FROM backups o
        WHERE (o.tenant_id = b.tenant_id OR o.volume_id = b.volume_id) AND o.backup_id <> b.backup_id
        AND backup_is_usable(o.state, o.missing_at, o.verify_message)))`

const (
	sqlFreeze    = `SELECT true AS frozen, since, frozen_by AS "by", reason FROM freezes WHERE ended_at IS NULL`
	sqlSetFreeze = `
INSERT INTO freezes (frozen_by, reason) VALUES ($1, $2) ON CONFLICT ((true)) WHERE ended_at IS NULL
DO UPDATE SET reason = freezes.reason RETURNING true AS frozen, since, frozen_by AS "by", reason`
	sqlEndFreeze = `UPDATE freezes SET ended_at = now(), ended_by = $1 WHERE ended_at IS NULL`
	sqlRefused   = `
INSERT INTO destructions AS d (kind, id, refused_since, refused_at, message) VALUES ($1, $2, now(), now(), $3)
ON CONFLICT (kind, id) DO UPDATE SET refused_since = COALESCE(d.refused_since, now()), refused_at = now(),
    message = $3`
	sqlDestroying = `
INSERT INTO destructions AS d (kind, id, at) VALUES ($1, $2, now())
ON CONFLICT (kind, id) DO UPDATE SET at = CASE WHEN d.at > now() - interval '1 day' THEN d.at ELSE now() END,
    refused_since = NULL, refused_at = NULL, message = ''`
	sqlForgetDestructions = `DELETE FROM destructions WHERE GREATEST(at, refused_at) < now() - interval '2 days'`
	// $1 is the share of what there is, in percent, and $2 the least number above which all stops.
	sqlTooMany = `
SELECT n, n > GREATEST($2, $1 * ((SELECT count(*) FROM tenants WHERE has_site(state))
    + (SELECT count(*) FROM volumes WHERE deleted_at IS NULL)) / 100) AS over
FROM (SELECT count(*) AS n FROM destructions
    WHERE at > GREATEST(now() - interval '1 hour', (SELECT max(ended_at) FROM freezes))) d`
)

// Above this share of all tenants and volumes in an hour, and above this number, no destruction is a normal one.
const (
	mostDestroyedPct = 5
	mostDestroyedMin = 20
)

// MayDelete is the last gate before a resource is deleted at its provider.
func (s *Store) MayDelete(
	ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, id string,
) error {
	return s.gate(ctx, fmt.Sprintf("%s %s", kind, id), sqlHeldByResource, provider, kind, id)
}

// MayErase is the last gate before a site or its database is erased on a server; "" is none.
func (s *Store) MayErase(ctx context.Context, at prego.ServerID, site, database string) error {
	return s.gate(ctx, fmt.Sprintf("%s on server %s", site+database, at), sqlHeldBySite, at, site, database)
}

// MayRun is the last gate before a command on a host that erases something there. Others pass.
func (s *Store) MayRun(ctx context.Context, at prego.ServerID, kind wire.CommandKind, args []string) error {
	switch e, erases := policy.Erased(kind, args); {
	case !erases:
		return nil
	case e.Copy != "":
		return s.MayForget(ctx, e.Copy)
	default:
		return s.MayErase(ctx, at, e.Site, e.Database)
	}
}

// MayForget is the last gate before a copy of a site that stays on its server is deleted.
func (s *Store) MayForget(ctx context.Context, name string) error {
	return s.gate(ctx, name, sqlHeldBySnapshot, name)
}

// MayDeleteObject is the last gate before an object is deleted from the storage of backups.
func (s *Store) MayDeleteObject(ctx context.Context, key string) error {
	return s.gate(ctx, key, sqlHeldByObject, path.Base(path.Dir(key)), key)
}

// Held is a refusal of the last gate. It has no code of the API: a step of a workflow that gets it is repeated.
type Held struct {
	Code    prego.Code // CodeHoldsData or CodeFrozen
	Message string
}

func (h *Held) Error() string { return string(h.Code) + ": " + h.Message }

func held(code prego.Code, format string, args ...any) error {
	return &Held{Code: code, Message: fmt.Sprintf(format, args...)}
}

// gate returns a *Held if it refuses. A refusal is kept, for
// attention, and so is what passes with data: too much of that in an hour freezes all.
func (s *Store) gate(ctx context.Context, what, sqlHeld string, args ...any) error {
	var refusal error
	err := s.inTx(ctx, "the last gate before deleting "+what, func(tx *txn) error {
		refusal = s.refuses(ctx, tx, what, manyIn[holder](ctx, tx, sqlHeld, args...))
		return nil
	})
	if err == nil {
		err = refusal
	}
	return err
}

func (s *Store) refuses(ctx context.Context, tx *txn, what string, holders []holder) error {
	if f := findIn[ops.Freeze](ctx, tx, sqlFreeze); f != nil {
		return held(prego.CodeFrozen, "%s is not deleted: %s has frozen all deletions at %s: %s",
			what, f.By, f.Since.UTC().Format(time.RFC3339), f.Reason)
	}
	for _, h := range holders {
		if !h.Accepted {
			tx.run(ctx, sqlRefused, h.Kind, h.ID, what+" is not deleted: "+h.What)
			return held(prego.CodeHoldsData, "%s is not deleted: %s", what, h.What)
		}
	}
	for _, h := range holders {
		tx.run(ctx, sqlDestroying, h.Kind, h.ID)
	}
	if len(holders) == 0 {
		return nil
	}
	tx.run(ctx, sqlForgetDestructions)
	many := oneIn[struct {
		N    int
		Over bool
	}](ctx, tx, sqlTooMany, mostDestroyedPct, mostDestroyedMin)
	if !many.Over {
		return nil
	}
	why := fmt.Sprintf("%d tenants, volumes and servers lost their data within an hour", many.N)
	tx.run(ctx, sqlSetFreeze, "prego", why)
	return held(prego.CodeFrozen, "%s is not deleted: %s", what, why)
}

// UnrestoredOf counts the tenants that were lost with a server and are not restored: its machine has their newest data.
func (s *Store) UnrestoredOf(ctx context.Context, id prego.ServerID) (int, error) {
	n, err := value[int](ctx, s.pool, sqlUnrestoredOf, id)
	return n, failed(fmt.Sprintf("tenants lost with %s", id), err)
}

// Frozen reads whether all deletions are frozen.
func (s *Store) Frozen(ctx context.Context) (ops.Freeze, error) {
	f, err := find[ops.Freeze](ctx, s.pool, sqlFreeze)
	if err != nil || f == nil {
		return ops.Freeze{}, err
	}
	return *f, nil
}

// Freeze stops everything that deletes outside this database. An earlier freeze stays as it is.
func (s *Store) Freeze(ctx context.Context, reason, by string) (f ops.Freeze, err error) {
	err = s.inTx(ctx, "freeze", func(tx *txn) error {
		f = oneIn[ops.Freeze](ctx, tx, sqlSetFreeze, by, prego.Redact(reason))
		return nil
	})
	return f, err
}

// Unfreeze lets deletions continue, and counts them from zero. Without a freeze it does nothing.
func (s *Store) Unfreeze(ctx context.Context, by string) error {
	return s.exec(ctx, "unfreeze", sqlEndFreeze, by)
}
