-- A field of an entry as it is hashed: its bytes behind their number, so that no two entries have
-- one encoding; "-," for none.
CREATE OR REPLACE FUNCTION audit_field(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT COALESCE(octet_length(convert_to(value, 'UTF8')) || ':' || value, '-') || ','
$$;
