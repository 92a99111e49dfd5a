-- +goose Up
-- An image for the benches of the fleet, rolled out a server at a time (docs/releases.md). All sites of a server
-- share its bench, and so its code.
CREATE TABLE stack_releases (
    name        text        PRIMARY KEY CHECK (name ~ '^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$'),
    image       text        NOT NULL CHECK (image <> ''),
    apps        jsonb       NOT NULL DEFAULT '{}', -- versions that sites must have of apps afterwards
    rings       jsonb       NOT NULL,
    status      text        NOT NULL DEFAULT 'created' CHECK (status IN ('created', 'rolling', 'paused', 'stopped', 'done', 'cancelled')),
    reason      text        NOT NULL DEFAULT '', -- of one that stopped
    message     text        NOT NULL DEFAULT '',
    -- What servers get that are made from now on.
    current     boolean     NOT NULL DEFAULT false,
    created_by  text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    started_at  timestamptz,
    finished_at timestamptz,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    CHECK ((finished_at IS NOT NULL) = (status IN ('done', 'cancelled')))
);
CREATE UNIQUE INDEX stack_releases_current ON stack_releases (current) WHERE current;
-- One at a time: a server has one bench.
CREATE UNIQUE INDEX stack_releases_open ON stack_releases ((true)) WHERE status IN ('rolling', 'paused', 'stopped');

CREATE TABLE stack_release_servers (
    release     text        NOT NULL REFERENCES stack_releases (name),
    server_id   text        NOT NULL REFERENCES servers (server_id),
    ring        integer     NOT NULL CHECK (ring >= 0),
    -- rolled_back: it is as it was; broken: the way back failed, and sites may be in maintenance.
    status      text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'updating', 'done', 'rolled_back', 'broken', 'skipped')),
    phase       text        NOT NULL DEFAULT '', -- of one that is updating
    undoing     boolean     NOT NULL DEFAULT false, -- it is on its way back
    try         integer     NOT NULL DEFAULT 0,
    from_image  text        NOT NULL DEFAULT '', -- the server's own before; '' for the configured one
    reason      text        NOT NULL DEFAULT '',
    message     text        NOT NULL DEFAULT '',
    started_at  timestamptz,
    finished_at timestamptz,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (release, server_id)
);
CREATE UNIQUE INDEX stack_release_servers_updating ON stack_release_servers (server_id) WHERE status IN ('updating', 'broken');

-- The sites of a server that is being updated, or was last.
CREATE TABLE stack_release_sites (
    release      text        NOT NULL,
    server_id    text        NOT NULL,
    site         text        NOT NULL,
    tenant_id    text        NOT NULL DEFAULT '', -- '': of the pool
    pool_site_id text        NOT NULL DEFAULT '',
    org_id       text        NOT NULL DEFAULT '',
    -- kept: offline, with a backup on the host; migrating: from here on only that backup leads back.
    status       text        NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'kept', 'migrating', 'migrated', 'checked', 'restored')),
    -- From offline_at until opened_at edges show the page for maintenance, and nobody else changes the site.
    offline_at   timestamptz,
    opened_at    timestamptz,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (release, server_id, site),
    FOREIGN KEY (release, server_id) REFERENCES stack_release_servers (release, server_id)
);
CREATE INDEX stack_release_sites_offline ON stack_release_sites (tenant_id) WHERE offline_at IS NOT NULL AND opened_at IS NULL;

-- The image of a server's bench; '' for the configured one. No table is rewritten.
ALTER TABLE servers ADD COLUMN bench_image text NOT NULL DEFAULT '';
