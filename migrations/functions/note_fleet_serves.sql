-- Tenants land on servers of fleets that serve them, and on servers without a fleet: a change of that in a fleet is a
-- change of its servers.
CREATE OR REPLACE FUNCTION note_fleet_serves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (kind, id) SELECT 'servers', server_id FROM servers WHERE fleet_id = NEW.fleet_id;
    RETURN NULL;
END $$;
