-- +goose Up
-- A site that has moved to another network: the edges of the network before send its visitors where it was until it is
-- open where it is, and then pass them on until the move ends.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_edges() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'tenants', 'tenant_allocations', 'restore_jobs', 'tenant_moves' THEN INSERT INTO changes (kind, id) VALUES ('tenants', NEW.tenant_id);
    WHEN 'instances', 'routes' THEN INSERT INTO changes (kind, id) VALUES ('groups', NEW.group_id);
    END CASE;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenant_moves_note_edges AFTER UPDATE OF opened_at, finished_at ON tenant_moves FOR EACH ROW
    WHEN ((OLD.opened_at, OLD.finished_at) IS DISTINCT FROM (NEW.opened_at, NEW.finished_at) AND NEW.switched_at IS NOT NULL AND NEW.to_server_id <> NEW.from_server_id)
    EXECUTE FUNCTION note_edges();
