-- +goose Up

-- What each server's peers document says: who may reach it, and where. The document is made
-- of a rule whenever a host asks, with the keys that are in use then.
CREATE TABLE server_peers (
    server_id       text PRIMARY KEY REFERENCES servers (server_id) ON DELETE CASCADE,
    version         bigint NOT NULL DEFAULT 0, -- grows with each change of rule; 0 until there is one
    rule            jsonb, -- server.PeersRule
    rule_sha256     bytea,
    egress_epoch    bigint NOT NULL DEFAULT 0, -- of the control plane's addresses in rule
    changed_at      timestamptz,
    applied_version bigint NOT NULL DEFAULT 0, -- what the host says is in force; 0 is none
    applied_epoch   bigint NOT NULL DEFAULT 0, -- the egress_epoch of applied_version
    applied_at      timestamptz,
    refused         text NOT NULL DEFAULT '' -- why the host does not apply its document
) WITH (fillfactor = 70);
-- The control plane's addresses change once in a blue moon, and then on every row.
CREATE INDEX server_peers_epoch ON server_peers (applied_epoch);
CREATE INDEX server_peers_behind ON server_peers (server_id) WHERE applied_version <> version;

-- Servers whose rule may have changed. Whoever makes it anew takes them out; a row that a
-- later transaction adds is met the next time.
CREATE TABLE peers_due (
    due_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server_id text NOT NULL
);

-- Where the control plane calls hosts from. cidrs are all that hosts let in; those that are
-- no longer set leave once every host has the others, and each change is an epoch.
CREATE TABLE egress (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch      bigint NOT NULL DEFAULT 0,
    cidrs      text[] NOT NULL DEFAULT '{}',
    leaving    text[] NOT NULL DEFAULT '{}', -- of cidrs
    changed_at timestamptz NOT NULL DEFAULT now() -- of cidrs or leaving
);
INSERT INTO egress DEFAULT VALUES;

CREATE INDEX tenant_allocations_by_pool ON tenant_allocations (redis_pool_id) WHERE released_at IS NULL;
CREATE INDEX site_pool_by_shard ON site_pool (db_shard_id);

-- Who is on a shard or a pool decides who may reach its server.
-- +goose StatementBegin
CREATE FUNCTION note_allocations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM made m JOIN db_shards d ON d.shard_id = m.db_shard_id WHERE NOT d.on_node
    UNION SELECT r.server_id FROM made m JOIN redis_pools r ON r.pool_id = m.redis_pool_id WHERE NOT r.on_node;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenant_allocations_peers_new AFTER INSERT ON tenant_allocations REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_allocations();

-- +goose StatementBegin
CREATE FUNCTION note_allocation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM db_shards d WHERE d.shard_id IN (OLD.db_shard_id, NEW.db_shard_id) AND NOT d.on_node
    UNION SELECT r.server_id FROM redis_pools r WHERE r.pool_id IN (OLD.redis_pool_id, NEW.redis_pool_id) AND NOT r.on_node;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenant_allocations_peers AFTER UPDATE ON tenant_allocations FOR EACH ROW
    WHEN ((OLD.app_server_id, OLD.db_shard_id, OLD.redis_pool_id, OLD.released_at) IS DISTINCT FROM (NEW.app_server_id, NEW.db_shard_id, NEW.redis_pool_id, NEW.released_at))
    EXECUTE FUNCTION note_allocation();

-- +goose StatementBegin
CREATE FUNCTION note_pool_site() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT d.server_id FROM db_shards d WHERE d.shard_id = COALESCE(NEW.db_shard_id, OLD.db_shard_id) AND NOT d.on_node;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER site_pool_peers AFTER INSERT OR DELETE ON site_pool FOR EACH ROW EXECUTE FUNCTION note_pool_site();
CREATE TRIGGER site_pool_peers_dropped AFTER UPDATE OF dropped_at ON site_pool FOR EACH ROW
    WHEN (OLD.dropped_at IS DISTINCT FROM NEW.dropped_at) EXECUTE FUNCTION note_pool_site();

-- A server that came, went or moved: its own, and those of whom it may reach.
-- +goose StatementBegin
CREATE FUNCTION note_server_peers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id) VALUES (NEW.server_id);
    IF TG_OP = 'INSERT' THEN
        RETURN NULL;
    END IF;
    IF NEW.role = 'edge' THEN
        INSERT INTO peers_due (server_id)
        SELECT server_id FROM servers WHERE network_id IN (OLD.network_id, NEW.network_id) AND role IN ('app', 'node') AND status <> 'terminated';
    ELSIF NEW.role = 'app' THEN
        INSERT INTO peers_due (server_id)
        SELECT d.server_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id = a.db_shard_id WHERE a.app_server_id = NEW.server_id AND a.released_at IS NULL
        UNION SELECT r.server_id FROM tenant_allocations a JOIN redis_pools r ON r.pool_id = a.redis_pool_id WHERE a.app_server_id = NEW.server_id AND a.released_at IS NULL
        UNION SELECT d.server_id FROM site_pool p JOIN db_shards d ON d.shard_id = p.db_shard_id WHERE p.app_server_id = NEW.server_id AND p.dropped_at IS NULL;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER servers_peers_new AFTER INSERT ON servers FOR EACH ROW EXECUTE FUNCTION note_server_peers();
CREATE TRIGGER servers_peers AFTER UPDATE OF network_id, private_address, status ON servers FOR EACH ROW
    WHEN ((OLD.network_id, OLD.private_address) IS DISTINCT FROM (NEW.network_id, NEW.private_address) OR (OLD.status = 'terminated') <> (NEW.status = 'terminated'))
    EXECUTE FUNCTION note_server_peers();

-- +goose StatementBegin
CREATE FUNCTION note_instance_ports() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id) VALUES (NEW.server_id);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER instances_peers_new AFTER INSERT ON instances FOR EACH ROW WHEN (NEW.ports <> '[]' AND NEW.state <> 'stopped') EXECUTE FUNCTION note_instance_ports();
CREATE TRIGGER instances_peers AFTER UPDATE OF ports, state ON instances FOR EACH ROW
    WHEN (OLD.ports <> NEW.ports OR (OLD.ports <> '[]' AND (OLD.state = 'stopped') <> (NEW.state = 'stopped'))) EXECUTE FUNCTION note_instance_ports();

-- A route for raw TCP opens its port at the edges of its region.
-- +goose StatementBegin
CREATE FUNCTION note_public_port() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO peers_due (server_id)
    SELECT s.server_id FROM servers s WHERE s.role = 'edge' AND s.status <> 'terminated' AND s.region = (SELECT e.region FROM envs e WHERE e.env_id = NEW.env_id);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER routes_peers_new AFTER INSERT ON routes FOR EACH ROW EXECUTE FUNCTION note_public_port();
CREATE TRIGGER routes_peers AFTER UPDATE OF listen_port, deleted_at ON routes FOR EACH ROW
    WHEN (OLD.listen_port <> NEW.listen_port OR OLD.deleted_at IS DISTINCT FROM NEW.deleted_at) EXECUTE FUNCTION note_public_port();

-- Servers of before.
INSERT INTO peers_due (server_id) SELECT server_id FROM servers WHERE status <> 'terminated';
