-- +goose Up

-- A backup is of a tenant or of a volume. Volumes have theirs once processes of this version
-- queue them; those of the version before fail on their rows, and try again, until they are replaced.
ALTER TABLE backups ALTER COLUMN tenant_id DROP NOT NULL;
ALTER TABLE backups
    ADD COLUMN volume_id text REFERENCES volumes (volume_id),
    ADD COLUMN entries   bigint NOT NULL DEFAULT 0, -- files, directories and links of a volume
    ADD COLUMN frozen_ms bigint;                    -- for how long nobody could write to the volume; NULL: not frozen
ALTER TABLE backups ADD CONSTRAINT backups_of_one CHECK (num_nonnulls(tenant_id, volume_id) = 1);
CREATE UNIQUE INDEX backups_of_volume_under_way ON backups (volume_id) WHERE volume_id IS NOT NULL AND state IN ('queued', 'making', 'uploading');
CREATE INDEX backups_by_volume ON backups (volume_id, created_at DESC) WHERE volume_id IS NOT NULL;
CREATE INDEX backups_stored_of_volume ON backups (volume_id, taken_at DESC) WHERE volume_id IS NOT NULL AND state = 'stored';

-- When volumes are backed up: by a policy of all volumes, of an org's, or of one.
ALTER TABLE backup_policies
    ADD COLUMN org_id    text UNIQUE REFERENCES orgs (org_id),
    ADD COLUMN volume_id text UNIQUE REFERENCES volumes (volume_id);
ALTER TABLE backup_policies DROP CONSTRAINT backup_policies_check;
ALTER TABLE backup_policies ADD CONSTRAINT backup_policies_of_one CHECK (num_nonnulls(plan, tenant_id, org_id, volume_id) = CASE policy_id WHEN 'volumes' THEN 0 ELSE 1 END);
INSERT INTO backup_policies (policy_id, schedule, spread_seconds, keep_daily, keep_weekly, keep_monthly, updated_by) VALUES
    ('volumes', '0 0 * * *', 21600, 7, 4, 0, 'prego');

-- When each volume's turn is, as backup_turns for tenants.
CREATE TABLE volume_backup_turns (
    volume_id text PRIMARY KEY REFERENCES volumes (volume_id),
    policy_at timestamptz NOT NULL,
    next_at   timestamptz,
    due_at    timestamptz
);
CREATE INDEX volume_backup_turns_next ON volume_backup_turns (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX volume_backup_turns_due ON volume_backup_turns (due_at) WHERE due_at IS NOT NULL;

-- A volume that no group has on a server is on one for a while, to be backed up or restored.
ALTER TABLE volumes
    ADD COLUMN lent_to     text REFERENCES servers (server_id),
    ADD COLUMN lent_for    text NOT NULL DEFAULT '', -- the id of the backup or restore
    ADD COLUMN last_backup boolean NOT NULL DEFAULT true, -- before it is deleted
    ADD CONSTRAINT volumes_lent CHECK ((lent_to IS NULL) = (lent_for = ''));
CREATE INDEX volumes_lent_to ON volumes (lent_to) WHERE lent_to IS NOT NULL;

-- A restore of a volume, or of another one that is a copy of it.
CREATE TABLE volume_restores (
    restore_id  text PRIMARY KEY, -- vrs-…
    org_id      text NOT NULL REFERENCES orgs (org_id),
    volume_id   text NOT NULL REFERENCES volumes (volume_id), -- that is restored
    backup_id   text NOT NULL REFERENCES backups (backup_id), -- of it or of another volume
    status      text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'running', 'succeeded', 'failed')),
    reason      text NOT NULL DEFAULT '',
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    CHECK ((status IN ('queued', 'running')) = (finished_at IS NULL))
);
CREATE UNIQUE INDEX volume_restores_under_way ON volume_restores (volume_id) WHERE finished_at IS NULL;
CREATE INDEX volume_restores_of_backup ON volume_restores (backup_id) WHERE finished_at IS NULL;
CREATE INDEX volume_restores_by_volume ON volume_restores (volume_id, created_at DESC);

-- +goose StatementBegin
CREATE FUNCTION volume_host(p_volume text) RETURNS text LANGUAGE sql STABLE AS $$ SELECT NULL::text $$;
-- +goose StatementEnd
