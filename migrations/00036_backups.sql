-- +goose Up

-- Backups of tenants in object storage. A row is there before anything is made, and until
-- the storage has said that its objects are gone. What opens a backup, its identity, is
-- sealed: the private half of the key is with the workers and with whoever keeps the
-- original keys.
CREATE TABLE backups (
    backup_id       text PRIMARY KEY, -- bak-…
    org_id          text NOT NULL REFERENCES orgs (org_id),
    tenant_id       text NOT NULL REFERENCES tenants (tenant_id),
    server_id       text NOT NULL REFERENCES servers (server_id), -- where it is made
    site            text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('scheduled', 'manual', 'final', 'pre_move', 'pre_update')),
    state           text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'making', 'uploading', 'stored', 'failed', 'deleting', 'deleted')),
    reason          text NOT NULL DEFAULT '',
    message         text NOT NULL DEFAULT '',
    created_by      text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz, -- when it was its turn
    taken_at        timestamptz, -- when the dump began
    finished_at     timestamptz,
    recipient       text NOT NULL DEFAULT '', -- the public half of its identity
    sealed_identity bytea,
    key_id          text NOT NULL DEFAULT '',
    object_key      text NOT NULL DEFAULT '',
    manifest_key    text NOT NULL DEFAULT '',
    upload_id       text NOT NULL DEFAULT '', -- of the upload that is under way
    part_bytes      bigint NOT NULL DEFAULT 0,
    parts           integer NOT NULL DEFAULT 0,
    plain_bytes     bigint NOT NULL DEFAULT 0,
    plain_sha256    text NOT NULL DEFAULT '',
    bytes           bigint NOT NULL DEFAULT 0,
    sha256          text NOT NULL DEFAULT '',
    manifest_sha256 text NOT NULL DEFAULT '',
    verified_at     timestamptz, -- when it was last restored and found good
    verify_message  text NOT NULL DEFAULT '',
    expires_at      timestamptz, -- NULL: as long as retention wants
    held_at         timestamptz,
    held_by         text NOT NULL DEFAULT '',
    hold_reason     text NOT NULL DEFAULT '',
    deleted_at      timestamptz,
    CHECK (state <> 'stored' OR (taken_at IS NOT NULL AND sealed_identity IS NOT NULL AND bytes > 0 AND sha256 <> '' AND plain_sha256 <> '' AND manifest_sha256 <> '')),
    CHECK ((state = 'deleted') = (deleted_at IS NOT NULL)),
    CHECK (held_at IS NULL OR state NOT IN ('deleting', 'deleted'))
);
-- A tenant has one backup under way at a time.
CREATE UNIQUE INDEX backups_under_way ON backups (tenant_id) WHERE state IN ('queued', 'making', 'uploading');
CREATE INDEX backups_by_tenant ON backups (tenant_id, created_at DESC);
CREATE INDEX backups_by_org ON backups (org_id, created_at DESC);
CREATE INDEX backups_stored ON backups (tenant_id, taken_at DESC) WHERE state = 'stored';
CREATE INDEX backups_queued ON backups (created_at) WHERE state = 'queued';
CREATE INDEX backups_running ON backups (server_id) WHERE state IN ('making', 'uploading');
CREATE INDEX backups_deleting ON backups (backup_id) WHERE state = 'deleting';
CREATE INDEX backups_expiring ON backups (expires_at) WHERE state IN ('stored', 'failed') AND expires_at IS NOT NULL AND held_at IS NULL;

-- When tenants are backed up and what is kept: of a plan, or of one tenant.
CREATE TABLE backup_policies (
    policy_id      text PRIMARY KEY, -- plan/… or tenant/…
    plan           text UNIQUE,
    tenant_id      text UNIQUE REFERENCES tenants (tenant_id),
    schedule       text NOT NULL, -- cron, UTC; '' for none
    spread_seconds bigint NOT NULL CHECK (spread_seconds BETWEEN 0 AND 86400),
    keep_daily     integer NOT NULL CHECK (keep_daily >= 0),
    keep_weekly    integer NOT NULL CHECK (keep_weekly >= 0),
    keep_monthly   integer NOT NULL CHECK (keep_monthly >= 0),
    updated_by     text NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    CHECK ((plan IS NULL) <> (tenant_id IS NULL)),
    CHECK (keep_daily + keep_weekly + keep_monthly > 0)
);
INSERT INTO backup_policies (policy_id, plan, schedule, spread_seconds, keep_daily, keep_weekly, keep_monthly, updated_by) VALUES
    ('plan/trial', 'trial', '0 0 * * *', 21600, 3, 0, 0, 'prego'),
    ('plan/starter', 'starter', '0 0 * * *', 21600, 7, 4, 0, 'prego'),
    ('plan/business', 'business', '0 */12 * * *', 21600, 14, 8, 6, 'prego'),
    ('plan/enterprise', 'enterprise', '0 */6 * * *', 14400, 14, 8, 12, 'prego');

-- When each tenant's turn is. A tenant without a row gets one from the next look.
CREATE TABLE backup_turns (
    tenant_id text PRIMARY KEY REFERENCES tenants (tenant_id),
    policy_at timestamptz NOT NULL, -- updated_at of the policy that next_at was made from
    next_at   timestamptz,          -- NULL: not by schedule
    due_at    timestamptz           -- the last turn that has come; it is late until there is a backup taken since
);
CREATE INDEX backup_turns_next ON backup_turns (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX backup_turns_due ON backup_turns (due_at) WHERE due_at IS NOT NULL;

-- Objects are billed, but by none of the providers of servers.
ALTER TABLE resources DROP CONSTRAINT resources_kind_check;
ALTER TABLE resources ADD CONSTRAINT resources_kind_check
    CHECK (kind IN ('server', 'volume', 'primary_ip', 'floating_ip', 'firewall', 'placement_group', 'image', 'network', 'backup'));
ALTER TABLE resources DROP CONSTRAINT resources_provider_fkey;
ALTER TABLE resources ADD CONSTRAINT resources_provider_check CHECK (CASE kind WHEN 'backup' THEN provider = 's3' ELSE provider IN ('hetzner', 'aws', 'gcp') END);

-- The uploads and downloads of backups are audited like other commands.
ALTER TABLE agent_command_audit DROP CONSTRAINT agent_command_audit_command_kind_check;
ALTER TABLE agent_command_audit ADD CONSTRAINT agent_command_audit_command_kind_check
    CHECK (command_kind IN ('bench', 'mariadb', 'redis-cli', 'bootstrap', 'volume', 'address', 'transfer'));
