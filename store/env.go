package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/workload"
)

const envColumns = `env_id, app_id, org_id, name, region, created_by, created_at, deleted_at`

const sqlNewEnv = `INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ($1, $2, $3, $4, $5, $6)`

const sqlEnvOfName = `SELECT env_id FROM envs WHERE app_id = $1 AND name = $2 AND deleted_at IS NULL`

// CreateEnv creates an env of an app, in the app's org. Repeating the request with the same key returns the existing
// env, even after its deletion. If the name is taken, CodeEnvExists names the env that has it.
func (s *Store) CreateEnv(ctx context.Context, e workload.Env, key string) (env workload.Env, created bool, err error) {
	k := keyedRequest(ctx, e.CreatedBy, key, "env", string(e.AppID), e.Name, string(e.Region))
	made := func(ctx context.Context, id string) (workload.Env, error) {
		return get[workload.Env](ctx, s.pool, noSuchEnv(id), sqlMadeEnv, id)
	}
	return once(ctx, s, k, made, func(tx *txn) (string, error) {
		orgID := got(lockOwner(ctx, tx, noSuchApp(string(e.AppID)), sqlAppOwner, e.AppID)).in(tx)
		// Deleting the app also locks the org, so the app still exists.
		if _, err := get[workload.App](ctx, tx, noSuchApp(string(e.AppID)), sqlGetApp, e.AppID); err != nil {
			return "", err
		}
		tx.check(nameIsFree(ctx, tx, prego.CodeEnvExists, sqlEnvOfName, string(e.AppID), e.Name))
		tx.check(s.takeQuota(ctx, tx, orgID, quota.Delta{Dimension: quota.MaxEnvs, By: 1}))
		tx.run(ctx, sqlNewEnv, e.EnvID, e.AppID, orgID, e.Name, e.Region, e.CreatedBy)
		return string(e.EnvID), orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "env.create", Subject: string(e.EnvID), Actor: e.CreatedBy},
			map[string]any{"app_id": e.AppID, "name": e.Name, "region": e.Region})
	})
}

const sqlMadeEnv = `SELECT ` + envColumns + ` FROM envs WHERE env_id = $1`

const sqlGetEnv = `SELECT ` + envColumns + ` FROM envs WHERE env_id = $1 AND deleted_at IS NULL`

func noSuchEnv(id string) error {
	return prego.Errorf(prego.CodeEnvNotFound, "there is no env %q", id)
}

// GetEnv reads one env, or CodeEnvNotFound.
func (s *Store) GetEnv(ctx context.Context, id string) (workload.Env, error) {
	return get[workload.Env](ctx, s.pool, noSuchEnv(id), sqlGetEnv, id)
}

// Envs is the list of envs.
var Envs = Listing[workload.Env]{
	what: "envs", from: `SELECT ` + envColumns + ` FROM envs`,
	live:    `deleted_at IS NULL`,
	filters: map[string]string{"env_id": "env_id", "app_id": "app_id", "org_id": "org_id", "name": "name", "region": "region"},
	sorts:   map[string]string{"created_at": "created_at", "name": "name"},
	id:      "env_id",
}

const sqlEnvOwner = `SELECT org_id FROM envs WHERE env_id = $1`

// FOR UPDATE blocks rows that refer to the env: one being inserted now is counted below,
// and a later one finds the env deleted.
const sqlHoldEnv = `SELECT FROM envs WHERE env_id = $1 FOR UPDATE`

const sqlEnvChildren = `
SELECT (SELECT count(*) FROM process_groups WHERE env_id = $1 AND deleted_at IS NULL),
    (SELECT count(*) FROM routes WHERE env_id = $1 AND deleted_at IS NULL),
    (SELECT count(*) FROM ipv4_allocations WHERE env_id = $1 AND deleted_at IS NULL)`

const sqlDeleteEnv = `UPDATE envs SET deleted_at = now() WHERE env_id = $1 AND deleted_at IS NULL`

// DeleteEnv deletes an empty env; CodeEnvInUse otherwise. Repeating it changes nothing.
func (s *Store) DeleteEnv(ctx context.Context, id, by string) error {
	return s.inTx(ctx, "delete env", func(tx *txn) error {
		// Anything created in the env takes quota first, which locks the org, and then checks
		// that the env exists.
		orgID := got(lockOwner(ctx, tx, noSuchEnv(id), sqlEnvOwner, id)).in(tx)
		tx.run(ctx, sqlHoldEnv, id)
		var groups, routes, addresses int
		tx.check(tx.QueryRow(ctx, sqlEnvChildren, id).Scan(&groups, &routes, &addresses))
		if groups+routes+addresses > 0 {
			return prego.Errorf(prego.CodeEnvInUse, "the env has %d process groups, %d routes and %d IPv4 allocations; delete them first", groups, routes, addresses)
		}
		if ok, err := changed(ctx, tx, sqlDeleteEnv, id); err != nil || !ok {
			return err
		}
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "env.delete", Subject: id, Actor: by}, map[string]any{})
	})
}
