-- Between redo_mode(true) and redo_mode(false) of one transaction rows are taken from the redo log as they are: no
-- trigger changes another row for them, since that row is in the log, too, and references are checked at the end. What
-- is not in the log is made from what is.
CREATE OR REPLACE FUNCTION redo_mode(p_on boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t text;
    c text;
BEGIN
    IF NOT p_on THEN
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    FOR t, c IN SELECT conrelid::regclass, conname FROM pg_constraint
        WHERE contype = 'f' AND connamespace = 'public'::regnamespace AND conparentid = 0 ORDER BY 1, 2
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I %s', t, c,
            CASE WHEN p_on THEN 'DEFERRABLE INITIALLY DEFERRED' ELSE 'NOT DEFERRABLE' END);
    END LOOP;
    FOR t IN SELECT tgrelid::regclass FROM pg_trigger WHERE tgname = 'redo_' || tgrelid::regclass::text ORDER BY 1
    LOOP
        EXECUTE format('ALTER TABLE %s %s TRIGGER USER', t, CASE WHEN p_on THEN 'DISABLE' ELSE 'ENABLE' END);
    END LOOP;
    IF p_on THEN
        RETURN;
    END IF;
    -- Numbers that were given out stay given out.
    FOR t, c IN SELECT a.attrelid::regclass, a.attname FROM pg_attribute a
        WHERE a.attidentity <> '' AND a.attrelid IN (SELECT tgrelid FROM pg_trigger WHERE tgname LIKE 'redo\_%')
    LOOP
        EXECUTE format('SELECT setval(pg_get_serial_sequence(%L, %L), max(%I)) FROM %s HAVING max(%3$I) IS NOT NULL',
            t, c, c, t);
    END LOOP;
    PERFORM setval('certificate_changes',
        GREATEST((SELECT max(changed) FROM certificates), nextval('certificate_changes')));
    PERFORM recount_org_usage(org_id) FROM orgs;
    UPDATE changes_pruned SET pruned_xid = pg_current_xact_id();
    -- Nobody listened while the database was away.
    UPDATE servers SET agent_last_heartbeat_at = now()
    WHERE agent_last_heartbeat_at IS NOT NULL AND status <> 'terminated';
    INSERT INTO peers_due (server_id) SELECT server_id FROM servers WHERE status <> 'terminated';
    -- What edges found is not in the log: their next reports are incomplete to this number, and they repeat all. Nor is
    -- what their documents were: no row gave edges and hosts the versions that they have, and the next ones are above.
    UPDATE edges SET watch_changes = -1, offered = 0;
    UPDATE server_peers SET offered = 0;
END $$;
