-- The orgs that a customer's request reaches: the setting prego.orgs of its transaction; NULL without it, which equals
-- no org. Policies read it in a subquery, so that a statement evaluates it once for each table and not for each row.
CREATE OR REPLACE FUNCTION prego_orgs() RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT NULLIF(current_setting('prego.orgs', true), '')::text[]
$$;
