package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// A look begins when the time since the last one is over, unless another process is looking.
const sqlBeginLook = `
INSERT INTO looks AS l (look, holder, leased_until, began_at, every_seconds) VALUES ($1, $2, now() + make_interval(secs => $3), now(), $4)
ON CONFLICT (look) DO UPDATE SET holder = $2, leased_until = now() + make_interval(secs => $3), began_at = now(), every_seconds = $4
WHERE l.leased_until <= now() AND l.began_at + make_interval(secs => GREATEST($4, l.pause_seconds)) <= now()`

const sqlNextLook = `
SELECT EXTRACT(EPOCH FROM GREATEST(leased_until, began_at + make_interval(secs => GREATEST($2, pause_seconds))) - now())::float8 FROM looks WHERE look = $1`

// BeginLook takes a look that is due, for as long as the lease, and reports whether it did.
// Otherwise wait is the time until it may be due.
func (s *Store) BeginLook(ctx context.Context, look, holder string, every, lease time.Duration) (began bool, wait time.Duration, err error) {
	if began, err = changed(ctx, s.pool, sqlBeginLook, look, holder, lease.Seconds(), every.Seconds()); err != nil || began {
		return began, 0, failed("begin look "+look, err)
	}
	seconds, err := value[float64](ctx, s.pool, sqlNextLook, look, every.Seconds())
	return false, max(0, time.Duration(seconds*float64(time.Second))), failed("next look "+look, err)
}

const sqlExtendLook = `UPDATE looks SET leased_until = now() + make_interval(secs => $3) WHERE look = $1 AND holder = $2 AND leased_until > now()`

// ExtendLook prolongs the lease of a look that is under way; false if it was lost.
func (s *Store) ExtendLook(ctx context.Context, look, holder string, lease time.Duration) (bool, error) {
	ok, err := changed(ctx, s.pool, sqlExtendLook, look, holder, lease.Seconds())
	return ok, failed("extend look "+look, err)
}

const sqlEndLook = `
UPDATE looks SET leased_until = now(), pause_seconds = $3, took_seconds = EXTRACT(EPOCH FROM now() - began_at), error = $5,
    looked_at = CASE WHEN $5 = '' THEN now() ELSE looked_at END, found_at = CASE WHEN $4 THEN now() ELSE found_at END
WHERE look = $1 AND holder = $2`

// EndLook records the result of a look: whether it found work, why it failed, and
// the least time until the next one begins after this one began.
func (s *Store) EndLook(ctx context.Context, look, holder string, r ops.LookResult, why error) error {
	message := ""
	if why != nil {
		message = prego.Redact(why.Error())
	}
	return s.exec(ctx, "end look "+look, sqlEndLook, look, holder, r.Pause.Seconds(), r.Found, message)
}

const sqlLooks = `SELECT look, holder, looked_at, found_at, GREATEST(every_seconds, pause_seconds) AS every_seconds, took_seconds, error
FROM looks WHERE look NOT IN (` + processes + `) ORDER BY look`

// Looks are all looks, with when they last happened.
func (s *Store) Looks(ctx context.Context) ([]ops.LookState, error) {
	return collect[ops.LookState](ctx, s, "looks", sqlLooks)
}

const (
	processes = `'agentgw', 'worker'` // ops.ProcessGateway and ops.ProcessWorker
	// No process of the kind of row l has looked for a minute.
	processSilent = `GREATEST(l.began_at, l.looked_at) < now() - interval '1 minute'`

	sqlProcesses = `
SELECT p.process, GREATEST(l.began_at, l.looked_at) AS seen_at, COALESCE(` + processSilent + `, true) AS silent,
    COALESCE(l.error, '') AS error
FROM unnest(ARRAY[` + processes + `]) p (process) LEFT JOIN looks l ON l.look = p.process ORDER BY p.process`
)

// Processes returns whether the processes run that state so, one of each kind.
func (s *Store) Processes(ctx context.Context) ([]ops.ProcessState, error) {
	return collect[ops.ProcessState](ctx, s, "processes", sqlProcesses)
}

const sqlTenantsNeedSweep = `
SELECT EXISTS (SELECT FROM tenants WHERE state IN ('trial', 'provisioning') AND updated_at < now() - make_interval(secs => $1))
    OR EXISTS (SELECT FROM tenants WHERE (converged_state <> state) IS TRUE AND state NOT IN ('trial', 'provisioning') AND updated_at < now() - make_interval(secs => $1))
    OR EXISTS (SELECT FROM tenants WHERE deadline_at <= now())
    OR EXISTS (SELECT FROM tenants WHERE waiting_since IS NOT NULL)
    OR EXISTS (SELECT FROM site_pool WHERE state = 'reserved' AND reserved_until < now())
    OR EXISTS (SELECT FROM site_pool p JOIN servers s ON s.server_id = p.app_server_id AND s.status = 'terminated'
        JOIN db_shards d ON d.shard_id = p.db_shard_id JOIN servers h ON h.server_id = d.server_id AND h.status = 'active'
        WHERE p.on_shard AND p.dropped_at IS NULL AND p.state IN ('draining', 'failed'))
    OR EXISTS (SELECT FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
        WHERE t.state = 'failed' AND t.updated_at < now() - make_interval(secs => $1))`

// TenantsNeedSweep reports whether FindTenantWork would find something.
func (s *Store) TenantsNeedSweep(ctx context.Context, quiet time.Duration) (bool, error) {
	found, err := value[bool](ctx, s.pool, sqlTenantsNeedSweep, quiet.Seconds())
	return found, failed("look for tenants' work", err)
}

// The oldest is the first of an index; to ask whether any is that old would read all of them
// whenever none is.
const sqlStorageDue = `SELECT COALESCE((SELECT min(tried_at) FROM site_usage) < now() - make_interval(secs => $1), false)`

// StorageDue reports whether it is some site's turn to be measured.
func (s *Store) StorageDue(ctx context.Context, every time.Duration) (bool, error) {
	due, err := value[bool](ctx, s.pool, sqlStorageDue, every.Seconds())
	return due, failed("look for sites to measure", err)
}

// Postgres's own estimate, which is kept by vacuum.
const sqlFleetSize = `SELECT GREATEST(reltuples, 0)::int FROM pg_class WHERE oid = 'servers'::regclass`

// FleetSize is about how many servers there are, without counting them.
func (s *Store) FleetSize(ctx context.Context) (int, error) {
	n, err := value[int](ctx, s.pool, sqlFleetSize)
	return n, failed("size of the fleet", err)
}
