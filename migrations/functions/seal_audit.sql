-- Adds entries to the chain, oldest committed first, and returns how many, and its end. One caller at a time does;
-- writers of entries do not wait for it.
CREATE OR REPLACE FUNCTION seal_audit(most int, OUT sealed int, OUT seq bigint, OUT hash bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    e audit_entries;
    before bytea;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('audit chain', 0));
    SELECT a.seq, a.hash INTO seq, hash FROM audit_end() a;
    sealed := 0;
    FOR e IN SELECT x.* FROM audit_unsealed u JOIN audit_entries x USING (entry_id) ORDER BY u.entry_id LIMIT most LOOP
        before := hash;
        seq := seq + 1;
        hash := sha256(before || convert_to(audit_encoding(e), 'UTF8'));
        INSERT INTO audit_chain (seq, entry_id, prev_hash, hash) VALUES (seq, e.entry_id, before, hash);
        DELETE FROM audit_unsealed u WHERE u.entry_id = e.entry_id;
        sealed := sealed + 1;
    END LOOP;
END $$;
