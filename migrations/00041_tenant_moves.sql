-- +goose Up
-- A move of a tenant to another app server. The tenant keeps its allocation, whose server changes when it
-- switches; until it is cleared away the tenant counts on both servers.
CREATE TABLE tenant_moves (
    move_id             text        PRIMARY KEY,
    org_id              text        NOT NULL REFERENCES orgs (org_id),
    tenant_id           text        NOT NULL REFERENCES tenants (tenant_id),
    allocation_id       bigint      NOT NULL,
    state               text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'copying', 'frozen', 'switched', 'done', 'failed', 'cancelled')),
    reason              text        NOT NULL DEFAULT '',
    message             text        NOT NULL DEFAULT '',
    why                 text        NOT NULL DEFAULT '', -- as the caller gave it
    wanted              text        NOT NULL DEFAULT '', -- the server that was asked for
    drain_of            text        REFERENCES servers (server_id), -- which is being emptied
    requested_by        text        NOT NULL,
    site                text        NOT NULL,
    database_name       text        NOT NULL,
    from_server_id      text        NOT NULL REFERENCES servers (server_id),
    to_server_id        text        REFERENCES servers (server_id),
    copied_bytes        bigint      NOT NULL DEFAULT 0,
    delta_bytes         bigint      NOT NULL DEFAULT 0,
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    frozen_at           timestamptz,
    switched_at         timestamptz,
    opened_at           timestamptz,
    finished_at         timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CHECK ((finished_at IS NULL) = (state IN ('queued', 'copying', 'frozen', 'switched'))),
    CHECK (to_server_id IS NOT NULL OR state IN ('queued', 'failed', 'cancelled')),
    CHECK (to_server_id <> from_server_id)
);
CREATE UNIQUE INDEX tenant_moves_open ON tenant_moves (tenant_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_from ON tenant_moves (from_server_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_to ON tenant_moves (to_server_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_by_tenant ON tenant_moves (tenant_id, created_at);

-- Who is about to come lets itself be let in by shard and pool before.
-- +goose StatementBegin
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id = a.db_shard_id WHERE a.allocation_id = NEW.allocation_id AND NOT d.on_node
    UNION SELECT r.server_id FROM tenant_allocations a JOIN redis_pools r ON r.pool_id = a.redis_pool_id WHERE a.allocation_id = NEW.allocation_id AND NOT r.on_node;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenant_moves_peers AFTER UPDATE OF to_server_id, finished_at ON tenant_moves FOR EACH ROW
    WHEN ((OLD.to_server_id, OLD.finished_at) IS DISTINCT FROM (NEW.to_server_id, NEW.finished_at)) EXECUTE FUNCTION note_move();

-- Edges send the site's visitors where the tenant lives.
CREATE TRIGGER tenant_allocations_note_edges_moved AFTER UPDATE OF app_server_id ON tenant_allocations FOR EACH ROW
    WHEN (OLD.app_server_id IS DISTINCT FROM NEW.app_server_id) EXECUTE FUNCTION note_edges();
