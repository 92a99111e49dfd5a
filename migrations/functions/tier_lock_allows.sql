-- On which shards a plan may land (placement-policy §2.3); placement.TierLockAllows in Go.
CREATE OR REPLACE FUNCTION tier_lock_allows(p_plan text, p_lock text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE p_plan
        WHEN 'trial' THEN COALESCE(p_lock, 'trial') = 'trial'
        WHEN 'starter' THEN p_lock IS NULL
        WHEN 'business' THEN COALESCE(p_lock, '') = 'business'
        WHEN 'enterprise' THEN COALESCE(p_lock, '') <> 'trial'
        ELSE false END
$$;
