-- A state that has changed is told in the feed of events (docs/adr/0069).
CREATE OR REPLACE FUNCTION note_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'scaling_events' THEN
        INSERT INTO events (kind, id, about, step, status, message)
        VALUES ('scaling', NEW.event_id::text, ARRAY[NEW.region || '/' || NEW.role] || NEW.server_ids, 'finished', 'finished', NEW.message);
    WHEN 'fleet_actions' THEN
        INSERT INTO events (kind, id, about, step, status, reason, message)
        VALUES ('fleet', NEW.fleet_id, ARRAY[NEW.fleet_id || '/' || NEW.seq], NEW.action, NEW.status, NEW.reason, NEW.message);
    WHEN 'fleet_action_steps' THEN
        INSERT INTO events (kind, id, about, step, status, message)
        VALUES ('fleet', NEW.fleet_id, ARRAY[NEW.fleet_id || '/' || NEW.seq, NEW.server_id], 'server_' || NEW.op, NEW.state, NEW.message);
    WHEN 'process_groups' THEN
        IF OLD.deploy_status IS DISTINCT FROM NEW.deploy_status THEN
            INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
            VALUES ('group', NEW.group_id, NEW.org_id, ARRAY[NEW.env_id], 'deploy_' || NEW.deploy_status, NEW.status, NEW.deploy_reason, NEW.deploy_message);
        END IF;
        IF (OLD.status, OLD.status_reason) IS DISTINCT FROM (NEW.status, NEW.status_reason) THEN
            INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
            VALUES ('group', NEW.group_id, NEW.org_id, ARRAY[NEW.env_id], NEW.status, NEW.status, NEW.status_reason, NEW.status_message);
        END IF;
    WHEN 'instances' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, message)
        VALUES ('instance', NEW.instance_id, NEW.org_id, ARRAY[NEW.group_id, NEW.server_id],
            CASE WHEN OLD.state <> NEW.state THEN NEW.state WHEN NEW.healthy THEN 'healthy' ELSE 'unhealthy' END, NEW.state, NEW.message);
    WHEN 'volumes' THEN
        INSERT INTO events (kind, id, org_id, step, status, reason, message)
        VALUES ('volume', NEW.volume_id, NEW.org_id, CASE WHEN NEW.deleted_at IS NULL THEN NEW.status ELSE 'gone' END, NEW.status, NEW.reason, NEW.message);
    WHEN 'volume_attachments' THEN
        INSERT INTO events (kind, id, org_id, about, step)
        VALUES ('attachment', NEW.attachment_id, NEW.org_id, array_remove(ARRAY[NEW.volume_id, NEW.group_id, COALESCE(NEW.server_id, OLD.server_id)], NULL),
            CASE WHEN NEW.server_id IS NULL THEN 'detached' ELSE 'attached' END);
    WHEN 'ipv4_allocations' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
        VALUES ('ipv4', NEW.allocation_id, NEW.org_id, ARRAY[NEW.env_id], CASE WHEN NEW.deleted_at IS NULL THEN NEW.status ELSE 'gone' END, NEW.status, NEW.reason, NEW.message);
    WHEN 'tenant_moves' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
        VALUES ('move', NEW.move_id, NEW.org_id, array_remove(ARRAY[NEW.tenant_id, NEW.from_server_id, NEW.to_server_id], NULL), NEW.state, NEW.state, NEW.reason, NEW.message);
    WHEN 'backups' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
        VALUES ('backup', NEW.backup_id, NEW.org_id, array_remove(ARRAY[NEW.tenant_id, NEW.volume_id, NEW.server_id], NULL),
            CASE WHEN OLD.state <> NEW.state THEN NEW.state
                WHEN OLD.held_at IS DISTINCT FROM NEW.held_at THEN CASE WHEN NEW.held_at IS NULL THEN 'released' ELSE 'held' END
                ELSE 'verified' END, NEW.state, NEW.reason, NEW.message);
    WHEN 'snapshots' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, message)
        VALUES ('snapshot', NEW.snapshot_id, NEW.org_id, ARRAY[NEW.tenant_id, NEW.server_id], NEW.status, NEW.status, NEW.message);
    WHEN 'restore_jobs' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, message)
        VALUES ('restore', NEW.job_id, NEW.org_id, array_remove(ARRAY[NEW.tenant_id, NEW.snapshot_id, NEW.backup_id], NULL), NEW.status, NEW.status, NEW.message);
    WHEN 'volume_restores' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
        VALUES ('restore', NEW.restore_id, NEW.org_id, ARRAY[NEW.volume_id, NEW.backup_id], NEW.status, NEW.status, NEW.reason, NEW.message);
    WHEN 'drills' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
        VALUES ('drill', NEW.drill_id, NEW.org_id, array_remove(ARRAY[NEW.tenant_id, NEW.volume_id, NEW.backup_id, NEW.server_id], NULL), NEW.state, NEW.state, NEW.reason, NEW.message);
    WHEN 'certificates' THEN
        INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
        VALUES ('certificate', NEW.certificate_id, NEW.org_id, NEW.names || array_remove(ARRAY[NEW.tenant_id], NULL),
            CASE WHEN NEW.version > OLD.version THEN 'issued' WHEN OLD.status <> NEW.status THEN NEW.status ELSE 'attempt_failed' END, NEW.status, NEW.reason, NEW.message);
    WHEN 'rebalances' THEN
        INSERT INTO events (kind, id, step, status, reason, message) VALUES ('rebalance', NEW.rebalance_id, NEW.state, NEW.state, NEW.reason, NEW.message);
    WHEN 'stack_releases' THEN
        INSERT INTO events (kind, id, step, status, reason, message) VALUES ('release', NEW.name, NEW.status, NEW.status, NEW.reason, NEW.message);
    WHEN 'agent_releases' THEN
        INSERT INTO events (kind, id, step, status, reason, message) VALUES ('agent_release', NEW.version, NEW.status, NEW.status, NEW.reason, NEW.message);
    WHEN 'golden_images' THEN
        INSERT INTO events (kind, id, step, status, reason, message) VALUES ('image', NEW.image_id, NEW.status, NEW.status, NEW.reason, NEW.message);
    END CASE;
    RETURN NULL;
END $$;
