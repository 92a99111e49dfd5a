-- +goose Up

-- A drill restores a backup on some server to see whether it can be, and throws it away. Its
-- site is a row of site_pool that no pool has: draining from its first moment.
CREATE TABLE drills (
    drill_id     text PRIMARY KEY, -- drl-…
    org_id       text NOT NULL REFERENCES orgs (org_id),
    tenant_id    text NOT NULL REFERENCES tenants (tenant_id),
    backup_id    text NOT NULL REFERENCES backups (backup_id),
    server_id    text NOT NULL REFERENCES servers (server_id), -- where it is restored
    pool_site_id text NOT NULL,
    state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'passed', 'failed')),
    reason       text NOT NULL DEFAULT '',
    message      text NOT NULL DEFAULT '',
    tables       bigint NOT NULL DEFAULT 0,
    rows         bigint NOT NULL DEFAULT 0,
    files        bigint NOT NULL DEFAULT 0,
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz,
    cleared_at   timestamptz, -- nothing is left of it on its server
    CHECK ((state = 'running') = (finished_at IS NULL))
);
CREATE UNIQUE INDEX drills_running ON drills (tenant_id) WHERE state = 'running';
CREATE INDEX drills_by_tenant ON drills (tenant_id, created_at DESC);
CREATE INDEX drills_by_backup ON drills (backup_id) WHERE state = 'running';
CREATE INDEX drills_left ON drills (created_at) WHERE cleared_at IS NULL;

-- When a tenant's turn to be drilled came last.
ALTER TABLE backup_turns ADD COLUMN drilled_at timestamptz;
CREATE INDEX backup_turns_drilled ON backup_turns (drilled_at NULLS FIRST);
-- How its last drill ended, for the metric: of a tenant whose backups can't be restored.
ALTER TABLE backup_turns ADD COLUMN drill_failed boolean NOT NULL DEFAULT false;
CREATE INDEX backup_turns_drill_failed ON backup_turns (tenant_id) WHERE drill_failed;
