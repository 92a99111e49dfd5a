-- +goose Up

-- The audit: who changed what, from where, the value before and after (docs/audit.md). An entry is
-- written by a trigger, in the transaction that changes the row, so that no change is without one.
CREATE TABLE audit_entries (
    entry_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor      text NOT NULL,
    role       text NOT NULL, -- operator, viewer; database for what no request did
    address    text NOT NULL DEFAULT '',
    request_id text NOT NULL DEFAULT '',
    operation  text NOT NULL DEFAULT '',
    kind       text NOT NULL,
    id         text NOT NULL,
    org_id     text NOT NULL DEFAULT '',
    verb       text NOT NULL CHECK (verb IN ('create', 'update', 'delete', 'request')),
    old        jsonb, -- of an update the columns that changed
    new        jsonb
);
CREATE INDEX audit_entries_at ON audit_entries (at, entry_id);
CREATE INDEX audit_entries_kind ON audit_entries (kind, at, entry_id);
CREATE INDEX audit_entries_id ON audit_entries (id, at, entry_id);
CREATE INDEX audit_entries_actor ON audit_entries (actor, at, entry_id);
CREATE INDEX audit_entries_operation ON audit_entries (operation, at, entry_id);
CREATE INDEX audit_entries_org ON audit_entries (org_id, at, entry_id);
CREATE INDEX audit_entries_request ON audit_entries (request_id) WHERE request_id <> '';

-- Entries in the order in which they were sealed, each hashed with the one before. Sealing comes
-- after the commit, so that writers don't wait for each other.
CREATE TABLE audit_chain (
    seq       bigint PRIMARY KEY,
    entry_id  bigint NOT NULL UNIQUE,
    prev_hash bytea NOT NULL,
    hash      bytea NOT NULL
);
CREATE TABLE audit_unsealed (entry_id bigint PRIMARY KEY);

-- Up to where the audit is pruned.
CREATE TABLE audit_checkpoints (
    seq       bigint PRIMARY KEY,
    hash      bytea NOT NULL, -- of the last entry that is gone
    entries   bigint NOT NULL,
    pruned_at timestamptz NOT NULL DEFAULT now()
);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION write_audit(kind text, id text, org_id text, verb text, was jsonb, became jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    asked text := current_setting('prego.request', true);
    who   jsonb;
BEGIN
    IF asked <> '' THEN
        who := convert_from(decode(asked, 'base64'), 'UTF8')::jsonb;
    ELSE
        who := jsonb_build_object('actor', session_user, 'role', 'database', 'from', COALESCE(host(inet_client_addr()), ''), 'operation', current_setting('application_name'));
    END IF;
    INSERT INTO audit_entries (actor, role, address, request_id, operation, kind, id, org_id, verb, old, new)
    VALUES (COALESCE(who ->> 'actor', ''), COALESCE(who ->> 'role', ''), COALESCE(who ->> 'from', ''), COALESCE(who ->> 'request_id', ''), COALESCE(who ->> 'operation', ''),
        kind, COALESCE(id, ''), org_id, verb, was, became);
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION write_request_audit(asked text, kind text, id text, org_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    request text := COALESCE(NULLIF(convert_from(decode(asked, 'base64'), 'UTF8'), '')::jsonb ->> 'request_id', '');
BEGIN
    IF request <> '' AND EXISTS (SELECT FROM audit_entries e WHERE e.request_id = request) THEN
        RETURN;
    END IF;
    PERFORM set_config('prego.request', asked, true);
    PERFORM write_audit(kind, id, org_id, 'request', NULL, NULL);
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION redact_audit(columns jsonb, secret text[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_replace(regexp_replace((columns || COALESCE((
            SELECT jsonb_object_agg(c, '[redacted]') FROM unnest(secret) c WHERE columns -> c <> 'null'), '{}'))::text,
        -- "db_password": "…" of any document, and user:password@ of any URL
        '("[^"]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[^"]*": )"(?:[^"\\]|\\.)*"', '\1"[redacted]"', 'gi'),
        '(://[^\s:/@"]*:)[^\s@"]+@', '\1[redacted]@', 'g')::jsonb
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    left_out text[] := string_to_array(TG_ARGV[4], ' ');
    was    jsonb;
    became jsonb;
    whole  jsonb;
    what   text := lower(TG_OP);
BEGIN
    CASE TG_OP
    WHEN 'INSERT' THEN
        what := 'create';
        became := jsonb_strip_nulls(to_jsonb(NEW) - left_out);
        whole := became;
    WHEN 'DELETE' THEN
        was := jsonb_strip_nulls(to_jsonb(OLD) - left_out);
        whole := was;
    WHEN 'TRUNCATE' THEN
        what := 'delete';
        whole := '{}';
    ELSE
        whole := to_jsonb(NEW);
        SELECT jsonb_object_agg(o.key, o.value), jsonb_object_agg(o.key, whole -> o.key) INTO was, became
        FROM jsonb_each(to_jsonb(OLD) - left_out) o WHERE o.value IS DISTINCT FROM whole -> o.key;
        IF was IS NULL THEN
            RETURN NULL;
        END IF;
        IF was ? 'deleted_at' AND was ->> 'deleted_at' IS NULL THEN
            what := 'delete';
        END IF;
    END CASE;
    PERFORM write_audit(TG_ARGV[0],
        CASE WHEN TG_OP = 'TRUNCATE' THEN '*' ELSE (SELECT string_agg(whole ->> c, '/' ORDER BY n) FROM unnest(string_to_array(TG_ARGV[1], ' ')) WITH ORDINALITY u (c, n)) END,
        COALESCE(whole ->> TG_ARGV[2], ''), what,
        redact_audit(was, string_to_array(TG_ARGV[3], ' ')), redact_audit(became, string_to_array(TG_ARGV[3], ' ')));
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION queue_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO audit_unsealed (entry_id) VALUES (NEW.entry_id);
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION audit_field(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT COALESCE(octet_length(convert_to(value, 'UTF8')) || ':' || value, '-') || ','
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION audit_encoding(e audit_entries) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT audit_field(e.entry_id::text) || audit_field(to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
        || audit_field(e.actor) || audit_field(e.role) || audit_field(e.address) || audit_field(e.request_id) || audit_field(e.operation)
        || audit_field(e.kind) || audit_field(e.id) || audit_field(e.org_id) || audit_field(e.verb) || audit_field(e.old::text) || audit_field(e.new::text)
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION audit_end(OUT seq bigint, OUT hash bytea) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT l.seq, l.hash FROM (
        (SELECT c.seq, c.hash FROM audit_chain c ORDER BY c.seq DESC LIMIT 1)
        UNION ALL (SELECT p.seq, p.hash FROM audit_checkpoints p ORDER BY p.seq DESC LIMIT 1)
        UNION ALL SELECT 0, decode(repeat('00', 32), 'hex')) l
    ORDER BY l.seq DESC LIMIT 1
$$;
-- +goose StatementEnd
-- +goose StatementBegin
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
-- +goose StatementEnd
-- +goose StatementBegin
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
-- +goose StatementEnd
-- +goose StatementBegin
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
-- +goose StatementEnd

-- Only the triggers, and requests that have no entry yet, write entries.
REVOKE EXECUTE ON FUNCTION write_audit FROM PUBLIC;

CREATE TRIGGER audit_entries_queue AFTER INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION queue_audit();
CREATE TRIGGER audit_entries_refuse BEFORE UPDATE OR DELETE ON audit_entries FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_entries_refuse_truncate BEFORE TRUNCATE ON audit_entries EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_chain_refuse BEFORE UPDATE OR DELETE ON audit_chain FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_chain_refuse_truncate BEFORE TRUNCATE ON audit_chain EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_checkpoints_refuse BEFORE UPDATE OR DELETE ON audit_checkpoints FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_checkpoints_refuse_truncate BEFORE TRUNCATE ON audit_checkpoints EXECUTE FUNCTION refuse_audit_change();

-- What is audited: table, kind, columns of the id, column of the org, columns whose values are
-- secret, columns that are left out, and whether changes without a request are, too: those of
-- configuration. The others are changed by workflows all the time, which cost them the look at a
-- setting. Each trigger locks its table against writers until the end of this transaction.
-- +goose StatementBegin
DO $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT * FROM (VALUES
        ('orgs', 'org', 'org_id', 'org_id', '', '', true),
        ('org_quotas', 'quota', 'org_id dimension', 'org_id', '', 'updated_at', true),
        ('org_placement_pools', 'org_placement_pool', 'org_id pool_id', 'org_id', '', '', true),
        ('fleets', 'fleet', 'fleet_id', '', '', 'request_hash last_seq updated_at', true),
        ('policies', 'policy', 'policy_id', '', '', 'updated_at', true),
        ('fleet_policies', 'fleet_policy', 'fleet_id policy_id', '', '', 'last_used_at', true),
        ('placement_pools', 'placement_pool', 'pool_id', '', '', 'updated_at', true),
        ('site_pool_policies', 'site_pool_policy', 'plan', '', '', '', true),
        ('warm_pools', 'warm_pool', 'region plan', '', '', 'updated_at', true),
        ('registries', 'registry', 'host', '', 'sealed', 'updated_at', true),
        ('backup_policies', 'backup_policy', 'policy_id', 'org_id', '', 'updated_at', true),
        ('backup_holds', 'backup_hold', 'tenant_id volume_id', '', '', '', true),
        ('image_digests', 'image_digest', 'image', '', '', '', true),
        ('capacity_defaults', 'capacity_default', 'role', '', '', '', true),
        ('tenant_sizes', 'tenant_size', 'plan', '', '', '', true),
        ('workload_settings', 'workload_settings', 'one', '', '', '', true),
        ('residency_zones', 'residency_zone', 'country', '', '', '', true),
        ('infra_providers', 'infra_provider', 'id', '', '', '', true),
        ('servers', 'server', 'server_id', '', '', 'request_hash agent_key_sha256 updated_at changed_xid', false),
        ('server_drains', 'drain', 'server_id number', '', '', 'updated_at', false),
        ('patch_waves', 'patch_wave', 'wave_id', '', '', '', false),
        ('agent_command_audit', 'command', 'audit_id', '', '', 'stdout_truncated stderr_truncated started_at finished_at duration_ms', false),
        ('golden_images', 'image', 'image_id', '', '', 'recipe_hash agent_sha256 stack_sha256 updated_at', false),
        ('stack_releases', 'release', 'name', '', '', 'updated_at', false),
        ('agent_releases', 'agent_release', 'version', '', '', 'document signature updated_at', false),
        ('rebalances', 'rebalance', 'rebalance_id', '', '', 'updated_at', false),
        ('fleet_actions', 'fleet_action', 'fleet_id seq', '', '', '', false),
        ('tenants', 'tenant', 'tenant_id', 'org_id', '', 'request_hash updated_at', false),
        ('tenant_moves', 'move', 'move_id', 'org_id', '', 'updated_at', false),
        ('placement_overrides', 'placement_override', 'override_id', '', '', '', false),
        ('site_usage', 'site_usage', 'tenant_id', '', '', '', false),
        ('domains', 'domain', 'domain_id', 'org_id', 'token', 'updated_at', false),
        ('certificates', 'certificate', 'certificate_id', 'org_id', 'sealed_key', 'changed chain_pem updated_at', false),
        ('backups', 'backup', 'backup_id', 'org_id', 'sealed_identity', 'upload_id part_bytes parts', false),
        ('restore_jobs', 'restore', 'job_id', 'org_id', '', '', false),
        ('drills', 'drill', 'drill_id', 'org_id', '', '', false),
        ('snapshots', 'snapshot', 'snapshot_id', 'org_id', '', '', false),
        ('apps', 'app', 'app_id', 'org_id', '', '', false),
        ('envs', 'env', 'env_id', 'org_id', '', '', false),
        ('process_groups', 'group', 'group_id', 'org_id', '', 'stable_spec updated_at', false),
        ('rollouts', 'rollout', 'group_id number', '', '', 'spec', false),
        ('routes', 'route', 'route_id', 'org_id', '', '', false),
        ('ipv4_allocations', 'ipv4', 'allocation_id', 'org_id', '', 'updated_at', false),
        ('volumes', 'volume', 'volume_id', 'org_id', '', 'updated_at', false),
        ('volume_attachments', 'attachment', 'attachment_id', 'org_id', '', '', false),
        ('volume_restores', 'volume_restore', 'restore_id', 'org_id', '', '', false)
    ) x (name, kind, id, org, secret, left_out, always) LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %I FOR EACH ROW %s EXECUTE FUNCTION note_audit(%L, %L, %L, %L, %L)',
            t.name || '_audit', t.name, CASE WHEN NOT t.always THEN $w$WHEN (current_setting('prego.request', true) <> '')$w$ ELSE '' END, t.kind, t.id, t.org, t.secret, t.left_out);
        EXECUTE format('CREATE TRIGGER %I AFTER TRUNCATE ON %I EXECUTE FUNCTION note_audit(%L, %L, %L, %L, %L)',
            t.name || '_audit_truncate', t.name, t.kind, t.id, t.org, t.secret, t.left_out);
    END LOOP;
END $$;
-- +goose StatementEnd
