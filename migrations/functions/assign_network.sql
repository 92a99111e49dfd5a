-- assign_network gives a server a place in a network of a zone: its present one if it is there, else the first with
-- room, else a new one with the first free range of p_base. The networks in p_refused are skipped: the provider takes
-- no more servers there. Servers other than app servers and nodes may also have the places of p_reserve, so that a
-- network with app servers always has room for their companions. No row means that p_base is used up. An advisory
-- lock per zone makes callers choose one at a time; each statement here sees what the previous caller committed.
CREATE OR REPLACE FUNCTION assign_network(p_server text, p_zone text, p_base cidr, p_bits integer, p_size integer, p_reserve integer, p_refused text[])
RETURNS SETOF networks LANGUAGE plpgsql AS $$
DECLARE
    v_server servers%ROWTYPE;
    v_network text;
BEGIN
    -- Another attempt for the same server goes first, and has its place.
    SELECT * INTO v_server FROM servers WHERE server_id = p_server FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT n.* FROM networks n
    WHERE n.network_id = v_server.network_id AND n.infra_provider = v_server.infra_provider AND n.zone = p_zone AND n.network_id <> ALL (p_refused);
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('prego/networks/' || v_server.infra_provider || '/' || p_zone, 0));
    UPDATE networks n SET full_at = now() WHERE n.network_id = ANY (p_refused) AND n.full_at IS NULL;
    SELECT n.network_id INTO v_network FROM networks n
    WHERE n.infra_provider = v_server.infra_provider AND n.zone = p_zone AND n.full_at IS NULL
      AND n.members < p_size - CASE WHEN v_server.role IN ('app', 'node') THEN p_reserve ELSE 0 END
    ORDER BY n.ordinal LIMIT 1;
    IF NOT FOUND THEN
        v_network := add_network(v_server.infra_provider, p_zone, p_base, p_bits);
        IF v_network IS NULL THEN
            RETURN;
        END IF;
    END IF;
    UPDATE servers s SET network_id = v_network, private_address = NULL WHERE s.server_id = p_server AND s.network_id IS DISTINCT FROM v_network;
    RETURN QUERY SELECT n.* FROM networks n WHERE n.network_id = v_network;
END
$$;
