-- The floating addresses that are assigned to an edge, by environment.
CREATE OR REPLACE FUNCTION edge_addresses() RETURNS TABLE (env_id text, address text, server_id text) LANGUAGE sql STABLE AS $$
    SELECT a.env_id, a.address, a.server_id FROM ipv4_allocations a
    WHERE a.status = 'ready' AND a.served_at IS NOT NULL AND a.server_id IS NOT NULL AND a.deleted_at IS NULL
$$;
