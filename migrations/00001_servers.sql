-- +goose Up

-- Clouds that servers can be made on (placement-policy §2.2).
CREATE TABLE infra_providers (
    id      text PRIMARY KEY CHECK (id IN ('hetzner', 'aws', 'gcp')),
    enabled boolean NOT NULL,
    regions text[] NOT NULL
);
INSERT INTO infra_providers (id, enabled, regions) VALUES
    ('hetzner', true, '{sg,eu,us}'),
    ('aws', false, '{}'),
    ('gcp', false, '{}');

CREATE TABLE servers (
    server_id      text PRIMARY KEY,
    request_hash   bytea NOT NULL,
    role           text NOT NULL CHECK (role IN ('app', 'db-shard', 'redis-pool', 'node')),
    region         text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    infra_provider text NOT NULL REFERENCES infra_providers (id),
    spec           jsonb NOT NULL,
    tags           text[] NOT NULL DEFAULT '{}',

    status         text NOT NULL CHECK (status IN ('provisioning', 'active', 'draining', 'terminated', 'failed')),
    status_reason  text NOT NULL DEFAULT '',
    status_message text NOT NULL DEFAULT '',

    managed_by         text NOT NULL DEFAULT 'worker_direct' CHECK (managed_by IN ('worker_direct', 'pulumi')),
    provider_server_id text,
    server_type        text NOT NULL DEFAULT '',
    location           text NOT NULL DEFAULT '',
    image              text NOT NULL DEFAULT '',
    host               text NOT NULL DEFAULT '',
    ipv6               text NOT NULL DEFAULT '',

    workflow_id text NOT NULL,
    -- purpose of the tokens that this server gets
    purpose     text NOT NULL DEFAULT 'agent_bootstrap' CHECK (purpose IN ('agent_bootstrap', 'import_existing_server')),
    generation  integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    attempt     integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    -- when the provider confirmed that the current attempt's server is running
    running_at  timestamptz,

    agent_status            text NOT NULL DEFAULT 'unknown' CHECK (agent_status IN ('unknown', 'connected', 'degraded', 'disconnected')),
    agent_key_sha256        bytea, -- SHA-256 of the SubjectPublicKeyInfo bound at the handshake
    agent_version           text NOT NULL DEFAULT '',
    agent_boot_id           text NOT NULL DEFAULT '',
    agent_first_seen_at     timestamptz, -- the handshake of the current attempt
    agent_first_heartbeat_at timestamptz,
    agent_last_heartbeat_at timestamptz,
    load1                   double precision,
    memory_pct              double precision,
    disk_pct                double precision,
    docker_state            text NOT NULL DEFAULT '',

    imported_from_pulumi_at   timestamptz,
    identity_revoked_at       timestamptz,
    decommission_requested_at timestamptz,
    created_by                text NOT NULL,
    created_at                timestamptz NOT NULL DEFAULT now(),
    updated_at                timestamptz NOT NULL DEFAULT now(),
    active_at                 timestamptz,
    terminated_at             timestamptz
) WITH (fillfactor = 70); -- heartbeats update rows in place: none of their columns is indexed
CREATE INDEX servers_listing ON servers (created_at DESC, server_id DESC);
CREATE INDEX servers_by_status ON servers (status, region, role);
CREATE INDEX servers_by_tag ON servers USING gin (tags);
CREATE UNIQUE INDEX servers_provider_id ON servers (infra_provider, provider_server_id) WHERE provider_server_id IS NOT NULL;
CREATE INDEX servers_revoked ON servers (identity_revoked_at) WHERE identity_revoked_at IS NOT NULL;

-- direct-provisioning §6. The raw token is never stored: it is derived again from
-- token_id under the master key when a step repeats.
CREATE TABLE server_bootstrap_tokens (
    token_id      text PRIMARY KEY,
    server_id     text NOT NULL REFERENCES servers (server_id),
    attempt       integer NOT NULL,
    token_hash    bytea NOT NULL UNIQUE, -- sha256(token)
    purpose       text NOT NULL CHECK (purpose IN ('agent_bootstrap', 'import_existing_server')),
    issued_at     timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    consumed_at   timestamptz,
    consumed_key  bytea, -- SHA-256 of the SubjectPublicKeyInfo that consumed it
    superseded_at timestamptz, -- a later token of this server was consumed, or this attempt's server is gone
    UNIQUE (server_id, attempt),
    CHECK ((consumed_at IS NULL) = (consumed_key IS NULL))
);
CREATE INDEX idx_bootstrap_token_server ON server_bootstrap_tokens (server_id);

-- direct-provisioning §6
CREATE TABLE agent_command_audit (
    audit_id         text PRIMARY KEY,
    server_id        text NOT NULL REFERENCES servers (server_id),
    workflow_id      text,
    command_kind     text NOT NULL CHECK (command_kind IN ('bench', 'mariadb', 'redis-cli', 'bootstrap')),
    args_redacted    text NOT NULL,
    actor            text NOT NULL CHECK (actor IN ('workflow', 'operator', 'system')),
    requested_at     timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz,
    finished_at      timestamptz,
    exit_code        integer,
    duration_ms      bigint,
    stdout_truncated text,
    stderr_truncated text
);
CREATE INDEX idx_audit_server ON agent_command_audit (server_id, requested_at);
CREATE INDEX idx_audit_workflow ON agent_command_audit (workflow_id);

-- The timeline.
CREATE TABLE server_events (
    event_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server_id text NOT NULL REFERENCES servers (server_id),
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    step      text NOT NULL,
    attempt   integer NOT NULL DEFAULT 0,
    status    text NOT NULL,
    reason    text NOT NULL DEFAULT '',
    message   text NOT NULL DEFAULT '',
    actor     text NOT NULL CHECK (actor IN ('workflow', 'operator', 'system')),
    -- makes a repeated step write its event once; NULL where each is its own
    dedup_key text,
    UNIQUE (server_id, dedup_key)
);
CREATE INDEX server_events_by_server ON server_events (server_id, event_id);

-- Everything billed has an owner: intent is written before the call that makes
-- the thing, release is confirmed after the provider says that it is gone.
CREATE TABLE resources (
    resource_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider     text NOT NULL REFERENCES infra_providers (id),
    kind         text NOT NULL CHECK (kind IN ('server', 'volume', 'primary_ip', 'firewall', 'placement_group')),
    name         text NOT NULL,
    provider_id  text,
    server_id    text REFERENCES servers (server_id), -- NULL: owned by the environment
    attempt      integer NOT NULL DEFAULT 0,
    state        text NOT NULL CHECK (state IN ('intended', 'created', 'releasing', 'released')),
    details      jsonb NOT NULL DEFAULT '{}',
    intended_at  timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz,
    releasing_at timestamptz,
    released_at  timestamptz
);
CREATE UNIQUE INDEX resources_live_name ON resources (provider, kind, name) WHERE state <> 'released';
CREATE UNIQUE INDEX resources_live_provider_id ON resources (provider, kind, provider_id) WHERE state <> 'released' AND provider_id IS NOT NULL;
CREATE INDEX resources_by_server ON resources (server_id) WHERE state <> 'released';

-- Which placement group each server was made in; a group holds at most ten.
CREATE TABLE placement_group_members (
    server_id  text PRIMARY KEY REFERENCES servers (server_id),
    group_name text NOT NULL
);
CREATE INDEX placement_group_members_by_group ON placement_group_members (group_name);

-- One request budget per provider project, shared by every worker. Times and
-- refills are the database's.
CREATE TABLE provider_budgets (
    project       text PRIMARY KEY,
    capacity      double precision NOT NULL, -- requests
    refill_per_s  double precision NOT NULL,
    tokens        double precision NOT NULL,
    refilled_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    blocked_until timestamptz
);

-- Things at a provider that carry our labels and have no row: two sightings are
-- needed before one is destroyed.
CREATE TABLE orphan_sightings (
    provider      text NOT NULL,
    kind          text NOT NULL,
    provider_id   text NOT NULL,
    name          text NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz NOT NULL DEFAULT now(),
    sightings     integer NOT NULL DEFAULT 1,
    destroyed_at  timestamptz,
    PRIMARY KEY (provider, kind, provider_id)
);

CREATE TABLE reconcile_runs (
    run_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    findings    jsonb NOT NULL DEFAULT '{}'
);
