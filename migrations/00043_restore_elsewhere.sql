-- +goose Up

-- A tenant whose server is gone has no site until it is restored elsewhere. What its next site
-- is made from is on its row, so that any run of any generation restores it and none makes an
-- empty site in its place.
ALTER TABLE tenants
    ADD COLUMN lost_at      timestamptz, -- since when its site is gone with its server
    ADD COLUMN restore_from text REFERENCES backups (backup_id),
    ADD COLUMN muted        boolean NOT NULL DEFAULT false; -- its site sends no mail and runs no scheduled jobs
CREATE INDEX tenants_lost ON tenants (lost_at) WHERE lost_at IS NOT NULL;
CREATE INDEX tenants_restored ON tenants (tenant_id) WHERE restore_from IS NOT NULL;

-- What was lost with a server, and what came back.
CREATE TABLE tenant_losses (
    loss_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id     text NOT NULL REFERENCES tenants (tenant_id),
    allocation_id bigint NOT NULL REFERENCES tenant_allocations (allocation_id), -- that was lost
    server_id     text NOT NULL REFERENCES servers (server_id),                 -- that is gone
    state         text NOT NULL CHECK (state IN ('active', 'suspended', 'grace_period')), -- that the tenant was in, and is in again when it is back
    deadline_at   timestamptz,                           -- of that state
    lost_at       timestamptz NOT NULL,                  -- when the server was last heard of
    noted_at      timestamptz NOT NULL DEFAULT now(),
    backup_id     text REFERENCES backups (backup_id),   -- what it came back from
    taken_at      timestamptz,                           -- of that backup: what came after is lost
    restored_at   timestamptz,
    cleared_at    timestamptz                            -- nothing is left of it on servers that live on
);
CREATE UNIQUE INDEX tenant_losses_open ON tenant_losses (tenant_id) WHERE restored_at IS NULL;
CREATE INDEX tenant_losses_by_tenant ON tenant_losses (tenant_id, loss_id DESC);
CREATE INDEX tenant_losses_left ON tenant_losses (tenant_id) WHERE cleared_at IS NULL;

-- A restore at another place is carried out by the run that provisions the tenant.
ALTER TABLE restore_jobs ADD COLUMN elsewhere boolean NOT NULL DEFAULT false;
