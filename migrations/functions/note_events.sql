-- What a statement has made is told in the feed of events (docs/adr/0069): lines of timelines, and
-- objects whose state is told afterwards by note_event(). What the lifecycle or the state of an object tells is left out of
-- what its org's events tell.
CREATE OR REPLACE FUNCTION note_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'server_events' THEN
        INSERT INTO events (at, kind, id, step, status, reason, message, actor)
        SELECT at, 'server', server_id, step, status, reason, message, actor FROM made ORDER BY event_id;
    WHEN 'tenant_lifecycle_events' THEN
        INSERT INTO events (at, kind, id, org_id, step, status, reason, message, actor)
        SELECT m.at, 'tenant', m.tenant_id, t.org_id, m.step, m.to_state, m.reason, m.message, m.actor
        FROM made m LEFT JOIN tenants t ON t.tenant_id = m.tenant_id ORDER BY m.event_id;
    WHEN 'org_events' THEN
        INSERT INTO events (at, kind, id, org_id, about, step, reason, actor)
        SELECT at, split_part(type, '.', 1), CASE WHEN type ^@ 'org.' THEN org_id ELSE subject END, org_id,
            CASE WHEN type ^@ 'org.' AND subject <> org_id THEN ARRAY[subject] ELSE '{}' END, substr(type, strpos(type, '.') + 1), reason, actor
        FROM made
        WHERE type <> ALL ('{tenant.create,backup.create,backup.stored,backup.failed,move.create,restore.create,snapshot.create,snapshot.delete}') ORDER BY event_id;
    WHEN 'scaling_events' THEN
        INSERT INTO events (kind, id, about, step, status, message)
        SELECT 'scaling', event_id::text, ARRAY[region || '/' || role] || server_ids, trigger, 'open', message FROM made ORDER BY event_id;
    WHEN 'fleet_actions' THEN
        INSERT INTO events (kind, id, about, step, status, reason, message, actor)
        SELECT 'fleet', fleet_id, ARRAY[fleet_id || '/' || seq], action, status, reason, message, requested_by FROM made ORDER BY fleet_id, seq;
    WHEN 'instances' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, message)
        SELECT 'instance', instance_id, org_id, ARRAY[group_id, server_id], state, state, message FROM made ORDER BY instance_id;
    WHEN 'tenant_moves' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message, actor)
        SELECT 'move', move_id, org_id, array_remove(ARRAY[tenant_id, from_server_id, to_server_id], NULL), state, state, reason, message, requested_by FROM made ORDER BY move_id;
    WHEN 'backups' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message, actor)
        SELECT 'backup', backup_id, org_id, array_remove(ARRAY[tenant_id, volume_id, server_id], NULL), state, state, reason, message, created_by FROM made ORDER BY backup_id;
    WHEN 'snapshots' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, message, actor)
        SELECT 'snapshot', snapshot_id, org_id, ARRAY[tenant_id, server_id], status, status, message, created_by FROM made ORDER BY snapshot_id;
    WHEN 'restore_jobs' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, message, actor)
        SELECT 'restore', job_id, org_id, array_remove(ARRAY[tenant_id, snapshot_id, backup_id], NULL), status, status, message, created_by FROM made ORDER BY job_id;
    WHEN 'volume_restores' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message, actor)
        SELECT 'restore', restore_id, org_id, ARRAY[volume_id, backup_id], status, status, reason, message, created_by FROM made ORDER BY restore_id;
    WHEN 'drills' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message, actor)
        SELECT 'drill', drill_id, org_id, array_remove(ARRAY[tenant_id, volume_id, backup_id, server_id], NULL), state, state, reason, message, created_by FROM made ORDER BY drill_id;
    WHEN 'certificates' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, message, actor)
        SELECT 'certificate', certificate_id, org_id, names || array_remove(ARRAY[tenant_id], NULL), status, status, message, created_by FROM made ORDER BY certificate_id;
    WHEN 'rebalances' THEN
        INSERT INTO events (kind, id, step, status, message, actor)
        SELECT 'rebalance', rebalance_id, state, state, why, requested_by FROM made ORDER BY rebalance_id;
    WHEN 'patch_waves' THEN
        INSERT INTO events (kind, id, step, message, actor)
        SELECT 'patch_wave', wave_id, 'created', why, requested_by FROM made ORDER BY wave_id;
    WHEN 'stack_releases' THEN
        INSERT INTO events (kind, id, step, status, message, actor)
        SELECT 'release', name, status, status, message, created_by FROM made ORDER BY name;
    WHEN 'agent_releases' THEN
        INSERT INTO events (kind, id, step, status, message, actor)
        SELECT 'agent_release', version, status, status, message, created_by FROM made ORDER BY version;
    WHEN 'golden_images' THEN
        INSERT INTO events (kind, id, step, status, message, actor)
        SELECT 'image', image_id, status, status, message, created_by FROM made ORDER BY image_id;
    END CASE;
    RETURN NULL;
END $$;
