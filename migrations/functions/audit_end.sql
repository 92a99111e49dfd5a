-- The end of the chain: its newest link or, where all are pruned, the newest checkpoint.
CREATE OR REPLACE FUNCTION audit_end(OUT seq bigint, OUT hash bytea) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT l.seq, l.hash FROM (
        (SELECT c.seq, c.hash FROM audit_chain c ORDER BY c.seq DESC LIMIT 1)
        UNION ALL (SELECT p.seq, p.hash FROM audit_checkpoints p ORDER BY p.seq DESC LIMIT 1)
        UNION ALL SELECT 0, decode(repeat('00', 32), 'hex')) l
    ORDER BY l.seq DESC LIMIT 1
$$;
