-- +goose Up

-- The feed of changes: rows that changed, by the transaction that changed them. It is only
-- appended to, and pruned from its beginning. Whoever follows it keeps a cursor: the oldest
-- transaction that was running when they looked. What that one and all later ones changed is
-- read the next time, so that no commit is missed, in whatever order they come; some are met
-- twice.
--
-- It takes the place of an index on changed_xid of each table: an update of an indexed
-- column is one of all the table's indexes. The column stays for processes of the version
-- before, and tells the triggers that a statement notes its change itself.
CREATE TABLE changes (
    xid  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind text NOT NULL, -- the table
    id   text NOT NULL
);
CREATE INDEX changes_xid ON changes (xid);

-- How far the feed is pruned: what transactions before pruned_xid changed may be missing,
-- and whose cursor is older reads everything anew. next_xid is where to prune to the next time:
-- the oldest transaction that was running at marked_at.
CREATE TABLE changes_pruned (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    pruned_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    next_xid   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    marked_at  timestamptz NOT NULL DEFAULT now()
);
INSERT INTO changes_pruned DEFAULT VALUES;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id();
    CASE TG_TABLE_NAME
    WHEN 'servers' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.server_id);
    WHEN 'db_shards' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.shard_id);
    WHEN 'redis_pools' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.pool_id);
    WHEN 'site_pool' THEN INSERT INTO changes (kind, id) VALUES (TG_TABLE_NAME, NEW.pool_site_id);
    END CASE;
    RETURN NEW;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'servers' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, server_id FROM made;
    WHEN 'db_shards' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, shard_id FROM made;
    WHEN 'redis_pools' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, pool_id FROM made;
    WHEN 'site_pool' THEN INSERT INTO changes (kind, id) SELECT TG_TABLE_NAME, pool_site_id FROM made;
    END CASE;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_instances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM servers WHERE server_id = NEW.server_id FOR NO KEY UPDATE;
    IF NOT EXISTS (SELECT FROM instances i WHERE i.server_id = NEW.server_id AND i.state <> 'stopped' AND i.instance_id <> NEW.instance_id) THEN
        INSERT INTO changes (kind, id) VALUES ('servers', NEW.server_id);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_fleet_serves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (kind, id) SELECT 'servers', server_id FROM servers WHERE fleet_id = NEW.fleet_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER servers_note_new AFTER INSERT ON servers REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_new();
CREATE TRIGGER db_shards_note_new AFTER INSERT ON db_shards REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_new();
CREATE TRIGGER redis_pools_note_new AFTER INSERT ON redis_pools REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_new();
CREATE TRIGGER site_pool_note_new AFTER INSERT ON site_pool REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_new();

DROP INDEX servers_changed;
DROP INDEX db_shards_changed;
DROP INDEX redis_pools_changed;
DROP INDEX site_pool_changed;
