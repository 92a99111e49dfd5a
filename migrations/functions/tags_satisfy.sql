-- Whether a server with these tags satisfies a constraint (placement-pools);
-- Constraint.SatisfiedBy in Go.
CREATE OR REPLACE FUNCTION tags_satisfy(p_tags text[], p_require text[], p_disallow text[]) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_tags @> p_require AND NOT p_tags && p_disallow
$$;
