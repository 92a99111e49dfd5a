-- +goose Up
-- A packing plan that is carried out, and its moves. The moves of tenants themselves are in tenant_moves.
CREATE TABLE rebalances (
    rebalance_id        text        PRIMARY KEY,
    state               text        NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped', 'cancelled')),
    reason              text        NOT NULL DEFAULT '',
    message             text        NOT NULL DEFAULT '',
    why                 text        NOT NULL DEFAULT '', -- as the caller gave it
    requested_by        text        NOT NULL,
    at_once             integer     NOT NULL CHECK (at_once > 0),
    max_failures        integer     NOT NULL,
    remove_servers      boolean     NOT NULL,
    monthly             double precision NOT NULL, -- price of what it frees, without tax
    currency            text        NOT NULL DEFAULT '',
    frees               text[]      NOT NULL,
    closed              text[]      NOT NULL, -- servers that it closed to newcomers
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    finished_at         timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CHECK ((finished_at IS NULL) = (state = 'running'))
);
-- Two at once would fill the same servers.
CREATE UNIQUE INDEX rebalances_running ON rebalances ((true)) WHERE state = 'running';
CREATE INDEX rebalances_listing ON rebalances (created_at DESC, rebalance_id DESC);

CREATE TABLE rebalance_moves (
    rebalance_id   text    NOT NULL REFERENCES rebalances (rebalance_id),
    seq            integer NOT NULL,
    tenant_id      text    NOT NULL REFERENCES tenants (tenant_id),
    from_server_id text    NOT NULL REFERENCES servers (server_id),
    to_server_id   text    NOT NULL REFERENCES servers (server_id),
    bytes          bigint  NOT NULL,
    -- skipped: the tenant had left by itself.
    state          text    NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'moving', 'moved', 'failed', 'skipped')),
    reason         text    NOT NULL DEFAULT '',
    message        text    NOT NULL DEFAULT '',
    PRIMARY KEY (rebalance_id, seq)
);
CREATE INDEX rebalance_moves_open ON rebalance_moves (rebalance_id, seq) WHERE state IN ('waiting', 'moving');
