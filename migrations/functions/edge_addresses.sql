-- The floating addresses that are assigned to an edge, by environment.
CREATE OR REPLACE FUNCTION edge_addresses() RETURNS TABLE (env_id text, address text, server_id text) LANGUAGE sql STABLE AS $$
    SELECT ''::text, ''::text, ''::text WHERE false
$$;
