-- Whether what was measured is at its threshold, so that nobody new is placed there;
-- placement.HasReached in Go. A threshold of 0 or NULL is not looked at, and what is not
-- known refuses nobody.
CREATE OR REPLACE FUNCTION has_reached(p_pct double precision, p_max double precision) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT COALESCE(p_max > 0 AND p_pct >= p_max, false)
$$;
