-- A cordoned server takes no tenant, whoever asks. The placement engine is shown
-- it as draining; this is for the decision that was made right before.
CREATE OR REPLACE FUNCTION refuse_cordoned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'server % takes no new tenants', NEW.server_id USING ERRCODE = 'check_violation', CONSTRAINT = 'servers_cordoned';
END $$;
