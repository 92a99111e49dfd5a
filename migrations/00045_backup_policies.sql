-- +goose Up

-- Who changed when tenants are backed up and what is kept. A plan belongs to no org, so that
-- the events of orgs have no place for it.
CREATE TABLE backup_policy_changes (
    change_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    policy_id  text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL,
    policy     jsonb -- NULL: its own one was deleted
);
CREATE INDEX backup_policy_changes_of ON backup_policy_changes (policy_id, change_id DESC);

-- While a tenant is held, none of its backups is deleted: by nobody, also after its end.
CREATE TABLE backup_holds (
    tenant_id text PRIMARY KEY REFERENCES tenants (tenant_id),
    reason    text NOT NULL CHECK (reason <> ''),
    held_by   text NOT NULL,
    held_at   timestamptz NOT NULL DEFAULT now()
);

-- Bytes of backups are no dimension of the quotas (ADR 43). An org without a limit of its own
-- has one that follows from its quota of storage.
ALTER TABLE orgs ADD COLUMN backup_limit_bytes bigint CHECK (backup_limit_bytes >= 0);
CREATE INDEX backups_bytes ON backups (org_id) INCLUDE (tenant_id, bytes) WHERE state IN ('uploading', 'stored', 'deleting');
