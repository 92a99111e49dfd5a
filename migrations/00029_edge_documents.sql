-- +goose Up

-- What the edges of a network serve: the version of their document, which counts up when its
-- digest changes, and the transactions that it has seen. The document itself is made from
-- rows and is nowhere but in memory.
CREATE TABLE edge_documents (
    network    text PRIMARY KEY, -- servers.network_id, or the region of servers without one
    version    bigint NOT NULL DEFAULT 1,
    digest     bytea NOT NULL,
    seen       pg_snapshot NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);

-- What each edge serves.
CREATE TABLE edges (
    server_id       text PRIMARY KEY REFERENCES servers (server_id),
    network         text NOT NULL,
    version         bigint NOT NULL DEFAULT 0,
    refused_version bigint NOT NULL DEFAULT 0, -- a later document that its servers refused
    refused_reason  text NOT NULL DEFAULT '',
    applied_at      timestamptz,
    asked_at        timestamptz NOT NULL DEFAULT now() -- when it asked for a document last
);
CREATE INDEX edges_by_network ON edges (network);

-- Edges follow the feed of changes. What they don't serve is not in it.
-- +goose StatementBegin
CREATE FUNCTION note_edges() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'tenants', 'tenant_allocations', 'restore_jobs' THEN INSERT INTO changes (kind, id) VALUES ('tenants', NEW.tenant_id);
    WHEN 'instances', 'routes' THEN INSERT INTO changes (kind, id) VALUES ('groups', NEW.group_id);
    END CASE;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenants_note_edges AFTER UPDATE OF state ON tenants FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state AND (OLD.state IN ('active', 'suspended', 'grace_period') OR NEW.state IN ('active', 'suspended', 'grace_period')))
    EXECUTE FUNCTION note_edges();
CREATE TRIGGER tenant_allocations_note_edges AFTER UPDATE OF released_at ON tenant_allocations FOR EACH ROW
    WHEN (OLD.released_at IS DISTINCT FROM NEW.released_at) EXECUTE FUNCTION note_edges();
CREATE TRIGGER restore_jobs_note_edges AFTER UPDATE OF status ON restore_jobs FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_edges();
CREATE TRIGGER instances_note_edges AFTER UPDATE OF state, healthy ON instances FOR EACH ROW
    WHEN ((OLD.state = 'running' AND OLD.healthy) IS DISTINCT FROM (NEW.state = 'running' AND NEW.healthy)) EXECUTE FUNCTION note_edges();
CREATE TRIGGER routes_note_edges AFTER INSERT ON routes FOR EACH ROW EXECUTE FUNCTION note_edges();
CREATE TRIGGER routes_note_edges_gone AFTER UPDATE OF deleted_at ON routes FOR EACH ROW
    WHEN (OLD.deleted_at IS DISTINCT FROM NEW.deleted_at) EXECUTE FUNCTION note_edges();
