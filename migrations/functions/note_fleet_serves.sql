-- Tenants land on servers of fleets that serve them, and on those of no fleet: when a
-- fleet changes in that, its servers have changed.
CREATE OR REPLACE FUNCTION note_fleet_serves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM servers WHERE fleet_id = NEW.fleet_id ORDER BY server_id FOR NO KEY UPDATE; -- in the order of heartbeats
    UPDATE servers SET changed_xid = pg_current_xact_id() WHERE fleet_id = NEW.fleet_id;
    RETURN NULL;
END $$;
