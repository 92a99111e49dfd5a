package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/workload"
)

const appColumns = `app_id, org_id, name, created_by, created_at, deleted_at`

const sqlNewApp = `INSERT INTO apps (app_id, org_id, name, created_by) VALUES ($1, $2, $3, $4)`

const sqlAppOfName = `SELECT app_id FROM apps WHERE org_id = $1 AND name = $2 AND deleted_at IS NULL`

const sqlMadeApp = `SELECT ` + appColumns + ` FROM apps WHERE app_id = $1`

// CreateApp creates an app of an org. Repeating the request with the same key returns the existing app, even after
// its deletion. If the name is taken, CodeAppExists names the app that has it.
func (s *Store) CreateApp(ctx context.Context, a workload.App, key string) (app workload.App, created bool, err error) {
	made := func(ctx context.Context, id string) (workload.App, error) {
		return get[workload.App](ctx, s.pool, noSuchApp(id), sqlMadeApp, id)
	}
	return once(ctx, s, keyedRequest(ctx, a.CreatedBy, key, "app", string(a.OrgID), a.Name), made, func(tx *txn) (string, error) {
		tx.check(lockNamedOrg(ctx, tx, a.OrgID))
		tx.check(nameIsFree(ctx, tx, prego.CodeAppExists, sqlAppOfName, string(a.OrgID), a.Name))
		tx.check(s.takeQuota(ctx, tx, a.OrgID, quota.Delta{Dimension: quota.MaxApps, By: 1}))
		tx.run(ctx, sqlNewApp, a.AppID, a.OrgID, a.Name, a.CreatedBy)
		return string(a.AppID), orgEvent(ctx, tx, org.Event{OrgID: a.OrgID, Type: "app.create", Subject: string(a.AppID), Actor: a.CreatedBy}, map[string]any{"name": a.Name})
	})
}

// nameIsFree rejects a name in use, and reports by what.
func nameIsFree(ctx context.Context, q querier, code prego.Code, sql string, owner, name string) error {
	var id string
	if err := q.QueryRow(ctx, sql, owner, name).Scan(&id); err != nil {
		return ifNoRows(err, nil)
	}
	return &prego.Error{Code: code, Field: "name", Message: "belongs to " + id}
}

const sqlGetApp = `SELECT ` + appColumns + ` FROM apps WHERE app_id = $1 AND deleted_at IS NULL`

func noSuchApp(id string) error {
	return prego.Errorf(prego.CodeAppNotFound, "there is no app %q", id)
}

// GetApp reads one app, or CodeAppNotFound.
func (s *Store) GetApp(ctx context.Context, id string) (workload.App, error) {
	return get[workload.App](ctx, s.pool, noSuchApp(id), sqlGetApp, id)
}

// Apps is the list of apps.
var Apps = Listing[workload.App]{
	what: "apps", from: `SELECT ` + appColumns + ` FROM apps`,
	live:    `deleted_at IS NULL`,
	filters: map[string]string{"app_id": "app_id", "org_id": "org_id", "name": "name"},
	sorts:   map[string]string{"created_at": "created_at", "name": "name"},
	id:      "app_id",
}

const sqlAppOwner = `SELECT org_id FROM apps WHERE app_id = $1`

const sqlAppChildren = `SELECT count(*) FROM envs WHERE app_id = $1 AND deleted_at IS NULL`

const sqlDeleteApp = `UPDATE apps SET deleted_at = now() WHERE app_id = $1 AND deleted_at IS NULL`

// DeleteApp deletes an app without envs; CodeAppInUse otherwise. Repeating it changes
// nothing.
func (s *Store) DeleteApp(ctx context.Context, id, by string) error {
	return s.inTx(ctx, "delete app", func(tx *txn) error {
		// Creating an env also locks the org.
		orgID := got(lockOwner(ctx, tx, noSuchApp(id), sqlAppOwner, id)).in(tx)
		envs := valueIn[int](ctx, tx, sqlAppChildren, id)
		if envs > 0 {
			return prego.Errorf(prego.CodeAppInUse, "the app has %d envs; delete them first", envs)
		}
		if ok, err := changed(ctx, tx, sqlDeleteApp, id); err != nil || !ok {
			return err
		}
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "app.delete", Subject: id, Actor: by}, map[string]any{})
	})
}
