-- The audit is only appended to. What a checkpoint covers may be deleted.
CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'audit_chain' AND OLD.seq <= (SELECT max(p.seq) FROM audit_checkpoints p) THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'audit_entries'
        AND (SELECT c.seq FROM audit_chain c WHERE c.entry_id = OLD.entry_id) <= (SELECT max(p.seq) FROM audit_checkpoints p) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is only appended to', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
