-- What a route's port is unique in: an address and a port. The address is shared, or the env's.
CREATE OR REPLACE FUNCTION port_binding(p_scope text, p_env text, p_port integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT p_scope || '/' || CASE p_scope WHEN 'env_v4' THEN p_env ELSE '' END || '/' || p_port
$$;
