-- Counts the servers of a network, for the choice of a network with room. A terminated server is in none: its network
-- has room again.
CREATE OR REPLACE FUNCTION count_network_members() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.status <> 'terminated' THEN
        UPDATE networks SET members = members - 1, full_at = CASE WHEN NEW.status <> 'terminated' THEN full_at END WHERE network_id = OLD.network_id;
    END IF;
    IF NEW.status <> 'terminated' THEN
        UPDATE networks SET members = members + 1 WHERE network_id = NEW.network_id;
    END IF;
    RETURN NULL;
END $$;
