-- Whether an app server can use a shard or pool on server h, whatever an override says: a node uses its own and nobody else
-- does, and no way leads from one private network to another.
CREATE OR REPLACE FUNCTION reaches(s servers, h servers, p_on_node boolean) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT (s.role = 'node') = p_on_node AND (NOT p_on_node OR h.server_id = s.server_id)
        AND network_of(s.network_id, s.private_address) IS NOT DISTINCT FROM network_of(h.network_id, h.private_address)
$$;
