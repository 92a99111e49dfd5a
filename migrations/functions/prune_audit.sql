-- Deletes the oldest sealed entries that were kept for so many seconds, and returns how many. It leaves a checkpoint
-- with the hash of the last of them, and an entry about it: the chain continues from there. Damaged entries are not
-- pruned. Thirty days are always kept, for any caller.
CREATE OR REPLACE FUNCTION prune_audit(keep float8, most int) RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    cut     timestamptz := now() - make_interval(secs => GREATEST(keep, 30 * 86400));
    through bigint;
    sum     bytea;
    n       int;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('audit chain', 0));
    SELECT COALESCE(min(o.seq) FILTER (WHERE (o.at < cut) IS NOT TRUE) - 1, max(o.seq)), count(*) INTO through, n
    FROM (SELECT c.seq, e.at FROM audit_chain c LEFT JOIN audit_entries e USING (entry_id) ORDER BY c.seq LIMIT most) o;
    SELECT c.hash INTO sum FROM audit_chain c WHERE c.seq = through;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT count(*) INTO n FROM audit_chain c WHERE c.seq <= through;
    INSERT INTO audit_checkpoints (seq, hash, entries) VALUES (through, sum, n);
    PERFORM write_audit('audit_checkpoint', through::text, '', 'create', NULL, jsonb_build_object('seq', through, 'hash', encode(sum, 'hex'), 'entries', n));
    DELETE FROM audit_entries e USING audit_chain c WHERE c.seq <= through AND e.entry_id = c.entry_id;
    DELETE FROM audit_chain c WHERE c.seq <= through;
    RETURN n;
END $$;
