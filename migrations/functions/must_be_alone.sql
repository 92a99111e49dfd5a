-- Whether a tenant needs a dedicated server, shard and pool (placement-policy §2.3, §6); placement.MustBeAlone in Go.
-- An override may put tenants beside each other, but never beside an enterprise tenant.
CREATE OR REPLACE FUNCTION must_be_alone(p_plan text, p_mode text, p_override boolean) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_plan = 'enterprise' OR (p_mode = 'one_tenant_one_server' AND NOT p_override)
$$;
