-- The private network where a server can be reached, NULL for none: a server without an address there is not in it
-- yet.
CREATE OR REPLACE FUNCTION network_of(p_network text, p_address inet) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_address IS NOT NULL THEN p_network END
$$;
