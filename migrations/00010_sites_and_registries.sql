-- +goose Up

-- The first user of a tenant's site, made with it, and where its mail goes out. The
-- password of the mail account is on the host alone.
ALTER TABLE tenants
    ADD COLUMN admin_email text NOT NULL DEFAULT '',
    ADD COLUMN admin_name  text NOT NULL DEFAULT '',
    ADD COLUMN mail        jsonb;

-- What a tenant's site takes, as its host measured it last. used is database and
-- files; backups are counted apart.
CREATE TABLE site_usage (
    tenant_id      text PRIMARY KEY REFERENCES tenants (tenant_id),
    database_bytes bigint NOT NULL DEFAULT 0 CHECK (database_bytes >= 0),
    files_bytes    bigint NOT NULL DEFAULT 0 CHECK (files_bytes >= 0),
    backups_bytes  bigint NOT NULL DEFAULT 0 CHECK (backups_bytes >= 0),
    users          integer NOT NULL DEFAULT 0 CHECK (users >= 0),
    measured_at    timestamptz, -- NULL before the first answer
    tried_at       timestamptz NOT NULL DEFAULT now(),
    level          text NOT NULL DEFAULT 'ok' CHECK (level IN ('ok', 'warned', 'over', 'read_only')),
    over_since     timestamptz, -- while above the quota
    -- Whether the host has been told that the site is read-only.
    read_only      boolean NOT NULL DEFAULT false,
    quota_gb       integer NOT NULL, -- that the site was told
    message        text NOT NULL DEFAULT '' -- why the last try failed
);
CREATE INDEX site_usage_turn ON site_usage (tried_at);
CREATE INDEX site_usage_above ON site_usage (level) WHERE level <> 'ok';

-- A snapshot has the name that the control plane gave it: its id. Rows from before have
-- none, and cannot be restored: bench named their files, and deleted them after a day.
ALTER TABLE snapshots
    ADD COLUMN name      text NOT NULL DEFAULT '',
    ADD COLUMN bytes     bigint,
    ADD COLUMN erased_at timestamptz; -- when the files of a deleted one were gone
UPDATE snapshots SET erased_at = now() WHERE status = 'deleted';
CREATE INDEX snapshots_to_erase ON snapshots (finished_at) WHERE status = 'deleted' AND erased_at IS NULL;

-- Credentials of container registries, sealed under the master key.
CREATE TABLE registries (
    host       text PRIMARY KEY,
    username   text NOT NULL,
    sealed     bytea NOT NULL, -- the password: nonce and AES-256-GCM, bound to host and username
    key_id     text NOT NULL,  -- which master key
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- What an image's tag meant when it was first pulled. Hosts that come later get the
-- same, whatever the tag means by then.
CREATE TABLE image_digests (
    image       text PRIMARY KEY, -- as the stack names it
    digest      text NOT NULL CHECK (digest ~ '^sha256:[0-9a-f]{64}$'),
    resolved_at timestamptz NOT NULL DEFAULT now()
);
