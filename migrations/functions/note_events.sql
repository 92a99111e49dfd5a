-- Objects that a statement has made are told in the feed of events (docs/adr/0069); their state is told afterwards by
-- note_event().
CREATE OR REPLACE FUNCTION note_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
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
