-- +goose Up

-- A fleet is a named set of servers of one role (region-placement).
CREATE TABLE fleets (
    fleet_id         text PRIMARY KEY,
    request_hash     bytea NOT NULL,
    role             text NOT NULL CHECK (role IN ('app', 'db-shard', 'redis-pool', 'node')),
    region           text CHECK (region IN ('sg', 'eu', 'us')), -- where its servers stand when no policy says
    infra_provider   text NOT NULL REFERENCES infra_providers (id),
    min_size         integer NOT NULL CHECK (min_size >= 0),
    max_size         integer NOT NULL CHECK (max_size = -1 OR max_size >= min_size),
    desired_capacity integer NOT NULL DEFAULT 0 CHECK (desired_capacity >= 0),
    spec             jsonb NOT NULL,
    require_tags     text[] NOT NULL DEFAULT '{}',
    disallow_tags    text[] NOT NULL DEFAULT '{}',
    serves_tenants   boolean NOT NULL DEFAULT false,
    profile          integer NOT NULL DEFAULT 1, -- changes of spec
    last_seq         integer NOT NULL DEFAULT 0, -- of its actions
    created_by       text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE policies (
    policy_id  text PRIMARY KEY,
    type       text NOT NULL CHECK (type IN ('scaling', 'region_placement', 'deletion')),
    spec       jsonb NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE fleet_policies (
    fleet_id     text NOT NULL REFERENCES fleets (fleet_id) ON DELETE CASCADE,
    policy_id    text NOT NULL REFERENCES policies (policy_id),
    type         text NOT NULL,
    position     integer NOT NULL,
    enabled      boolean NOT NULL DEFAULT true,
    last_used_at timestamptz,
    PRIMARY KEY (fleet_id, policy_id)
);
-- Two policies that decide the same thing would contradict each other; two scaling
-- policies are for the two directions.
CREATE UNIQUE INDEX fleet_policies_one ON fleet_policies (fleet_id, type) WHERE type <> 'scaling';
CREATE INDEX fleet_policies_by_policy ON fleet_policies (policy_id);

CREATE TABLE fleet_actions (
    fleet_id         text NOT NULL REFERENCES fleets (fleet_id) ON DELETE CASCADE,
    seq              integer NOT NULL,
    action           text NOT NULL CHECK (action IN ('CLUSTER_SCALE_OUT', 'CLUSTER_SCALE_IN', 'CLUSTER_RESIZE', 'CLUSTER_REPLACE', 'NODE_CREATE')),
    inputs           jsonb NOT NULL,
    data             jsonb NOT NULL DEFAULT '{}',
    status           text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    reason           text NOT NULL DEFAULT '',
    message          text NOT NULL DEFAULT '',
    cause            text NOT NULL, -- 'operator', or what the servers are for
    driven_by        text NOT NULL, -- 'fleet', whose runs take one after the other, or the id of the run that waits for it
    key              text NOT NULL DEFAULT substr(md5(gen_random_uuid()::text), 1, 8), -- in its servers' names: no name is used twice
    requested_by     text NOT NULL,
    idempotency_key  text,
    cancel_requested boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz,
    finished_at      timestamptz,
    PRIMARY KEY (fleet_id, seq),
    UNIQUE (fleet_id, idempotency_key)
);
CREATE INDEX fleet_actions_open ON fleet_actions (fleet_id, seq) WHERE status IN ('queued', 'running');

-- The servers that an action makes or takes down, decided before the first is touched.
CREATE TABLE fleet_action_steps (
    fleet_id  text NOT NULL,
    seq       integer NOT NULL,
    server_id text NOT NULL,
    op        text NOT NULL CHECK (op IN ('create', 'delete')),
    region    text NOT NULL,
    round     integer NOT NULL,
    replan    boolean NOT NULL DEFAULT false,
    state     text NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'done', 'failed', 'kept', 'skipped')),
    message   text NOT NULL DEFAULT '',
    at        timestamptz NOT NULL DEFAULT now(), -- of its state
    PRIMARY KEY (fleet_id, seq, server_id, op),
    FOREIGN KEY (fleet_id, seq) REFERENCES fleet_actions (fleet_id, seq) ON DELETE CASCADE
);
CREATE INDEX fleet_action_steps_by_server ON fleet_action_steps (server_id);

ALTER TABLE servers
    ADD COLUMN fleet_id text REFERENCES fleets (fleet_id),
    ADD COLUMN fleet_profile integer NOT NULL DEFAULT 0,
    ADD COLUMN cordoned_at timestamptz; -- set: nobody new lands here
CREATE INDEX servers_by_fleet ON servers (fleet_id) WHERE fleet_id IS NOT NULL;

-- Where servers that tenants need are made unless operators make fleets of their own:
-- the newest fleet that serves tenants and has room comes first.
INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, serves_tenants, created_by, created_at) VALUES
    ('tenants-app', '', 'app', 'hetzner', 0, -1, '{}', true, 'prego', '2000-01-01'),
    ('tenants-db', '', 'db-shard', 'hetzner', 0, -1, '{}', true, 'prego', '2000-01-01'),
    ('tenants-redis', '', 'redis-pool', 'hetzner', 0, -1, '{}', true, 'prego', '2000-01-01'),
    ('tenants-node', '', 'node', 'hetzner', 0, -1, '{}', true, 'prego', '2000-01-01');

-- A cordoned server takes no tenant, whoever asks. The placement engine is shown
-- it as draining; this is for the decision that was made right before.
-- +goose StatementBegin
CREATE FUNCTION refuse_cordoned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'server % takes no new tenants', NEW.server_id USING ERRCODE = 'check_violation', CONSTRAINT = 'servers_cordoned';
END $$;
-- +goose StatementEnd
CREATE TRIGGER servers_refuse_cordoned BEFORE UPDATE ON servers FOR EACH ROW
    WHEN (NEW.cordoned_at IS NOT NULL AND NEW.tenant_count > OLD.tenant_count) EXECUTE FUNCTION refuse_cordoned();

-- Its shard and pool follow, and come back with it.
-- +goose StatementBegin
CREATE FUNCTION cordon_shards_and_pools() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE db_shards SET status = CASE WHEN NEW.cordoned_at IS NULL THEN 'active' ELSE 'draining' END
    WHERE server_id = NEW.server_id AND status IN ('active', 'draining');
    UPDATE redis_pools SET status = CASE WHEN NEW.cordoned_at IS NULL THEN 'active' ELSE 'draining' END
    WHERE server_id = NEW.server_id AND status IN ('active', 'draining');
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER servers_cordon AFTER UPDATE ON servers FOR EACH ROW
    WHEN (OLD.cordoned_at IS DISTINCT FROM NEW.cordoned_at AND NEW.status = 'active') EXECUTE FUNCTION cordon_shards_and_pools();
-- Also those of one that comes to life while it is cordoned, after they were made.
CREATE TRIGGER servers_stay_cordoned AFTER UPDATE ON servers FOR EACH ROW
    WHEN (NEW.cordoned_at IS NOT NULL AND NEW.status = 'active' AND OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION cordon_shards_and_pools();
CREATE TRIGGER servers_cordon_noted BEFORE UPDATE ON servers FOR EACH ROW
    WHEN (OLD.cordoned_at IS DISTINCT FROM NEW.cordoned_at AND OLD.changed_xid = NEW.changed_xid) EXECUTE FUNCTION note_change();
