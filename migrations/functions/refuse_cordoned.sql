-- A cordoned server takes no tenant of any caller. The placement engine sees it as draining; this is for decisions
-- from right before.
CREATE OR REPLACE FUNCTION refuse_cordoned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'server % takes no new tenants', NEW.server_id USING ERRCODE = 'check_violation', CONSTRAINT = 'servers_cordoned';
END $$;
