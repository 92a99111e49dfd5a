-- open_network is the network for new servers of all roles for tenants without a place anywhere: the first network of
-- the zones, in their order, that has room for all of them, else a new one in the first zone. NULL means that p_base
-- is used up.
CREATE OR REPLACE FUNCTION open_network(p_provider text, p_zones text[], p_base cidr, p_bits integer, p_size integer, p_reserve integer) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_network text;
BEGIN
    SELECT n.network_id INTO v_network FROM networks n
    WHERE n.infra_provider = p_provider AND n.zone = ANY (p_zones) AND n.full_at IS NULL AND n.members < p_size - 2 * p_reserve
    ORDER BY array_position(p_zones, n.zone), n.ordinal LIMIT 1;
    IF FOUND THEN
        RETURN v_network;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('prego/networks/' || p_provider || '/' || p_zones[1], 0));
    -- Another caller may have added one meanwhile.
    SELECT n.network_id INTO v_network FROM networks n
    WHERE n.infra_provider = p_provider AND n.zone = p_zones[1] AND n.full_at IS NULL AND n.members < p_size - 2 * p_reserve
    ORDER BY n.ordinal LIMIT 1;
    RETURN COALESCE(v_network, add_network(p_provider, p_zones[1], p_base, p_bits));
END
$$;
