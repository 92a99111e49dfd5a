-- add_network adds a row for the next network of a zone, with the first free range of p_base, and returns its id, or
-- NULL when p_base is used up. Callers hold the zone's lock.
CREATE OR REPLACE FUNCTION add_network(p_provider text, p_zone text, p_base cidr, p_bits integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_ordinal integer;
    v_range cidr;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('prego/networks', 0));
    SELECT r.net INTO v_range FROM (
        SELECT set_masklen(host(p_base)::inet + i * (1::bigint << 32 - p_bits), p_bits)::cidr AS net
        FROM generate_series(0, (1::bigint << p_bits - masklen(p_base)) - 1) i) r
    WHERE NOT EXISTS (SELECT FROM networks n WHERE n.ip_range && r.net) LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT COALESCE(max(n.ordinal), 0) + 1 INTO v_ordinal FROM networks n WHERE n.infra_provider = p_provider AND n.zone = p_zone;
    INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range)
    VALUES (p_provider || '-' || p_zone || '-' || v_ordinal, p_provider, p_zone, v_ordinal, v_range);
    RETURN p_provider || '-' || p_zone || '-' || v_ordinal;
END
$$;
