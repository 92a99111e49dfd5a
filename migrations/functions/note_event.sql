-- Tells in the feed of events that an object was made, or that its state has changed (docs/adr/0069). The arguments are
-- the kind of object, the column of its id, and those of the ids of what it concerns.
CREATE OR REPLACE FUNCTION note_event() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    n       jsonb := to_jsonb(NEW);
    made    boolean := TG_OP = 'INSERT';
    about   text[] := ARRAY(SELECT n ->> c FROM unnest(string_to_array(TG_ARGV[2], ' ')) WITH ORDINALITY a (c, i)
        WHERE n ->> c IS NOT NULL ORDER BY i);
    status  text := COALESCE(n ->> 'status', n ->> 'state', '');
    step    text := status;
    reason  text := COALESCE(n ->> 'reason', '');
    message text := COALESCE(n ->> 'message', '');
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'scaling_events' THEN
        about := ARRAY[NEW.region || '/' || NEW.role] || NEW.server_ids;
        status := CASE WHEN made THEN 'open' ELSE 'finished' END;
        step := CASE WHEN made THEN NEW.trigger ELSE status END;
    WHEN 'fleet_actions' THEN
        about := ARRAY[NEW.fleet_id || '/' || NEW.seq];
        step := NEW.action;
    WHEN 'fleet_action_steps' THEN
        about := ARRAY[NEW.fleet_id || '/' || NEW.seq, NEW.server_id];
        step := 'server_' || NEW.op;
    WHEN 'process_groups' THEN
        IF OLD.deploy_status IS DISTINCT FROM NEW.deploy_status THEN
            INSERT INTO events (kind, id, org_id, about, step, status, reason, message)
            VALUES (TG_ARGV[0], NEW.group_id, NEW.org_id, about, 'deploy_' || NEW.deploy_status, NEW.status,
                NEW.deploy_reason, NEW.deploy_message);
            IF (OLD.status, OLD.status_reason) IS NOT DISTINCT FROM (NEW.status, NEW.status_reason) THEN
                RETURN NULL;
            END IF;
        END IF;
        reason := NEW.status_reason;
        message := NEW.status_message;
    WHEN 'instances' THEN
        step := CASE WHEN made OR OLD.state <> NEW.state THEN NEW.state WHEN NEW.healthy THEN 'healthy' ELSE 'unhealthy' END;
    WHEN 'volumes', 'ipv4_allocations' THEN
        step := CASE WHEN NEW.deleted_at IS NULL THEN status ELSE 'gone' END;
    WHEN 'volume_attachments' THEN
        about := array_remove(about || ARRAY[COALESCE(NEW.server_id, OLD.server_id)], NULL);
        step := CASE WHEN NEW.server_id IS NULL THEN 'detached' ELSE 'attached' END;
    WHEN 'backups' THEN
        step := CASE WHEN made OR OLD.state <> NEW.state THEN NEW.state
            WHEN NEW.held_at IS DISTINCT FROM OLD.held_at AND NEW.held_at IS NOT NULL THEN 'held'
            WHEN NEW.held_at IS DISTINCT FROM OLD.held_at THEN 'released'
            ELSE 'verified' END;
    WHEN 'certificates' THEN
        about := NEW.names || about;
        step := CASE WHEN NEW.version > OLD.version THEN 'issued' WHEN made OR OLD.status <> NEW.status THEN NEW.status
            WHEN NEW.failures > OLD.failures THEN 'attempt_failed' END;
        IF step IS NULL THEN
            RETURN NULL;
        END IF;
    WHEN 'rebalances' THEN
        message := CASE WHEN made THEN NEW.why ELSE message END;
    WHEN 'login_links' THEN
        IF NEW.parent_id IS NOT NULL THEN -- a caller's own, to the console
            RETURN NULL;
        END IF;
        status := CASE WHEN made THEN 'open' ELSE 'used' END;
        step := CASE WHEN made THEN 'created' ELSE 'used' END;
        message := NEW.name;
    WHEN 'patch_waves' THEN
        step := 'created';
        message := NEW.why;
    ELSE
    END CASE;
    INSERT INTO events (kind, id, org_id, about, step, status, reason, message, actor)
    VALUES (TG_ARGV[0], n ->> TG_ARGV[1], n ->> 'org_id', about, step, status, reason, message,
        CASE WHEN made THEN COALESCE(n ->> 'created_by', n ->> 'requested_by', '') ELSE '' END);
    RETURN NULL;
END $$;
