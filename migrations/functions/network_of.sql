-- The private network that a server can be reached in, NULL for none: one that has no address
-- there yet is not in it.
CREATE OR REPLACE FUNCTION network_of(p_network text, p_address inet) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_address IS NOT NULL THEN p_network END
$$;
