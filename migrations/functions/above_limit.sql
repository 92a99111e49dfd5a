-- Whether taking so much more goes above a limit; quota.Above in Go. A delta of 0 or less
-- is never refused: giving back is always allowed, also above the limit. CPUs are sums of
-- fractions, so a hair is let pass.
CREATE OR REPLACE FUNCTION above_limit(p_usage double precision, p_delta double precision, p_limit double precision) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_delta > 0 AND p_usage + p_delta > p_limit + 1e-6
$$;
