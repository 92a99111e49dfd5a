-- Tenants land on servers of fleets that serve them, and on those of no fleet: when a
-- fleet changes in that, its servers have changed.
CREATE OR REPLACE FUNCTION note_fleet_serves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (kind, id) SELECT 'servers', server_id FROM servers WHERE fleet_id = NEW.fleet_id;
    RETURN NULL;
END $$;
