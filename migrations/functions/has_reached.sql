-- Whether a measure has reached its threshold, which excludes newcomers; placement.HasReached in Go. A threshold of 0
-- or NULL is ignored, and unknown measures exclude none.
CREATE OR REPLACE FUNCTION has_reached(p_pct double precision, p_max double precision) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT COALESCE(p_max > 0 AND p_pct >= p_max, false)
$$;
