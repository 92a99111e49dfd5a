-- Whether an app server can use a shard or pool on server h, even with an override: a node uses only its own, and no
-- other server does; private networks are not connected.
CREATE OR REPLACE FUNCTION reaches(s servers, h servers, p_on_node boolean) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT (s.role = 'node') = p_on_node AND (NOT p_on_node OR h.server_id = s.server_id)
        AND network_of(s.network_id, s.private_address) IS NOT DISTINCT FROM network_of(h.network_id, h.private_address)
$$;
