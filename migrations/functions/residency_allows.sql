-- Whether data of a country's residents may be at a provider in a region
-- (placement-policy §2.1, §2.2); placement.Zone.Allows in Go. NULL is no country.
CREATE OR REPLACE FUNCTION residency_allows(p_country text, p_region text, p_provider text) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT p_country IS NULL OR EXISTS (SELECT FROM residency_zones z
        WHERE z.country = p_country AND p_region = ANY (z.regions) AND (z.providers IS NULL OR p_provider = ANY (z.providers)))
$$;
