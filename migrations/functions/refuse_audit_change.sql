-- The audit is only appended to. What a checkpoint covers may be deleted.
CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    at bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN
        CASE TG_TABLE_NAME
        WHEN 'audit_chain' THEN at := OLD.seq;
        WHEN 'audit_entries' THEN SELECT c.seq INTO at FROM audit_chain c WHERE c.entry_id = OLD.entry_id;
        ELSE NULL;
        END CASE;
        IF at <= (SELECT max(p.seq) FROM audit_checkpoints p) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '% is only appended to', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
