-- +goose Up
CREATE SEQUENCE certificate_changes;

-- ------------------------------------------------------------------------------
-- Orgs and their quotas (quotas-and-fairness)
-- ------------------------------------------------------------------------------

-- Customers. A parent groups organizations for affinity (placement-policy §5).
CREATE TABLE orgs (
    org_id             text PRIMARY KEY,
    parent_org_id      text REFERENCES orgs(org_id),
    created_by         text NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    -- Orgs have a tier, whose limits are data of the program; an org may have specific limits (quotas-and-fairness,
    -- "Quota configuration model"). Orgs from before there were quotas keep working.
    tier               text NOT NULL DEFAULT 'free' CHECK (tier IN ('free', 'paid', 'enterprise')),
    -- Bytes of backups are no dimension of the quotas (ADR 43). An org without a specific limit has one that follows
    -- from its quota of storage.
    backup_limit_bytes bigint CHECK (backup_limit_bytes >= 0),
    CHECK (parent_org_id IS DISTINCT FROM org_id)
);
CREATE INDEX orgs_begin ON orgs (org_id text_pattern_ops);
CREATE INDEX orgs_newest ON orgs (created_at DESC, org_id DESC);

CREATE TABLE org_quotas (
    org_id      text NOT NULL REFERENCES orgs(org_id),
    dimension   text NOT NULL,
    limit_value double precision NOT NULL CHECK (limit_value >= 0), -- whole except for max_total_cpu_request
    reason      text NOT NULL DEFAULT '',
    updated_by  text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dimension)
);

-- Requests of orgs for higher limits. An operator approves one, which sets the org's own limit, or refuses it.
CREATE TABLE limit_requests (
    limit_request_id text PRIMARY KEY,
    org_id           text NOT NULL REFERENCES orgs(org_id),
    dimension        text NOT NULL,
    old_limit        double precision NOT NULL, -- when it was requested; of an approved one, the limit that it replaced
    requested_limit  double precision NOT NULL CHECK (requested_limit > 0),
    granted_limit    double precision,
    reason           text NOT NULL,
    state            text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'approved', 'refused', 'withdrawn')),
    answer           text NOT NULL DEFAULT '', -- why it was approved or refused
    created_by       text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    decided_by       text NOT NULL DEFAULT '',
    decided_at       timestamptz,
    CHECK ((state = 'approved') = (granted_limit IS NOT NULL)),
    CHECK ((state = 'open') = (decided_at IS NULL))
);
CREATE UNIQUE INDEX limit_requests_open ON limit_requests (org_id, dimension) WHERE state = 'open';
CREATE INDEX limit_requests_newest ON limit_requests (created_at DESC, limit_request_id DESC);

-- An org's usage and promises, by dimension, to compare with limits. Only a transaction that holds the org's row
-- writes here.
CREATE TABLE org_counters (
    org_id    text NOT NULL REFERENCES orgs(org_id),
    dimension text NOT NULL,
    used      numeric NOT NULL DEFAULT 0,
    promised  numeric NOT NULL DEFAULT 0, -- to process groups, and not allocated yet
    PRIMARY KEY (org_id, dimension)
) WITH (fillfactor=70);

-- Changes that are not in the counters yet. Triggers append to it in the transaction of the change, without waiting;
-- the holder of the org's row adds the changes to the counters and deletes them. kind is the changed table, with n
-- rows, memory (without the overhead of each instance), CPUs and bytes more; or the kind of a part (key) that can't
-- be counted by adding up: 'tenant', 'group', 'hostname', 'port'.
CREATE TABLE org_usage_changes (
    org_id text NOT NULL,
    kind   text NOT NULL,
    key    text NOT NULL DEFAULT '',
    n      bigint NOT NULL DEFAULT 0,
    memory bigint NOT NULL DEFAULT 0,
    cpu    numeric NOT NULL DEFAULT 0,
    bytes  bigint NOT NULL DEFAULT 0
);
CREATE INDEX org_usage_changes_by_org ON org_usage_changes (org_id);

-- The counted values of each such part: what a tenant counts that does not live and still has parts; what a group
-- has, and its promises; how many routes have a hostname or a port.
CREATE TABLE org_usage_parts (
    org_id          text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('tenant', 'group', 'hostname', 'port')),
    key             text NOT NULL,
    n               bigint NOT NULL DEFAULT 0,
    memory          bigint NOT NULL DEFAULT 0,
    cpu             numeric NOT NULL DEFAULT 0,
    bytes           bigint NOT NULL DEFAULT 0,
    promised_n      bigint NOT NULL DEFAULT 0,
    promised_memory bigint NOT NULL DEFAULT 0,
    promised_cpu    numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (org_id, kind, key)
) WITH (fillfactor=70);

-- Orgs whose counters were found wrong when they were last compared with the rows, and how far the comparison has
-- come.
CREATE TABLE org_usage_drifts (
    org_id   text PRIMARY KEY REFERENCES orgs(org_id),
    found_at timestamptz NOT NULL DEFAULT now(),
    drift    jsonb NOT NULL
);

CREATE TABLE org_usage_sweep (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    last_id text NOT NULL DEFAULT ''
);
INSERT INTO org_usage_sweep DEFAULT VALUES;

-- Exec sessions and log streams. One whose process died is over when its lease is.
CREATE TABLE org_sessions (
    session_id  text PRIMARY KEY,
    org_id      text NOT NULL REFERENCES orgs(org_id),
    kind        text NOT NULL CHECK (kind IN ('exec', 'logs')),
    subject     text NOT NULL,
    actor       text NOT NULL,
    opened_at   timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    closed_at   timestamptz
);
CREATE INDEX org_sessions_open ON org_sessions (org_id, kind, lease_until) WHERE closed_at IS NULL;
CREATE INDEX org_sessions_hour ON org_sessions (org_id, kind, opened_at);
-- Of the last hour, of all orgs.
CREATE INDEX org_sessions_opened ON org_sessions (opened_at);

-- ------------------------------------------------------------------------------
-- Clouds, and what they offer
-- ------------------------------------------------------------------------------

-- Clouds that servers can be made on (placement-policy §2.2).
CREATE TABLE infra_providers (
    id      text PRIMARY KEY CHECK (id IN ('hetzner', 'aws', 'gcp')),
    enabled boolean NOT NULL,
    regions text[] NOT NULL
);
INSERT INTO infra_providers (id, enabled, regions) VALUES
    ('hetzner', true, '{sg,eu,us}'), ('aws', false, '{}'), ('gcp', false, '{}');

-- Where data of a country's residents may be (placement-policy §2.1, §2.2).
CREATE TABLE residency_zones (
    country   text PRIMARY KEY CHECK (country ~ '^[A-Z]{2}$'),
    regions   text[] NOT NULL CHECK (regions <@ ARRAY['sg', 'eu', 'us'] AND cardinality(regions) > 0),
    providers text[] CHECK (cardinality(providers) > 0) -- NULL: every enabled one
);
INSERT INTO residency_zones (country, regions)
SELECT unnest('{KR,SG,MY,VN,ID,TH,JP,AU}'::text[]), '{sg}'::text[]
UNION ALL SELECT unnest('{AT,BE,BG,CY,CZ,DE,DK,EE,ES,FI,FR,GR,HR,HU,IE,IT,LT,LU,LV,MT,NL,PL,PT,RO,SE,SI,SK,GB,CH,NO}'::text[]), '{eu}'
UNION ALL SELECT unnest('{US,CA}'::text[]), '{us}';

-- One request budget per provider project, shared by every worker. Times and refills are the database's.
CREATE TABLE provider_budgets (
    project       text PRIMARY KEY,
    capacity      double precision NOT NULL, -- requests
    refill_per_s  double precision NOT NULL,
    tokens        double precision NOT NULL,
    refilled_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    blocked_until timestamptz
);

-- Each provider's offers: machine types, locations, images, prices. The last good answer stays when the provider is
-- unavailable.
CREATE TABLE provider_catalogs (
    provider     text PRIMARY KEY REFERENCES infra_providers(id),
    document     jsonb, -- NULL until the first answer
    refreshed_at timestamptz, -- when the document was read
    attempted_at timestamptz NOT NULL DEFAULT now(),
    failure      text NOT NULL DEFAULT '', -- of the last attempt; holds no secret
    CHECK ((document IS NULL) = (refreshed_at IS NULL))
);

-- The prices of providers, since when and until when; written whenever their price list is read and differs. Amounts
-- are net, in millionths of the currency.
CREATE TABLE provider_prices (
    provider   text NOT NULL,
    kind       text NOT NULL,
    type       text NOT NULL DEFAULT '', -- a machine type, or the family of an address
    location   text NOT NULL DEFAULT '', -- '': everywhere
    per_gb     boolean NOT NULL DEFAULT false,
    hourly     bigint CHECK (hourly >= 0), -- NULL: a part of the month's
    monthly    bigint NOT NULL CHECK (monthly >= 0), -- at most, in a calendar month
    currency   text NOT NULL,
    valid_from timestamptz NOT NULL DEFAULT now(),
    valid_to   timestamptz, -- NULL: current
    PRIMARY KEY (provider, kind, type, location, valid_from)
);
CREATE UNIQUE INDEX provider_prices_in_force ON provider_prices (provider, kind, type, location) WHERE valid_to IS
    NULL;

-- Golden images: snapshots at the provider that were booted once before servers are made from them. The row is
-- written before anything is made, and outlives it.
CREATE TABLE golden_images (
    image_id          text PRIMARY KEY, -- img-…
    provider          text NOT NULL REFERENCES infra_providers(id),
    -- where it is built; it can be used anywhere
    region            text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    base_image        text NOT NULL, -- the provider's image that it is made from
    architecture      text NOT NULL CHECK (architecture IN ('x86', 'arm')),
    recipe_hash       text NOT NULL DEFAULT '', -- of all that the builder runs; '' until it begins
    agent_sha256      text NOT NULL DEFAULT '', -- of the agent that it was verified with
    stack_sha256      text NOT NULL DEFAULT '',
    containers        text[] NOT NULL DEFAULT '{}', -- container images that are in it
    status            text NOT NULL DEFAULT 'building' CHECK (status IN ('building', 'verifying', 'ready', 'failed',
        'deleting', 'deleted')),
    reason            text NOT NULL DEFAULT '',
    message           text NOT NULL DEFAULT '', -- what it does now, or why it failed
    current           boolean NOT NULL DEFAULT false, -- new servers are made from it
    attempt           integer NOT NULL DEFAULT 0, -- builders asked for
    server_type       text NOT NULL DEFAULT '', -- of the builder
    location          text NOT NULL DEFAULT '',
    provider_image_id text,
    size_gb           double precision NOT NULL DEFAULT 0, -- the billed size
    disk_gb           double precision NOT NULL DEFAULT 0, -- the least disk that it fits on
    verify_server_id  text, -- the server that was booted from it
    created_by        text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    verified_at       timestamptz,
    deleted_at        timestamptz,
    CHECK (NOT current OR status = 'ready' AND provider_image_id IS NOT NULL)
);
CREATE UNIQUE INDEX golden_images_current ON golden_images (provider, base_image, architecture) WHERE current;
CREATE UNIQUE INDEX golden_images_building ON golden_images (provider, base_image, architecture) WHERE status IN
    ('building', 'verifying');
CREATE UNIQUE INDEX golden_images_provider_id ON golden_images (provider, provider_image_id) WHERE status <>
    'deleted';
CREATE INDEX golden_images_listing ON golden_images (created_at DESC, image_id DESC);

-- Credentials of container registries, sealed under the master key: an org's, for what it runs, and the installation's,
-- for the stacks of its servers.
CREATE TABLE registries (
    org_id     text NOT NULL DEFAULT '', -- '' is the installation
    host       text NOT NULL,
    username   text NOT NULL,
    sealed     bytea NOT NULL, -- the password: nonce and AES-256-GCM, bound to org, host and username
    key_id     text NOT NULL, -- which master key
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, host)
);

-- The digest of an image's tag at its first pull. Later hosts get the same, even if the tag has changed.
CREATE TABLE image_digests (
    image       text PRIMARY KEY, -- as the stack names it
    digest      text NOT NULL CHECK (digest ~ '^sha256:[0-9a-f]{64}$'),
    resolved_at timestamptz NOT NULL DEFAULT now()
);

-- Private networks at the provider. Servers in one reach each other by their private addresses; there is no way
-- from one to another. A provider's network lies in one network zone and has room for so many servers, so a zone
-- has as many as it takes, by ordinal.
CREATE TABLE networks (
    network_id          text PRIMARY KEY, -- <provider>-<zone>-<ordinal>
    infra_provider      text NOT NULL REFERENCES infra_providers(id),
    zone                text NOT NULL,
    ordinal             integer NOT NULL CHECK (ordinal >= 1),
    ip_range            cidr NOT NULL,
    provider_network_id text, -- NULL until it is made, and again when it is found to be gone
    -- present and coming servers that are not terminated
    members             integer NOT NULL DEFAULT 0 CHECK (members >= 0),
    full_at             timestamptz, -- when the provider refused one more server
    created_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (infra_provider, zone, ordinal)
);

-- ------------------------------------------------------------------------------
-- Fleets (region-placement)
-- ------------------------------------------------------------------------------

-- A fleet is a named set of servers of one role (region-placement).
CREATE TABLE fleets (
    fleet_id              text PRIMARY KEY,
    request_hash          bytea NOT NULL,
    role                  text NOT NULL CHECK (role IN ('app', 'db-shard', 'redis-pool', 'node', 'edge')),
    region                text CHECK (region IN ('sg', 'eu', 'us')), -- the default region of its servers, without a policy
    infra_provider        text NOT NULL REFERENCES infra_providers(id),
    min_size              integer NOT NULL CHECK (min_size >= 0),
    max_size              integer NOT NULL,
    desired_capacity      integer NOT NULL DEFAULT 0 CHECK (desired_capacity >= 0),
    spec                  jsonb NOT NULL,
    require_tags          text[] NOT NULL DEFAULT '{}',
    disallow_tags         text[] NOT NULL DEFAULT '{}',
    serves_tenants        boolean NOT NULL DEFAULT false,
    profile               integer NOT NULL DEFAULT 1, -- changes of spec
    last_seq              integer NOT NULL DEFAULT 0, -- of its actions
    created_by            text NOT NULL,
    created_at            timestamptz NOT NULL DEFAULT now(),
    updated_at            timestamptz NOT NULL DEFAULT now(),
    -- What a server of a fleet offers to instances; 0 is nothing.
    workload_memory_bytes bigint NOT NULL DEFAULT 0 CHECK (workload_memory_bytes >= 0),
    workload_cpus         double precision NOT NULL DEFAULT 0 CHECK (workload_cpus >= 0),
    -- Whether servers for waiting instances are created in a fleet.
    serves_workloads      boolean NOT NULL DEFAULT false,
    -- Disk is a dimension of instances and of what servers offer to them, beside memory.
    workload_disk_bytes   bigint NOT NULL DEFAULT 0 CHECK (workload_disk_bytes >= 0),
    -- When the servers of a fleet are patched by themselves: a cron expression of five fields, 'never', or '' for
    -- the environment's window. Defaults that are constants: no table is rewritten.
    patch_schedule        text NOT NULL DEFAULT '',
    -- how long that window is open
    patch_seconds         integer NOT NULL DEFAULT 0 CHECK (patch_seconds >= 0 AND patch_seconds <= 86400),
    CHECK (max_size = -1 OR max_size >= min_size)
);
-- Servers that tenants need join these fleets unless operators create others: the newest fleet that serves tenants and
-- has room comes first.
INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, serves_tenants, created_by, created_at)
SELECT 'tenants-' || name, '', role, 'hetzner', 0, -1, '{}', true, 'prego', '2000-01-01'
FROM (VALUES ('app', 'app'), ('db', 'db-shard'), ('redis', 'redis-pool'), ('node', 'node')) f (name, role);

CREATE TABLE policies (
    policy_id  text PRIMARY KEY,
    type       text NOT NULL CHECK (type IN ('scaling', 'region_placement', 'deletion')),
    spec       jsonb NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE fleet_policies (
    fleet_id     text NOT NULL REFERENCES fleets(fleet_id) ON DELETE CASCADE,
    policy_id    text NOT NULL REFERENCES policies(policy_id),
    type         text NOT NULL,
    position     integer NOT NULL,
    enabled      boolean NOT NULL DEFAULT true,
    last_used_at timestamptz,
    PRIMARY KEY (fleet_id, policy_id)
);
-- Two policies that decide the same thing would contradict each other; two scaling policies are for the two
-- directions.
CREATE UNIQUE INDEX fleet_policies_one ON fleet_policies (fleet_id, type) WHERE type <> 'scaling';
CREATE INDEX fleet_policies_by_policy ON fleet_policies (policy_id);

CREATE TABLE fleet_actions (
    fleet_id         text NOT NULL REFERENCES fleets(fleet_id) ON DELETE CASCADE,
    seq              integer NOT NULL,
    action           text NOT NULL CHECK (action IN ('CLUSTER_SCALE_OUT', 'CLUSTER_SCALE_IN', 'CLUSTER_RESIZE',
        'CLUSTER_REPLACE', 'NODE_CREATE')),
    inputs           jsonb NOT NULL,
    data             jsonb NOT NULL DEFAULT '{}',
    status           text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    reason           text NOT NULL DEFAULT '',
    message          text NOT NULL DEFAULT '',
    cause            text NOT NULL, -- 'operator', or what the servers are for
    -- 'fleet', whose runs take one after the other, or the id of the run that waits for it
    driven_by        text NOT NULL,
    -- in its servers' names: no name is used twice
    key              text NOT NULL DEFAULT substr(md5((gen_random_uuid())::text), 1, 8),
    requested_by     text NOT NULL,
    idempotency_key  text,
    cancel_requested boolean NOT NULL DEFAULT false,
    accepted         jsonb, -- the interruptions that its caller accepted; NULL without a caller
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
    FOREIGN KEY (fleet_id, seq) REFERENCES fleet_actions(fleet_id, seq) ON DELETE CASCADE
);
CREATE INDEX fleet_action_steps_by_server ON fleet_action_steps (server_id);

-- placement-policy §3
CREATE TABLE scaling_events (
    event_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    region      text NOT NULL,
    role        text NOT NULL,
    trigger     text NOT NULL CHECK (trigger IN ('scale_out_required', 'threshold', 'warm_pool')),
    waiting     integer NOT NULL DEFAULT 0, -- tenants that were short of this role
    requested   integer NOT NULL, -- servers
    made        integer NOT NULL DEFAULT 0, -- that became active
    server_ids  text[] NOT NULL DEFAULT '{}',
    tier_locks  text[] NOT NULL DEFAULT '{}', -- of the shards that they become, '' for none
    workflow_id text NOT NULL,
    round       text NOT NULL, -- of the run: a repeated step meets its event
    message     text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    server_tags jsonb NOT NULL DEFAULT '[]', -- The tags of the servers that a round asks for, beside server_ids.
    UNIQUE (workflow_id, round)
);
CREATE INDEX scaling_events_by_region ON scaling_events (region, role, trigger, event_id DESC);

CREATE TABLE region_room (
    region   text PRIMARY KEY,
    freed_at timestamptz NOT NULL -- when room for instances last became free
);

-- Warm servers per region and plan tier: booted, enrolled, with a site.
CREATE TABLE warm_pools (
    region     text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    plan       text NOT NULL CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    target     integer NOT NULL CHECK (target >= 0 AND target <= 100),
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (region, plan)
);

-- ------------------------------------------------------------------------------
-- Servers (direct-provisioning)
-- ------------------------------------------------------------------------------

CREATE TABLE servers (
    server_id                 text PRIMARY KEY,
    request_hash              bytea NOT NULL,
    role                      text NOT NULL CHECK (role IN ('app', 'db-shard', 'redis-pool', 'node', 'edge')),
    region                    text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    infra_provider            text NOT NULL REFERENCES infra_providers(id),
    spec                      jsonb NOT NULL,
    tags                      text[] NOT NULL DEFAULT '{}',
    status                    text NOT NULL CHECK (status IN ('provisioning', 'active', 'draining', 'terminated',
        'failed')),
    status_reason             text NOT NULL DEFAULT '',
    status_message            text NOT NULL DEFAULT '',
    managed_by                text NOT NULL DEFAULT 'worker_direct' CHECK (managed_by IN ('worker_direct', 'pulumi')),
    provider_server_id        text,
    server_type               text NOT NULL DEFAULT '',
    location                  text NOT NULL DEFAULT '',
    image                     text NOT NULL DEFAULT '',
    host                      text NOT NULL DEFAULT '',
    ipv6                      text NOT NULL DEFAULT '',
    workflow_id               text NOT NULL,
    -- purpose of the tokens that this server gets
    purpose                   text NOT NULL DEFAULT 'agent_bootstrap' CHECK (purpose IN ('agent_bootstrap',
        'import_existing_server')),
    generation                integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    attempt                   integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    running_at                timestamptz, -- when the provider confirmed that the current attempt's server is running
    agent_status              text NOT NULL DEFAULT 'unknown' CHECK (agent_status IN ('unknown', 'connected',
        'degraded', 'disconnected')),
    agent_key_sha256          bytea, -- SHA-256 of the SubjectPublicKeyInfo bound at the handshake
    agent_version             text NOT NULL DEFAULT '',
    agent_boot_id             text NOT NULL DEFAULT '',
    agent_first_seen_at       timestamptz, -- the handshake of the current attempt
    agent_first_heartbeat_at  timestamptz,
    agent_last_heartbeat_at   timestamptz,
    load1                     double precision,
    memory_pct                double precision,
    disk_pct                  double precision,
    docker_state              text NOT NULL DEFAULT '',
    imported_from_pulumi_at   timestamptz,
    identity_revoked_at       timestamptz,
    decommission_requested_at timestamptz,
    created_by                text NOT NULL,
    created_at                timestamptz NOT NULL DEFAULT now(),
    updated_at                timestamptz NOT NULL DEFAULT now(),
    active_at                 timestamptz,
    terminated_at             timestamptz,
    -- Placement's view of servers. changed_xid lets a snapshot follow changes: it is the transaction of the last
    -- change that matters to placement, so reading every row from the oldest running transaction on misses none.
    tenant_count              integer NOT NULL DEFAULT 0 CHECK (tenant_count >= 0),
    accepts_trial             boolean NOT NULL DEFAULT true,
    dedicated_for_tenant_id   text,
    -- the plan of the warm pool that a server was made for
    warm_plan                 text CHECK (warm_plan IN ('trial', 'starter', 'business', 'enterprise')),
    -- the lock of the shard that a db-shard or node becomes
    plan_tier_lock            text CHECK (plan_tier_lock IN ('trial', 'starter', 'business', 'enterprise')),
    -- the capacity of its shard and pool, in tenants; NULL for the role's default
    tenant_capacity           integer CHECK (tenant_capacity > 0),
    changed_xid               xid8 NOT NULL DEFAULT pg_current_xact_id(),
    agent_tags                text[], -- the host's tags as reported by the agent; NULL until then
    fleet_id                  text REFERENCES fleets(fleet_id),
    fleet_profile             integer NOT NULL DEFAULT 0,
    cordoned_at               timestamptz, -- set: closed to newcomers
    -- Agents' measures beside memory, in percent, each averaged over some minutes by the agent except for the disk;
    -- NULL if unknown. The disk is the disk of MariaDB's data, the memory what Redis may use.
    cpu_pct                   double precision,
    worker_slots_pct          double precision,
    db_disk_pct               double precision,
    redis_memory_pct          double precision,
    -- By how many seconds a host's clock was ahead of the gateway's at the last heartbeat; negative is behind, NULL
    -- is not known. Beyond the gateway's tolerance it is skewed: tokens and certificates made here are refused
    -- there, or will be.
    clock_ahead_seconds       double precision,
    clock_skewed              boolean NOT NULL DEFAULT false,
    network_id                text REFERENCES networks(network_id),
    private_address           inet, -- as reported by the provider; NULL until then
    agent_private_address     inet, -- as reported by the agent
    -- The actor that closed a server to newcomers, and why. cordoned_at is set while any actor keeps it closed: an
    -- operator (cordoned_by), or the control plane itself (closing): a fleet that is about to remove the server, or
    -- an image that is verified there. Opening it for the one leaves it closed for the other.
    cordoned_by               text,
    cordon_reason             text,
    closing                   boolean NOT NULL DEFAULT false,
    -- The image of a server's bench; '' for the configured one. No table is rewritten.
    bench_image               text NOT NULL DEFAULT '',
    -- The missing Debian security updates of a host, as its agent reports after changes, and once a day. pending:
    -- updates are missing; reboot: it runs code that was replaced
    patch_state               text NOT NULL DEFAULT 'unknown' CHECK (patch_state IN ('unknown', 'current', 'pending',
        'reboot')),
    patches                   jsonb,
    patches_at                timestamptz, -- time of the report
    patches_since             timestamptz -- since when it is pending or reboot
) WITH (fillfactor=70);
CREATE INDEX servers_by_status ON servers (status, region, role);
CREATE INDEX servers_by_tag ON servers USING gin (tags);
CREATE UNIQUE INDEX servers_provider_id ON servers (infra_provider, provider_server_id) WHERE provider_server_id IS
    NOT NULL;
CREATE INDEX servers_revoked ON servers (identity_revoked_at) WHERE identity_revoked_at IS NOT NULL;
CREATE INDEX servers_dedicated ON servers (dedicated_for_tenant_id) WHERE dedicated_for_tenant_id IS NOT NULL;
CREATE INDEX servers_by_fleet ON servers (fleet_id) WHERE fleet_id IS NOT NULL;
CREATE INDEX servers_listing_live ON servers (created_at DESC, server_id DESC) WHERE status <> 'terminated';
CREATE INDEX servers_live ON servers (server_id) WHERE status <> 'terminated';
CREATE INDEX servers_filtered ON servers (infra_provider, region, role, status, agent_status, created_at DESC,
    server_id DESC);
CREATE INDEX servers_filtered_by_id ON servers (infra_provider, region, role, status, agent_status, server_id);
CREATE INDEX servers_of_fleet ON servers (fleet_id, infra_provider, region, role, status, agent_status, created_at
    DESC, server_id DESC) WHERE fleet_id IS NOT NULL;
CREATE INDEX servers_of_fleet_by_id ON servers (fleet_id, infra_provider, region, role, status, agent_status,
    server_id) WHERE fleet_id IS NOT NULL;
CREATE INDEX servers_warm ON servers (region, warm_plan) WHERE warm_plan IS NOT NULL;
CREATE INDEX servers_by_network ON servers (network_id) WHERE network_id IS NOT NULL;
-- All edges are read with each look at the zone.
CREATE INDEX servers_edges ON servers (server_id) WHERE role = 'edge';
CREATE INDEX servers_begin ON servers (server_id text_pattern_ops);
CREATE INDEX servers_host_begins ON servers (host text_pattern_ops);
CREATE INDEX servers_ipv6_begins ON servers (ipv6 text_pattern_ops);
CREATE INDEX servers_private_begins ON servers (host(private_address) text_pattern_ops);
CREATE INDEX servers_provider_begins ON servers (provider_server_id text_pattern_ops);

-- direct-provisioning §6. The raw token is never stored: it is derived again from token_id under the master key
-- when a step repeats.
CREATE TABLE server_bootstrap_tokens (
    token_id      text PRIMARY KEY,
    server_id     text NOT NULL REFERENCES servers(server_id),
    attempt       integer NOT NULL,
    token_hash    bytea NOT NULL UNIQUE, -- sha256(token)
    purpose       text NOT NULL CHECK (purpose IN ('agent_bootstrap', 'import_existing_server')),
    issued_at     timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    consumed_at   timestamptz,
    consumed_key  bytea, -- SHA-256 of the SubjectPublicKeyInfo that consumed it
    superseded_at timestamptz, -- a later token of this server was consumed, or this attempt's server is gone
    CHECK ((consumed_at IS NULL) = (consumed_key IS NULL)),
    UNIQUE (server_id, attempt)
);
CREATE INDEX idx_bootstrap_token_server ON server_bootstrap_tokens (server_id);

-- Second boot stages, by content: hosts fetch them with their bootstrap token and check the digest that their
-- user_data pins. They hold no secret.
CREATE TABLE boot_artifacts (
    sha256     bytea PRIMARY KEY,
    content    bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- What agents reported of their hosts, once in five minutes: heartbeats themselves overwrite one another in
-- servers. At 100,000 servers these are 29 million rows a day, so rows are narrow, there is one index, and time
-- comes first in it: new rows go to its end and old ones are deleted from its beginning, and a server's day is 288
-- keys that are known. There is no reference to servers, which would lock each server's row.
CREATE TABLE server_samples (
    at               timestamptz NOT NULL, -- when the five minutes began
    server_id        text NOT NULL,
    load1            real,
    memory_pct       real,
    disk_pct         real,
    cpu_pct          real,
    worker_slots_pct real,
    db_disk_pct      real,
    redis_memory_pct real,
    PRIMARY KEY (at, server_id)
) WITH (autovacuum_vacuum_scale_factor=0.05);

-- How far a server's agent has reported its containers: the stream of reports, and its last written report. A server
-- without a row has an agent that reports nothing.
CREATE TABLE container_reports (
    server_id   text PRIMARY KEY REFERENCES servers(server_id),
    stream      text NOT NULL,
    seq         bigint NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor=70);

-- Which placement group each server was made in; a group holds at most ten.
CREATE TABLE placement_group_members (
    server_id  text PRIMARY KEY REFERENCES servers(server_id),
    group_name text NOT NULL
);
CREATE INDEX placement_group_members_by_group ON placement_group_members (group_name);

-- The rule of each server's peers document: which peers may reach it, and where. The document is made from the rule
-- whenever a host asks, with the current keys.
CREATE TABLE server_peers (
    server_id       text PRIMARY KEY REFERENCES servers(server_id) ON DELETE CASCADE,
    version         bigint NOT NULL DEFAULT 0, -- grows with each change of rule; 0 until there is one
    rule            jsonb, -- server.PeersRule
    rule_sha256     bytea,
    egress_epoch    bigint NOT NULL DEFAULT 0, -- of the control plane's addresses in rule
    changed_at      timestamptz,
    applied_version bigint NOT NULL DEFAULT 0, -- the version that the host reports as active; 0 is none
    offered         bigint NOT NULL DEFAULT 0, -- as of edges
    applied_epoch   bigint NOT NULL DEFAULT 0, -- the egress_epoch of applied_version
    applied_at      timestamptz,
    refused         text NOT NULL DEFAULT '' -- why the host does not apply its document, or parts of it
) WITH (fillfactor=70);
-- The control plane's addresses change once in a blue moon, and then on every row.
CREATE INDEX server_peers_epoch ON server_peers (applied_epoch);
CREATE INDEX server_peers_behind ON server_peers (server_id) WHERE applied_version <> version
    OR applied_version > offered OR refused <> '';

-- Servers whose rule may have changed. Making the rule takes them out; a row that a later transaction adds is handled
-- the next time.
CREATE TABLE peers_due (
    due_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server_id text NOT NULL
);

-- The addresses from which the control plane calls hosts. cidrs are the ones that hosts admit; removed ones leave
-- once every host has the others, and each change is an epoch.
CREATE TABLE egress (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch      bigint NOT NULL DEFAULT 0,
    cidrs      text[] NOT NULL DEFAULT '{}',
    leaving    text[] NOT NULL DEFAULT '{}', -- of cidrs
    changed_at timestamptz NOT NULL DEFAULT now() -- of cidrs or leaving
);
INSERT INTO egress DEFAULT VALUES;

-- Everything billed has an owner: intent is written before the call that creates it, release is confirmed after the
-- provider reports its deletion.
CREATE TABLE resources (
    resource_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider     text NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('server', 'volume', 'primary_ip', 'floating_ip', 'firewall',
        'placement_group', 'image', 'network', 'backup')),
    name         text NOT NULL,
    provider_id  text,
    server_id    text REFERENCES servers(server_id), -- NULL: owned by the environment
    attempt      integer NOT NULL DEFAULT 0,
    state        text NOT NULL CHECK (state IN ('intended', 'created', 'releasing', 'released')),
    details      jsonb NOT NULL DEFAULT '{}',
    intended_at  timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz,
    releasing_at timestamptz,
    released_at  timestamptz,
    protected    boolean NOT NULL DEFAULT false, -- the provider was asked to refuse its deletion
    CONSTRAINT resources_provider_check CHECK (
CASE kind
    WHEN 'backup' THEN provider = 's3'
    ELSE provider IN
        ('hetzner', 'aws', 'gcp')
END)
);
CREATE UNIQUE INDEX resources_live_name ON resources (provider, kind, name) WHERE state <> 'released';
CREATE UNIQUE INDEX resources_live_provider_id ON resources (provider, kind, provider_id) WHERE state <> 'released'
    AND provider_id IS NOT NULL;
CREATE INDEX resources_by_server ON resources (server_id) WHERE state <> 'released';
CREATE INDEX resources_provider_begins ON resources (provider_id text_pattern_ops);
CREATE INDEX resources_name_begins ON resources (name text_pattern_ops);

-- Things at a provider that carry our labels and have no row: two sightings are needed before one is destroyed.
CREATE TABLE orphan_sightings (
    provider      text NOT NULL,
    kind          text NOT NULL,
    provider_id   text NOT NULL,
    name          text NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz NOT NULL DEFAULT now(),
    sightings     integer NOT NULL DEFAULT 1,
    destroyed_at  timestamptz,
    type          text NOT NULL DEFAULT '', -- By what a thing that no row owns is billed, and since when.
    location      text NOT NULL DEFAULT '',
    size_gb       double precision NOT NULL DEFAULT 0,
    made_at       timestamptz,
    protected     boolean NOT NULL DEFAULT false, -- from deletion at the provider: it was in use
    PRIMARY KEY (provider, kind, provider_id)
);

CREATE TABLE reconcile_runs (
    run_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    findings    jsonb NOT NULL DEFAULT '{}'
);

-- ------------------------------------------------------------------------------
-- Maintenance and releases
-- ------------------------------------------------------------------------------

-- Servers that are patched together: the servers of one command, or of a fleet in one window. The outcome of each is
-- in its maintenance; a wave's row is what these have in common.
CREATE TABLE patch_waves (
    wave_id      text PRIMARY KEY,
    requested_by text NOT NULL,
    why          text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX patch_waves_newest ON patch_waves (created_at DESC, wave_id);

-- Maintenance of servers, which empties them first. The row is what the run
-- follows, and what it can be started again from.
CREATE TABLE server_maintenances (
    server_id           text NOT NULL REFERENCES servers(server_id),
    number              integer NOT NULL, -- of the server's, from 1
    kind                text NOT NULL CHECK (kind IN ('drain', 'reboot', 'replace', 'resize', 'patch')),
    -- making: its replacement is being made; waiting: for others of its fleet; finishing: it is empty, and is
    -- rebooted or deleted.
    status              text NOT NULL CHECK (status IN ('making', 'waiting', 'moving', 'finishing', 'done', 'failed',
        'cancelled')),
    reason              text NOT NULL DEFAULT '', -- when it waits or failed
    message             text NOT NULL DEFAULT '',
    why                 text NOT NULL DEFAULT '', -- as the caller gave it
    requested_by        text NOT NULL,
    keep_tenants        boolean NOT NULL DEFAULT false, -- tenants stay; only instances move
    was_open            boolean NOT NULL, -- it was not cordoned before
    by_fleet            boolean NOT NULL DEFAULT false, -- its fleet is about to remove it
    deadline_at         timestamptz, -- for moving; NULL: it waits for as long as it takes
    total               integer NOT NULL DEFAULT 0, -- instances to be moved, as far as they were seen
    left_now            integer NOT NULL DEFAULT 0, -- of them, remaining ones
    left_dns            boolean NOT NULL DEFAULT false, -- an edge: no resolver has its addresses any more
    replacement_id      text REFERENCES servers(server_id),
    boot_id             text, -- of the host before its reboot
    acted_at            timestamptz, -- when the provider was first asked to reboot or resize it
    reset_at            timestamptz, -- when it was last asked again, since the host did not follow
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz, -- moving began
    finished_at         timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT now(),
    -- Tenants that maintenance moves away: how many there were, as far as they were seen, and how many are still there.
    tenants_total       integer NOT NULL DEFAULT 0,
    tenants_left        integer NOT NULL DEFAULT 0,
    server_type         text NOT NULL DEFAULT '', -- of a resize: the new type
    refused             text NOT NULL DEFAULT '', -- of a resize: why the provider does not do it
    checked_at          timestamptz, -- of a patch: its host has reported the pending updates, before any move
    to_patch            text NOT NULL DEFAULT '', -- and this is it; '' for nothing
    patching_at         timestamptz, -- apt was started
    patched_at          timestamptz, -- and has done so
    patched             jsonb, -- what it installed
    wave_id             text REFERENCES patch_waves(wave_id),
    accepted            jsonb, -- the interruptions that its caller accepted; NULL without a caller
    CHECK ((finished_at IS NULL) = (status IN ('making', 'waiting', 'moving', 'finishing'))),
    PRIMARY KEY (server_id, number)
);
CREATE UNIQUE INDEX server_maintenances_open ON server_maintenances (server_id) WHERE finished_at IS NULL;
CREATE INDEX server_maintenances_wave ON server_maintenances (wave_id) WHERE wave_id IS NOT NULL;

-- Releases of the agent's program, which hosts fetch and try in rings. The document is signed by its builder, with a
-- key that the control plane does not have.
CREATE TABLE agent_releases (
    version     text PRIMARY KEY,
    serial      bigint NOT NULL UNIQUE,
    sha256      text NOT NULL,
    document    bytea NOT NULL,
    signature   bytea NOT NULL,
    rings       jsonb NOT NULL,
    status      text NOT NULL DEFAULT 'created' CHECK (status IN ('created', 'rolling', 'paused', 'stopped', 'done',
        'cancelled')),
    reason      text NOT NULL DEFAULT '',
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    started_at  timestamptz,
    finished_at timestamptz,
    updated_at  timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX agent_releases_open ON agent_releases ((true)) WHERE status IN ('rolling', 'paused', 'stopped');

CREATE TABLE agent_release_servers (
    version     text NOT NULL REFERENCES agent_releases(version),
    server_id   text NOT NULL REFERENCES servers(server_id),
    ring        integer NOT NULL CHECK (ring >= 0),
    -- offered: its agent is notified of the release; back: the host returned to the previous agent; silent: it did
    -- not report in time.
    status      text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'offered', 'done', 'back', 'refused',
        'silent', 'skipped')),
    message     text NOT NULL DEFAULT '',
    offered_at  timestamptz,
    finished_at timestamptz,
    PRIMARY KEY (version, server_id)
);
CREATE INDEX agent_release_servers_offered ON agent_release_servers (server_id) WHERE status = 'offered';

-- An image for the benches of the fleet, rolled out a server at a time (docs/releases.md). All sites of a server
-- share its bench, and so its code.
CREATE TABLE stack_releases (
    name        text PRIMARY KEY CHECK (name ~ '^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$'),
    image       text NOT NULL CHECK (image <> ''),
    apps        jsonb NOT NULL DEFAULT '{}', -- versions that sites must have of apps afterwards
    rings       jsonb NOT NULL,
    status      text NOT NULL DEFAULT 'created' CHECK (status IN ('created', 'rolling', 'paused', 'stopped', 'done',
        'cancelled')),
    reason      text NOT NULL DEFAULT '', -- of a stopped one
    message     text NOT NULL DEFAULT '',
    current     boolean NOT NULL DEFAULT false, -- What servers get that are made from now on.
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    started_at  timestamptz,
    finished_at timestamptz,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    CHECK ((finished_at IS NOT NULL) = (status IN ('done', 'cancelled')))
);
CREATE UNIQUE INDEX stack_releases_current ON stack_releases (current) WHERE current;
-- One at a time: a server has one bench.
CREATE UNIQUE INDEX stack_releases_open ON stack_releases ((true)) WHERE status IN ('rolling', 'paused', 'stopped');

CREATE TABLE stack_release_servers (
    release     text NOT NULL REFERENCES stack_releases(name),
    server_id   text NOT NULL REFERENCES servers(server_id),
    ring        integer NOT NULL CHECK (ring >= 0),
    -- rolled_back: it is as it was; broken: the way back failed, and sites may be in maintenance.
    status      text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'updating', 'done', 'rolled_back',
        'broken', 'skipped')),
    phase       text NOT NULL DEFAULT '', -- of an updating one
    undoing     boolean NOT NULL DEFAULT false, -- it is on its way back
    try         integer NOT NULL DEFAULT 0,
    from_image  text NOT NULL DEFAULT '', -- the server's own before; '' for the configured one
    reason      text NOT NULL DEFAULT '',
    message     text NOT NULL DEFAULT '',
    started_at  timestamptz,
    finished_at timestamptz,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (release, server_id)
);
CREATE UNIQUE INDEX stack_release_servers_updating ON stack_release_servers (server_id) WHERE status IN ('updating',
    'broken');

-- The sites of a server that is being updated, or was last.
CREATE TABLE stack_release_sites (
    release      text NOT NULL,
    server_id    text NOT NULL,
    site         text NOT NULL,
    tenant_id    text NOT NULL DEFAULT '', -- '': of the pool
    pool_site_id text NOT NULL DEFAULT '',
    org_id       text NOT NULL DEFAULT '',
    -- kept: offline, with a backup on the host; migrating: from here on only that backup leads back.
    status       text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'kept', 'migrating', 'migrated',
        'checked', 'restored')),
    -- From offline_at until opened_at edges show the page for maintenance, and no other process changes the site.
    offline_at   timestamptz,
    opened_at    timestamptz,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (release, server_id, site),
    FOREIGN KEY (release, server_id) REFERENCES stack_release_servers(release, server_id)
);
CREATE INDEX stack_release_sites_offline ON stack_release_sites (tenant_id) WHERE offline_at IS NOT NULL AND opened_at
    IS NULL;

-- A packing plan that is carried out, and its moves. The moves of tenants themselves are in tenant_moves.
CREATE TABLE rebalances (
    rebalance_id        text PRIMARY KEY,
    state               text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped', 'cancelled')),
    reason              text NOT NULL DEFAULT '',
    message             text NOT NULL DEFAULT '',
    why                 text NOT NULL DEFAULT '', -- as the caller gave it
    requested_by        text NOT NULL,
    at_once             integer NOT NULL CHECK (at_once > 0),
    max_failures        integer NOT NULL,
    remove_servers      boolean NOT NULL,
    monthly             double precision NOT NULL, -- price of what it frees, without tax
    currency            text NOT NULL DEFAULT '',
    frees               text[] NOT NULL,
    closed              text[] NOT NULL, -- servers that it closed to newcomers
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    finished_at         timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CHECK ((finished_at IS NULL) = (state = 'running'))
);
-- Two in parallel would fill the same servers.
CREATE UNIQUE INDEX rebalances_running ON rebalances ((true)) WHERE state = 'running';
CREATE INDEX rebalances_listing ON rebalances (created_at DESC, rebalance_id DESC);

CREATE TABLE rebalance_moves (
    rebalance_id   text NOT NULL REFERENCES rebalances(rebalance_id),
    seq            integer NOT NULL,
    tenant_id      text NOT NULL,
    from_server_id text NOT NULL REFERENCES servers(server_id),
    to_server_id   text NOT NULL REFERENCES servers(server_id),
    bytes          bigint NOT NULL,
    -- skipped: the tenant had left by itself.
    state          text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'moving', 'moved', 'failed',
        'skipped')),
    reason         text NOT NULL DEFAULT '',
    message        text NOT NULL DEFAULT '',
    PRIMARY KEY (rebalance_id, seq)
);
CREATE INDEX rebalance_moves_open ON rebalance_moves (rebalance_id, seq) WHERE state IN ('waiting', 'moving');

-- ------------------------------------------------------------------------------
-- Shards, Redis pools and pool sites (placement-policy)
-- ------------------------------------------------------------------------------

-- Tenants that a new shard, pool or node has room for.
CREATE TABLE capacity_defaults (
    role            text PRIMARY KEY CHECK (role IN ('db-shard', 'redis-pool', 'node')),
    tenant_capacity integer NOT NULL CHECK (tenant_capacity > 0)
);
INSERT INTO capacity_defaults VALUES ('db-shard', 100), ('redis-pool', 200), ('node', 20);

CREATE TABLE db_shards (
    shard_id                text PRIMARY KEY,
    server_id               text NOT NULL REFERENCES servers(server_id),
    region                  text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    on_node                 boolean NOT NULL DEFAULT false, -- part of a node, which alone may use it
    plan_tier_lock          text CHECK (plan_tier_lock IN ('trial', 'starter', 'business', 'enterprise')),
    dedicated_for_tenant_id text,
    current_tenant_count    integer NOT NULL DEFAULT 0 CHECK (current_tenant_count >= 0),
    tenant_capacity         integer NOT NULL CHECK (tenant_capacity > 0),
    status                  text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'draining', 'terminated',
        'failed')),
    created_at              timestamptz NOT NULL DEFAULT now(),
    changed_xid             xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor=70);
CREATE INDEX db_shards_by_server ON db_shards (server_id);

CREATE TABLE redis_pools (
    pool_id                 text PRIMARY KEY,
    server_id               text NOT NULL REFERENCES servers(server_id),
    region                  text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    on_node                 boolean NOT NULL DEFAULT false,
    dedicated_for_tenant_id text,
    current_tenants         integer NOT NULL DEFAULT 0 CHECK (current_tenants >= 0),
    tenant_capacity         integer NOT NULL CHECK (tenant_capacity > 0),
    status                  text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'draining', 'terminated',
        'failed')),
    created_at              timestamptz NOT NULL DEFAULT now(),
    changed_xid             xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor=70);
CREATE INDEX redis_pools_by_server ON redis_pools (server_id);

-- Low watermark, target and SLO of site pools, per plan tier (sites per app server).
CREATE TABLE site_pool_policies (
    plan          text PRIMARY KEY CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    low_watermark integer NOT NULL CHECK (low_watermark >= 0),
    target        integer NOT NULL,
    slo_seconds   integer NOT NULL CHECK (slo_seconds > 0), -- from below the watermark back to the target
    CHECK (target >= low_watermark AND target <= 100)
);
INSERT INTO site_pool_policies (plan, low_watermark, target, slo_seconds) VALUES
    ('trial', 2, 3, 600), ('starter', 2, 3, 600), ('business', 1, 2, 600), ('enterprise', 0, 0, 600);

-- Pre-made sites (placement-policy §2.6). A site that is being built is reserved without a tenant, until its
-- reservation runs out.
CREATE TABLE site_pool (
    pool_site_id   text PRIMARY KEY,
    app_server_id  text NOT NULL REFERENCES servers(server_id),
    db_shard_id    text NOT NULL REFERENCES db_shards(shard_id),
    site_name      text NOT NULL UNIQUE,
    database_name  text NOT NULL,
    state          text NOT NULL CHECK (state IN ('available', 'reserved', 'assigned', 'failed', 'draining')),
    tenant_id      text,
    reserved_until timestamptz,
    reason         text NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL DEFAULT now(),
    available_at   timestamptz,
    dropped_at     timestamptz, -- of a failed one: nothing of it is left on its host
    updated_at     timestamptz NOT NULL DEFAULT now(),
    changed_xid    xid8 NOT NULL DEFAULT pg_current_xact_id(),
    -- Where the data of a tenant is. Of sites made before this, it is on their app server; a node has everything
    -- itself. the database is on the shard's server
    on_shard       boolean NOT NULL DEFAULT false,
    CHECK ((state = 'reserved') = (reserved_until IS NOT NULL)),
    CONSTRAINT site_pool_check1 CHECK (state <> 'assigned' OR tenant_id IS NOT NULL),
    CONSTRAINT site_pool_check2 CHECK (state <> 'available' OR tenant_id IS NULL)
);
CREATE INDEX site_pool_by_server ON site_pool (app_server_id, state);
CREATE INDEX site_pool_reserved ON site_pool (reserved_until) WHERE state = 'reserved';
CREATE UNIQUE INDEX site_pool_tenant ON site_pool (tenant_id) WHERE tenant_id IS NOT NULL AND (state IN ('reserved',
    'assigned'));
-- The ready sites of each server, for the sweep of all pools.
CREATE INDEX site_pool_ready ON site_pool (app_server_id, db_shard_id) WHERE state = 'available' OR state = 'reserved'
    AND tenant_id IS NULL;
CREATE INDEX site_pool_by_shard ON site_pool (db_shard_id);
-- Databases on shards whose site's server is gone.
CREATE INDEX site_pool_left ON site_pool (app_server_id) WHERE on_shard AND dropped_at IS NULL AND (state IN
    ('draining', 'failed'));

-- ------------------------------------------------------------------------------
-- Tenants and their places (placement-policy, placement-pools)
-- ------------------------------------------------------------------------------

-- Constraints with names (placement-pools, "CC Support"). Case does not matter in a name: pool_id is the name in
-- lower case. Tags are lower-case.
CREATE TABLE placement_pools (
    pool_id       text PRIMARY KEY,
    name          text NOT NULL,
    require_tags  text[] NOT NULL DEFAULT '{}' CHECK (require_tags::text = lower(require_tags::text)),
    disallow_tags text[] NOT NULL DEFAULT '{}' CHECK (disallow_tags::text = lower(disallow_tags::text)),
    is_default    boolean NOT NULL DEFAULT false,
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_by    text NOT NULL,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    CHECK (pool_id = lower(name))
);
CREATE UNIQUE INDEX placement_pools_default ON placement_pools (is_default) WHERE is_default;

-- A pool that an org is associated with can't go.
CREATE TABLE org_placement_pools (
    org_id     text NOT NULL REFERENCES orgs(org_id),
    pool_id    text NOT NULL REFERENCES placement_pools(pool_id),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, pool_id)
);
CREATE INDEX org_placement_pools_by_pool ON org_placement_pools (pool_id, org_id);

CREATE TABLE tenants (
    tenant_id           text PRIMARY KEY,
    slug                text NOT NULL,
    org_id              text NOT NULL REFERENCES orgs(org_id),
    parent_org_id       text REFERENCES orgs(org_id),
    region              text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    plan                text NOT NULL CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    expected_users      integer NOT NULL CHECK (expected_users >= 0),
    storage_quota_gb    integer NOT NULL CHECK (storage_quota_gb >= 0),
    data_residency      text,
    require_tags        text[] NOT NULL DEFAULT '{}',
    disallow_tags       text[] NOT NULL DEFAULT '{}',
    dedicated_redis     boolean NOT NULL DEFAULT false,
    apps                text[] NOT NULL DEFAULT '{}',
    policy              text NOT NULL CHECK (policy IN ('shared', 'one_tenant_one_server')),
    request_hash        bytea NOT NULL,
    state               text NOT NULL CHECK (state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period',
        'terminated', 'data_purged', 'failed')),
    status_reason       text NOT NULL DEFAULT '',
    status_message      text NOT NULL DEFAULT '',
    generation          integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    converged_state     text NOT NULL DEFAULT '', -- the last state whose effects on the host are all in place
    site                text NOT NULL DEFAULT '',
    deadline_at         timestamptz, -- when the state's timer runs out: trial expiry, grace period, retention
    waiting_since       timestamptz, -- roles that this tenant waits for, and since when
    waiting_roles       text[] NOT NULL DEFAULT '{}',
    cancel_requested_at timestamptz,
    created_by          text NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    active_at           timestamptz,
    -- The first user of a tenant's site, made with it, and where its mail goes out. The password of the mail
    -- account is on the host alone.
    admin_email         text NOT NULL DEFAULT '',
    admin_name          text NOT NULL DEFAULT '',
    external_ref        text NOT NULL DEFAULT '', -- the caller's own reference
    mail                jsonb,
    waiting_network     text, -- the network of a waiting tenant's missing servers; NULL is any
    -- since when its site is built and waits for an edge to open it
    opening_since       timestamptz CHECK (opening_since IS NULL OR state = 'provisioning'),
    -- A tenant whose server is gone has no site until it is restored elsewhere. What its next site is made from is
    -- on its row, so that any run of any generation restores it and none makes an empty site in its place. since
    -- when its site is gone with its server
    lost_at             timestamptz,
    restore_from        text,
    muted               boolean NOT NULL DEFAULT false, -- its site sends no mail and runs no scheduled jobs
    -- of the tenant's own server a month, by the list price when it was requested; 0 if there is none, or no price
    own_server_cents    bigint NOT NULL DEFAULT 0
) WITH (fillfactor=80);
-- A slug is free again when nothing is left of the tenant.
CREATE UNIQUE INDEX tenants_slug ON tenants (slug) WHERE state <> 'data_purged';
CREATE INDEX tenants_waiting ON tenants (region, waiting_since) WHERE waiting_since IS NOT NULL;
CREATE INDEX tenants_deadline ON tenants (deadline_at) WHERE deadline_at IS NOT NULL;
-- Purged tenants stay as rows for ever; their remains are looked for only until the purge is complete.
CREATE INDEX tenants_counted ON tenants (org_id) INCLUDE (tenant_id, state, plan, storage_quota_gb) WHERE NOT (state =
    'data_purged' AND converged_state = 'data_purged');
CREATE INDEX tenants_own_servers ON tenants (org_id) WHERE policy = 'one_tenant_one_server' AND NOT (state =
    'data_purged' AND converged_state = 'data_purged');
CREATE INDEX tenants_provisioning ON tenants (tenant_id) WHERE state IN ('trial', 'provisioning');
CREATE INDEX tenants_moving ON tenants (tenant_id) WHERE (converged_state <> state) IS TRUE;
CREATE INDEX tenants_failed ON tenants (tenant_id) WHERE state = 'failed';
-- Lists are read from ranges of these: store/list.go, spread. A column that is unique in the order of the list
-- follows the columns of the filters.
CREATE INDEX tenants_listing_live ON tenants (created_at DESC, tenant_id DESC) WHERE state NOT IN ('terminated',
    'data_purged');
CREATE INDEX tenants_filtered ON tenants (region, plan, state, created_at DESC, tenant_id DESC);
CREATE INDEX tenants_filtered_by_slug ON tenants (region, plan, state, slug, tenant_id);
CREATE INDEX tenants_by_org ON tenants (org_id, region, plan, state, created_at DESC, tenant_id DESC);
CREATE INDEX tenants_by_org_and_slug ON tenants (org_id, region, plan, state, slug, tenant_id);
CREATE INDEX tenants_by_parent ON tenants (parent_org_id, region, plan, state, created_at DESC, tenant_id DESC) WHERE
    parent_org_id IS NOT NULL;
CREATE INDEX tenants_by_parent_and_slug ON tenants (parent_org_id, region, plan, state, slug, tenant_id) WHERE
    parent_org_id IS NOT NULL;
CREATE INDEX tenants_with_parent ON tenants (tenant_id) INCLUDE (parent_org_id) WHERE parent_org_id IS NOT NULL;
CREATE INDEX tenants_lost ON tenants (lost_at) WHERE lost_at IS NOT NULL;
CREATE INDEX tenants_restored ON tenants (tenant_id) WHERE restore_from IS NOT NULL;
CREATE INDEX tenants_begin ON tenants (tenant_id text_pattern_ops);
CREATE INDEX tenants_by_external_ref ON tenants (external_ref) WHERE external_ref <> '';
CREATE INDEX tenants_external_ref_begins ON tenants (lower(external_ref) text_pattern_ops);
CREATE INDEX tenants_slug_begins ON tenants (slug text_pattern_ops);
CREATE INDEX tenants_site_begins ON tenants (site text_pattern_ops);

-- A tenant is an instance of its org, of its plan's size. The storage is what the plan includes: a tenant that asks
-- for more counts with what it asks for.
CREATE TABLE tenant_sizes (
    plan          text PRIMARY KEY CHECK (plan IN ('trial', 'starter', 'business', 'enterprise')),
    memory_bytes  bigint NOT NULL CHECK (memory_bytes > 0),
    cpu_request   double precision NOT NULL CHECK (cpu_request >= 0),
    storage_bytes bigint NOT NULL CHECK (storage_bytes >= 0)
);
INSERT INTO tenant_sizes VALUES
    ('trial', 536870912, 0.25, 1000000000), ('starter', 1073741824, 0.5, 10000000000),
    ('business', 2147483648, 1, 50000000000), ('enterprise', 8589934592, 4, 250000000000);

-- placement-policy §7. The live allocation of a tenant is the one not released.
CREATE TABLE tenant_allocations (
    allocation_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id        text NOT NULL,
    app_server_id    text NOT NULL,
    db_shard_id      text NOT NULL,
    redis_pool_id    text NOT NULL,
    pool_site_id     text, -- NULL: made on demand, or dropped since
    site_name        text NOT NULL,
    database_name    text NOT NULL,
    infra_provider   text NOT NULL,
    algorithm        text NOT NULL,
    dedicated        boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT now(),
    released_at      timestamptz,
    release_reason   text NOT NULL DEFAULT '',
    on_shard         boolean NOT NULL DEFAULT false,
    on_pool          boolean NOT NULL DEFAULT false, -- the cache is in the Redis pool
    password_version integer NOT NULL DEFAULT 0 -- of its passwords, which are derived from it
);
CREATE UNIQUE INDEX tenant_allocations_live ON tenant_allocations (tenant_id) WHERE released_at IS NULL;
CREATE INDEX tenant_allocations_by_server ON tenant_allocations (app_server_id) WHERE released_at IS NULL;
-- Placement reads which parent orgs have tenants on a server or shard that changed. Both are found by what changed;
-- without these each look reads every tenant.
CREATE INDEX tenant_allocations_by_shard ON tenant_allocations (db_shard_id) WHERE released_at IS NULL;
CREATE INDEX tenant_allocations_by_pool ON tenant_allocations (redis_pool_id) WHERE released_at IS NULL;

-- What servers, shards and pools are filled up to; NULL for a measure that is not looked at (placement-policy §2.4).
CREATE TYPE placement_limits AS (
    max_tenants      integer,
    memory_pct       double precision,
    cpu_pct          double precision,
    worker_slots_pct double precision,
    db_disk_pct      double precision,
    redis_memory_pct double precision
);

-- Every decision, also without a place.
CREATE TABLE allocation_snapshots (
    snapshot_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id     text NOT NULL,
    allocation_id bigint,
    outcome       text NOT NULL,
    code          text NOT NULL DEFAULT '',
    algorithm     text NOT NULL,
    decision_log  jsonb NOT NULL,
    policy_json   jsonb NOT NULL,
    actor         text NOT NULL DEFAULT 'placement_engine',
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX allocation_snapshots_by_tenant ON allocation_snapshots (tenant_id, snapshot_id);

-- What placement decisions were made on, so that any of them can be replayed. A journal is of one process: its
-- first row (first = 0) is the state of the snapshot, the others are the changes and the decisions since, in their
-- order. A decision names its journal and event (decision_log ->> 'input').
CREATE TABLE decision_inputs (
    journal    text NOT NULL,
    first      bigint NOT NULL CHECK (first >= 0), -- number of its first event
    events     integer NOT NULL CHECK (events > 0),
    body       bytea NOT NULL, -- zstd of a JSON array
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (journal, first)
);
ALTER TABLE decision_inputs ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX decision_inputs_age ON decision_inputs (created_at);

-- An operator's override stands until the tenant is placed (placement-policy §8).
CREATE TABLE placement_overrides (
    override_id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id           text NOT NULL,
    force_app_server_id text,
    force_db_shard_id   text,
    force_redis_pool_id text,
    reason              text NOT NULL,
    actor               text NOT NULL,
    accepted            boolean NOT NULL,
    refusal_code        text NOT NULL DEFAULT '',
    refusal             text NOT NULL DEFAULT '',
    created_at          timestamptz NOT NULL DEFAULT now(),
    used_at             timestamptz,
    ignore_constraint   boolean NOT NULL DEFAULT false
);
CREATE INDEX placement_overrides_by_tenant ON placement_overrides (tenant_id, override_id);

-- What a tenant's site takes, as its host measured it last. used is database and files; backups are counted apart.
CREATE TABLE site_usage (
    tenant_id      text PRIMARY KEY REFERENCES tenants(tenant_id),
    database_bytes bigint NOT NULL DEFAULT 0 CHECK (database_bytes >= 0),
    files_bytes    bigint NOT NULL DEFAULT 0 CHECK (files_bytes >= 0),
    backups_bytes  bigint NOT NULL DEFAULT 0 CHECK (backups_bytes >= 0),
    users          integer NOT NULL DEFAULT 0 CHECK (users >= 0),
    measured_at    timestamptz, -- NULL before the first answer
    tried_at       timestamptz NOT NULL DEFAULT now(),
    level          text NOT NULL DEFAULT 'ok' CHECK (level IN ('ok', 'warned', 'over', 'read_only')),
    over_since     timestamptz, -- while above the quota
    read_only      boolean NOT NULL DEFAULT false, -- whether the host knows that the site is read-only
    quota_gb       integer NOT NULL, -- the quota that the site knows
    message        text NOT NULL DEFAULT '' -- why the last try failed
);
CREATE INDEX site_usage_above ON site_usage (level) WHERE level <> 'ok';
CREATE INDEX site_usage_turn ON site_usage (tried_at, tenant_id);
CREATE INDEX site_usage_ok ON site_usage (level) WHERE level = 'ok' AND measured_at IS NOT NULL;

-- A move of a tenant to another app server. The tenant keeps its allocation, whose server changes when it switches;
-- until it is cleared away the tenant counts on both servers.
CREATE TABLE tenant_moves (
    move_id             text PRIMARY KEY,
    org_id              text NOT NULL REFERENCES orgs(org_id),
    tenant_id           text NOT NULL REFERENCES tenants(tenant_id),
    allocation_id       bigint NOT NULL,
    state               text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'copying', 'frozen', 'switched',
        'done', 'failed', 'cancelled')),
    reason              text NOT NULL DEFAULT '',
    message             text NOT NULL DEFAULT '',
    why                 text NOT NULL DEFAULT '', -- as the caller gave it
    wanted              text NOT NULL DEFAULT '', -- the server that was asked for
    maintenance_of            text REFERENCES servers(server_id), -- which is being emptied
    requested_by        text NOT NULL,
    site                text NOT NULL,
    database_name       text NOT NULL,
    from_server_id      text NOT NULL REFERENCES servers(server_id),
    to_server_id        text REFERENCES servers(server_id),
    copied_bytes        bigint NOT NULL DEFAULT 0,
    delta_bytes         bigint NOT NULL DEFAULT 0,
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    frozen_at           timestamptz,
    switched_at         timestamptz,
    opened_at           timestamptz,
    finished_at         timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT now(),
    -- A move is from a place (app server, DB shard, Redis pool) to another; the request names the moving parts, and
    -- the others are the same on both sides.
    moves_server        boolean NOT NULL DEFAULT true,
    moves_shard         boolean NOT NULL DEFAULT false,
    moves_pool          boolean NOT NULL DEFAULT false,
    wanted_shard        text NOT NULL DEFAULT '',
    wanted_pool         text NOT NULL DEFAULT '',
    from_region         text NOT NULL DEFAULT '',
    to_region           text NOT NULL DEFAULT '',
    data_archives       integer NOT NULL DEFAULT 0, -- of the database, that have arrived while the site served
    from_shard_id       text REFERENCES db_shards(shard_id),
    from_pool_id        text REFERENCES redis_pools(pool_id),
    to_shard_id         text REFERENCES db_shards(shard_id),
    to_pool_id          text REFERENCES redis_pools(pool_id),
    -- A move whose new place is lost after the switch goes back to what the old place still has. Few rows: nothing
    -- is locked for long. from then on the old place is no place any more
    clearing_at         timestamptz,
    returned_at         timestamptz, -- the tenant was given back to the old place, and the move must be undone
    CHECK ((finished_at IS NULL) = (state IN ('queued', 'copying', 'frozen', 'switched'))),
    CONSTRAINT tenant_moves_check1 CHECK (to_server_id IS NOT NULL OR (state IN ('queued', 'failed', 'cancelled'))),
    CONSTRAINT tenant_moves_elsewhere CHECK (to_server_id <> from_server_id OR to_shard_id IS DISTINCT FROM
        from_shard_id OR to_pool_id IS DISTINCT FROM from_pool_id)
);
CREATE UNIQUE INDEX tenant_moves_open ON tenant_moves (tenant_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_from ON tenant_moves (from_server_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_to ON tenant_moves (to_server_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_by_tenant ON tenant_moves (tenant_id, created_at);
CREATE INDEX tenant_moves_shards ON tenant_moves (to_shard_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_from_shards ON tenant_moves (from_shard_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_pools ON tenant_moves (to_pool_id) WHERE finished_at IS NULL;
CREATE INDEX tenant_moves_from_pools ON tenant_moves (from_pool_id) WHERE finished_at IS NULL;

-- Which tenants are on which servers: the servers of a tenant's site, of its database and its cache, both sides of its
-- open move, and the server that is being built for it. A pair may occur several times. Read by server or by tenant,
-- each part is found by its index.
CREATE VIEW tenant_places AS
SELECT a.tenant_id, a.app_server_id AS server_id FROM tenant_allocations a WHERE a.released_at IS NULL
UNION ALL SELECT a.tenant_id, d.server_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id = a.db_shard_id
    WHERE a.released_at IS NULL
UNION ALL SELECT a.tenant_id, r.server_id FROM tenant_allocations a JOIN redis_pools r ON r.pool_id = a.redis_pool_id
    WHERE a.released_at IS NULL
UNION ALL SELECT m.tenant_id, m.from_server_id FROM tenant_moves m WHERE m.finished_at IS NULL
UNION ALL SELECT m.tenant_id, m.to_server_id FROM tenant_moves m
    WHERE m.finished_at IS NULL AND m.to_server_id IS NOT NULL
UNION ALL SELECT m.tenant_id, d.server_id FROM tenant_moves m JOIN db_shards d ON d.shard_id = m.from_shard_id
    WHERE m.finished_at IS NULL
UNION ALL SELECT m.tenant_id, d.server_id FROM tenant_moves m JOIN db_shards d ON d.shard_id = m.to_shard_id
    WHERE m.finished_at IS NULL
UNION ALL SELECT m.tenant_id, r.server_id FROM tenant_moves m JOIN redis_pools r ON r.pool_id = m.from_pool_id
    WHERE m.finished_at IS NULL
UNION ALL SELECT m.tenant_id, r.server_id FROM tenant_moves m JOIN redis_pools r ON r.pool_id = m.to_pool_id
    WHERE m.finished_at IS NULL
UNION ALL SELECT s.dedicated_for_tenant_id, s.server_id FROM servers s
    WHERE s.dedicated_for_tenant_id IS NOT NULL AND s.status = 'provisioning';

-- What was lost with a server, and what was restored.
CREATE TABLE tenant_losses (
    loss_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id     text NOT NULL REFERENCES tenants(tenant_id),
    allocation_id bigint NOT NULL REFERENCES tenant_allocations(allocation_id), -- that was lost
    server_id     text NOT NULL REFERENCES servers(server_id), -- that is gone
    -- that the tenant was in, and is in again when it is back; a terminated one never is
    state         text NOT NULL CHECK (state IN ('active', 'suspended', 'grace_period', 'terminated')),
    deadline_at   timestamptz, -- of that state
    lost_at       timestamptz NOT NULL, -- when the server was last heard of
    noted_at      timestamptz NOT NULL DEFAULT now(),
    backup_id     text, -- what it came back from
    taken_at      timestamptz, -- of that backup: later changes are lost
    restored_at   timestamptz,
    cleared_at    timestamptz -- nothing is left of it on servers that live on
);
CREATE UNIQUE INDEX tenant_losses_open ON tenant_losses (tenant_id) WHERE restored_at IS NULL;
CREATE INDEX tenant_losses_by_tenant ON tenant_losses (tenant_id, loss_id DESC);
CREATE INDEX tenant_losses_left ON tenant_losses (tenant_id) WHERE cleared_at IS NULL;

-- Where the data of lost tenants is that have no site since: the newest on the server that was lost, and what is left
-- of it on the others of its place, until it is cleared there.
CREATE VIEW lost_data AS
SELECT l.tenant_id, l.allocation_id, l.cleared_at, l.server_id AS lost_with, h.server_id
FROM tenant_losses l JOIN tenants t USING (tenant_id) JOIN tenant_allocations a USING (allocation_id)
LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id
CROSS JOIN LATERAL (SELECT l.server_id
    UNION SELECT unnest(ARRAY[a.app_server_id, d.server_id]) WHERE l.cleared_at IS NULL) h
WHERE l.restored_at IS NULL AND t.state IN ('failed', 'provisioning');

-- ------------------------------------------------------------------------------
-- Backups and restores
-- ------------------------------------------------------------------------------

-- The backup schedule and retention of a plan, or of one tenant.
CREATE TABLE backup_policies (
    policy_id      text PRIMARY KEY, -- plan/… or tenant/…
    plan           text UNIQUE,
    tenant_id      text UNIQUE REFERENCES tenants(tenant_id),
    schedule       text NOT NULL, -- cron, UTC; '' for none
    spread_seconds bigint NOT NULL CHECK (spread_seconds >= 0 AND spread_seconds <= 86400),
    keep_daily     integer NOT NULL CHECK (keep_daily >= 0),
    keep_weekly    integer NOT NULL CHECK (keep_weekly >= 0),
    keep_monthly   integer NOT NULL CHECK (keep_monthly >= 0),
    updated_by     text NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    -- When volumes are backed up: by a policy of all volumes, of an org's, or of one.
    org_id         text UNIQUE REFERENCES orgs(org_id),
    volume_id      text UNIQUE,
    CONSTRAINT backup_policies_check1 CHECK ((keep_daily + keep_weekly + keep_monthly) > 0),
    CONSTRAINT backup_policies_of_one CHECK (num_nonnulls(plan, tenant_id, org_id, volume_id) =
CASE policy_id
   
        WHEN 'volumes' THEN 0
    ELSE 1
END)
);
INSERT INTO backup_policies (policy_id, plan, schedule, spread_seconds, keep_daily, keep_weekly, keep_monthly, updated_by) VALUES
    ('plan/trial', 'trial', '0 0 * * *', 21600, 3, 0, 0, 'prego'),
    ('plan/starter', 'starter', '0 0 * * *', 21600, 7, 4, 0, 'prego'),
    ('plan/business', 'business', '0 */12 * * *', 21600, 14, 8, 6, 'prego'),
    ('plan/enterprise', 'enterprise', '0 */6 * * *', 14400, 14, 8, 12, 'prego'),
    ('volumes', NULL, '0 0 * * *', 21600, 7, 4, 0, 'prego');

-- The actors who changed backup schedules and retentions. A plan belongs to no org, so that the events of orgs have
-- no place for it.
CREATE TABLE backup_policy_changes (
    change_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    policy_id  text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL,
    policy     jsonb -- NULL: its own one was deleted
);
CREATE INDEX backup_policy_changes_of ON backup_policy_changes (policy_id, change_id DESC);

-- Backups of tenants in object storage. A row exists before any object, and until the storage has confirmed that its
-- objects are gone. A backup's identity, which opens it, is sealed: the private half of the key is with the workers
-- and with the keeper of the original keys.
CREATE TABLE backups (
    backup_id       text PRIMARY KEY, -- bak-…
    org_id          text NOT NULL REFERENCES orgs(org_id),
    tenant_id       text REFERENCES tenants(tenant_id),
    server_id       text NOT NULL REFERENCES servers(server_id), -- where it is made
    site            text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('scheduled', 'manual', 'final', 'pre_move', 'pre_update')),
    state           text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'making', 'uploading', 'stored',
        'failed', 'deleting', 'deleted')),
    reason          text NOT NULL DEFAULT '',
    message         text NOT NULL DEFAULT '',
    created_by      text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz, -- when it was its turn
    taken_at        timestamptz, -- when the dump began
    finished_at     timestamptz,
    recipient       text NOT NULL DEFAULT '', -- the public half of its identity
    sealed_identity bytea,
    key_id          text NOT NULL DEFAULT '',
    object_key      text NOT NULL DEFAULT '',
    manifest_key    text NOT NULL DEFAULT '',
    upload_id       text NOT NULL DEFAULT '', -- of the upload that is under way
    part_bytes      bigint NOT NULL DEFAULT 0,
    parts           integer NOT NULL DEFAULT 0,
    plain_bytes     bigint NOT NULL DEFAULT 0,
    plain_sha256    text NOT NULL DEFAULT '',
    bytes           bigint NOT NULL DEFAULT 0,
    sha256          text NOT NULL DEFAULT '',
    manifest_sha256 text NOT NULL DEFAULT '',
    verified_at     timestamptz, -- when it was last restored and found good
    verify_message  text NOT NULL DEFAULT '',
    expires_at      timestamptz, -- NULL: as long as retention wants
    held_at         timestamptz,
    held_by         text NOT NULL DEFAULT '',
    hold_reason     text NOT NULL DEFAULT '',
    deleted_at      timestamptz,
    volume_id       text,
    entries         bigint NOT NULL DEFAULT 0, -- files, directories and links of a volume
    frozen_ms       bigint, -- for how long writes to the volume were blocked; NULL: not frozen
    -- Since when the storage lacks a backup's objects although its row has it as stored.
    missing_at      timestamptz,
    kept_until      timestamptz, -- in a deletion that a caller requested: until then it can be undone
    CHECK (state <> 'stored' OR taken_at IS NOT NULL AND sealed_identity IS NOT NULL AND bytes > 0 AND sha256 <> ''
        AND plain_sha256 <> '' AND manifest_sha256 <> ''),
    CONSTRAINT backups_check1 CHECK ((state = 'deleted') = (deleted_at IS NOT NULL)),
    CONSTRAINT backups_check2 CHECK (held_at IS NULL OR (state NOT IN ('deleting', 'deleted'))),
    CONSTRAINT backups_of_one CHECK (num_nonnulls(tenant_id, volume_id) = 1)
);
-- A tenant has one backup under way at a time.
CREATE UNIQUE INDEX backups_under_way ON backups (tenant_id) WHERE state IN ('queued', 'making', 'uploading');
CREATE INDEX backups_by_tenant ON backups (tenant_id, created_at DESC);
CREATE INDEX backups_newest ON backups (created_at DESC, backup_id DESC) WHERE tenant_id IS NOT NULL;
CREATE INDEX backups_by_org ON backups (org_id, created_at DESC);
CREATE INDEX backups_stored ON backups (tenant_id, taken_at DESC) WHERE state = 'stored';
CREATE INDEX backups_queued ON backups (created_at) WHERE state = 'queued';
CREATE INDEX backups_served ON backups (org_id, started_at DESC) WHERE started_at IS NOT NULL;
CREATE INDEX backups_served_on_host ON backups (server_id, org_id, started_at DESC) WHERE started_at IS NOT NULL;
CREATE INDEX backups_running ON backups (server_id) WHERE state IN ('making', 'uploading');
CREATE INDEX backups_deleting ON backups (backup_id) WHERE state = 'deleting';
CREATE INDEX backups_expiring ON backups (expires_at) WHERE (state IN ('stored', 'failed')) AND expires_at IS NOT NULL
    AND held_at IS NULL;
CREATE INDEX backups_bytes ON backups (org_id) INCLUDE (tenant_id, bytes) WHERE state IN ('uploading', 'stored',
    'deleting');
CREATE UNIQUE INDEX backups_of_volume_under_way ON backups (volume_id) WHERE volume_id IS NOT NULL AND (state IN
    ('queued', 'making', 'uploading'));
CREATE INDEX backups_by_volume ON backups (volume_id, created_at DESC) WHERE volume_id IS NOT NULL;
CREATE INDEX backups_stored_of_volume ON backups (volume_id, taken_at DESC) WHERE volume_id IS NOT NULL AND state =
    'stored';
-- Failed backups are read each time the attention list is shown; they are few rows.
CREATE INDEX backups_failed ON backups (finished_at) WHERE state = 'failed';
CREATE INDEX backups_missing ON backups (missing_at) WHERE missing_at IS NOT NULL;

-- While a tenant is held, none of its backups is deleted, even after its end.
CREATE TABLE backup_holds (
    tenant_id text REFERENCES tenants(tenant_id),
    reason    text NOT NULL CHECK (reason <> ''),
    held_by   text NOT NULL,
    held_at   timestamptz NOT NULL DEFAULT now(),
    volume_id text UNIQUE,
    of        text GENERATED ALWAYS AS (COALESCE(tenant_id, volume_id)) STORED PRIMARY KEY,
    CONSTRAINT backup_holds_of_tenant UNIQUE (tenant_id),
    CONSTRAINT backup_holds_of_one CHECK (num_nonnulls(tenant_id, volume_id) = 1)
);

-- When each tenant is backed up next. A tenant without a row gets one from the next look.
CREATE TABLE backup_schedules (
    tenant_id    text PRIMARY KEY REFERENCES tenants(tenant_id),
    policy_at    timestamptz NOT NULL, -- updated_at of the policy that next_at was made from
    next_at      timestamptz, -- NULL: not by schedule
    due_at       timestamptz, -- when the last one became due; it is late until there is a backup taken since
    drilled_at   timestamptz, -- when the tenant was last chosen for a drill
    -- How its last drill ended, for the metric: of a tenant whose backups can't be restored.
    drill_failed boolean NOT NULL DEFAULT false
);
CREATE INDEX backup_schedules_next ON backup_schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX backup_schedules_due ON backup_schedules (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX backup_schedules_drilled ON backup_schedules (drilled_at NULLS FIRST);
CREATE INDEX backup_schedules_drill_failed ON backup_schedules (tenant_id) WHERE drill_failed;

-- Backups of tenants' sites. A tenant's site is what quotas-and-fairness calls its volume.
CREATE TABLE snapshots (
    snapshot_id text PRIMARY KEY, -- snp-…
    org_id      text NOT NULL REFERENCES orgs(org_id),
    tenant_id   text NOT NULL REFERENCES tenants(tenant_id),
    status      text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'deleted')),
    server_id   text NOT NULL REFERENCES servers(server_id), -- whose disk it is on
    site        text NOT NULL,
    files       jsonb NOT NULL DEFAULT '[]', -- on the host, as bench named them
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    bytes       bigint,
    kept_until  timestamptz, -- of a deleted one that can be restored: until then the deletion can be undone
    erased_at   timestamptz -- when the files of a deleted one were gone
);
CREATE INDEX snapshots_by_org ON snapshots (org_id, tenant_id) WHERE status IN ('queued', 'running');
CREATE INDEX snapshots_by_tenant ON snapshots (tenant_id, created_at DESC);
CREATE INDEX snapshots_to_erase ON snapshots (finished_at) WHERE status = 'deleted' AND erased_at IS NULL;

CREATE TABLE restore_jobs (
    job_id      text PRIMARY KEY, -- rst-…
    org_id      text NOT NULL REFERENCES orgs(org_id),
    tenant_id   text NOT NULL REFERENCES tenants(tenant_id),
    snapshot_id text REFERENCES snapshots(snapshot_id),
    status      text NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed')),
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    begun_at    timestamptz, -- the site has not answered since
    finished_at timestamptz,
    backup_id   text REFERENCES backups(backup_id),
    -- A restore at another place is carried out by the run that provisions the tenant.
    elsewhere   boolean NOT NULL DEFAULT false,
    -- A caller named the backup. A backup chosen otherwise gives way to the next older one if it is missing or
    -- unreadable.
    named       boolean NOT NULL DEFAULT false,
    CONSTRAINT restore_jobs_of_one CHECK ((snapshot_id IS NULL) <> (backup_id IS NULL))
);
CREATE INDEX restore_jobs_by_org ON restore_jobs (org_id) WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX restore_jobs_one ON restore_jobs (tenant_id) WHERE status IN ('queued', 'running');
CREATE INDEX restore_jobs_by_tenant ON restore_jobs (tenant_id, created_at DESC);
CREATE INDEX restore_jobs_of_backup ON restore_jobs (backup_id) WHERE backup_id IS NOT NULL AND (status IN ('queued',
    'running'));

-- A drill restores a backup on some server to see whether it can be, and throws it away. Its site is a row of
-- site_pool that no pool has: draining from its first moment.
CREATE TABLE drills (
    drill_id     text PRIMARY KEY, -- drl-…
    org_id       text NOT NULL REFERENCES orgs(org_id),
    tenant_id    text REFERENCES tenants(tenant_id),
    backup_id    text NOT NULL REFERENCES backups(backup_id),
    server_id    text NOT NULL REFERENCES servers(server_id), -- where it is restored
    pool_site_id text NOT NULL DEFAULT '',
    state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'passed', 'failed')),
    reason       text NOT NULL DEFAULT '',
    message      text NOT NULL DEFAULT '',
    tables       bigint NOT NULL DEFAULT 0,
    rows         bigint NOT NULL DEFAULT 0,
    files        bigint NOT NULL DEFAULT 0,
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz,
    cleared_at   timestamptz, -- nothing is left of it on its server
    volume_id    text,
    bytes        bigint NOT NULL DEFAULT 0, -- that were read again, of a volume's files
    CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT drills_of_one CHECK (num_nonnulls(tenant_id, volume_id) = 1)
);
CREATE UNIQUE INDEX drills_running ON drills (tenant_id) WHERE state = 'running';
CREATE INDEX drills_by_tenant ON drills (tenant_id, created_at DESC);
CREATE INDEX drills_by_backup ON drills (backup_id) WHERE state = 'running';
CREATE INDEX drills_by_org ON drills (org_id, created_at DESC);
CREATE INDEX drills_left ON drills (created_at) WHERE cleared_at IS NULL;
CREATE UNIQUE INDEX drills_of_volume_running ON drills (volume_id) WHERE volume_id IS NOT NULL AND state = 'running';
CREATE INDEX drills_by_volume ON drills (volume_id, created_at DESC) WHERE volume_id IS NOT NULL;

-- ------------------------------------------------------------------------------
-- Process groups, and what orgs own
-- ------------------------------------------------------------------------------

CREATE TABLE apps (
    app_id     text PRIMARY KEY, -- app-…
    org_id     text NOT NULL REFERENCES orgs(org_id),
    name       text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX apps_name ON apps (org_id, name) WHERE deleted_at IS NULL;
CREATE INDEX apps_begin ON apps (app_id text_pattern_ops);
CREATE INDEX apps_name_begins ON apps (name text_pattern_ops);
CREATE INDEX apps_newest ON apps (created_at DESC, app_id DESC);

CREATE TABLE envs (
    env_id     text PRIMARY KEY, -- env-…
    app_id     text NOT NULL REFERENCES apps(app_id),
    org_id     text NOT NULL REFERENCES orgs(org_id),
    name       text NOT NULL,
    region     text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX envs_name ON envs (app_id, name) WHERE deleted_at IS NULL;
CREATE INDEX envs_by_org ON envs (org_id) WHERE deleted_at IS NULL;
CREATE INDEX envs_begin ON envs (env_id text_pattern_ops);
CREATE INDEX envs_name_begins ON envs (name text_pattern_ops);
CREATE INDEX envs_newest ON envs (created_at DESC, env_id DESC);

-- A process group: what runs (the spec of a release), and how many of it.
CREATE TABLE process_groups (
    group_id           text PRIMARY KEY, -- grp-…
    env_id             text NOT NULL REFERENCES envs(env_id),
    org_id             text NOT NULL REFERENCES orgs(org_id),
    region             text NOT NULL,
    name               text NOT NULL,
    spec               jsonb NOT NULL, -- WorkloadSpec of the release that is wanted
    release            integer NOT NULL DEFAULT 1,
    stable_spec        jsonb, -- of the last release that was healthy; NULL until one was
    stable_release     integer NOT NULL DEFAULT 0,
    memory_limit_bytes bigint NOT NULL CHECK (memory_limit_bytes > 0), -- of the wanted release
    cpu_request        double precision NOT NULL CHECK (cpu_request >= 0),
    replicas           integer NOT NULL CHECK (replicas >= 0 AND replicas <= 10000),
    require_tags       text[] NOT NULL DEFAULT '{}',
    disallow_tags      text[] NOT NULL DEFAULT '{}',
    deploy_status      text NOT NULL DEFAULT 'none' CHECK (deploy_status IN ('none', 'rolling', 'draining_first',
        'stopping_first', 'succeeded', 'rolled_back', 'failed')),
    deploy_message     text NOT NULL DEFAULT '',
    status             text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'unschedulable',
        'stopped')),
    status_reason      text NOT NULL DEFAULT '', -- org_quota_exceeded:<dimension>, no_capacity_memory, …
    status_message     text NOT NULL DEFAULT '',
    decision           jsonb, -- the last placement and its explanation
    next_attempt_at    timestamptz, -- after a refusal by quota: not before this, unless usage falls
    refused_usage      double precision, -- of the dimension that refused, then
    waiting_since      timestamptz, -- set while instances must be allocated
    wanted             integer NOT NULL DEFAULT 0 CHECK (wanted >= 0), -- instances to allocate now
    -- What the replicas have taken of the quota: when the group converged last, and by instances since. Replacing it
    -- takes nothing.
    held               integer NOT NULL DEFAULT 0,
    held_memory        bigint NOT NULL DEFAULT 0, -- without the overhead of instances
    held_cpu           numeric NOT NULL DEFAULT 0,
    surge              boolean NOT NULL DEFAULT false, -- they come on top of replicas
    no_surge           boolean NOT NULL DEFAULT false, -- an instance goes before the next one comes
    failures           integer NOT NULL DEFAULT 0, -- of instances since one ran
    last_release       integer NOT NULL DEFAULT 1,
    last_instance      bigint NOT NULL DEFAULT 0, -- the number in the id of the newest
    converged          boolean NOT NULL DEFAULT false, -- nothing to do until something changes
    created_by         text NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    deleted_at         timestamptz,
    -- Groups with unplaceable instances are tried at growing intervals, until something became free in their region,
    -- or another release of theirs is wanted. Among the due groups, the one tried longest ago is first. NULL: never
    tried_at           timestamptz,
    tried_release      integer NOT NULL DEFAULT 0,
    tries              integer NOT NULL DEFAULT 0, -- failed tries since the last placement
    retry_at           timestamptz,
    -- From the spec, so that every writer of a spec sets it.
    disk_request_bytes bigint GENERATED ALWAYS AS (COALESCE(((spec ->> 'disk_request_bytes'))::bigint, (0)::bigint))
        STORED NOT NULL,
    -- How a group's instances are replaced, and how far that is.
    rollout_policy     jsonb NOT NULL DEFAULT
        '{"max_surge": 1, "max_failures": 2, "auto_rollback": true, "max_unavailable": 0, "progress_deadline_seconds": 600}',
    surge_limit        integer CHECK (surge_limit >= 0), -- what the org's quota leaves of max_surge; NULL: all
    deploy_reason      text NOT NULL DEFAULT '',
    -- when an instance of the wanted release became healthy last, or its rollout began
    progress_at        timestamptz NOT NULL DEFAULT now(),
    paused_at          timestamptz,
    last_rollout       integer NOT NULL DEFAULT 0,
    -- Since when a group has its status. Groups refused by a quota have a waiting_since in the future, so it does not
    -- show how long a group has been unschedulable. A trigger sets it.
    status_since       timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX process_groups_name ON process_groups (env_id, name) WHERE deleted_at IS NULL;
CREATE INDEX process_groups_by_org ON process_groups (org_id) WHERE deleted_at IS NULL;
CREATE INDEX process_groups_wanting ON process_groups (region, waiting_since) WHERE wanted > 0;
CREATE INDEX process_groups_open ON process_groups (updated_at) WHERE NOT converged;
CREATE INDEX process_groups_begin ON process_groups (group_id text_pattern_ops);
CREATE INDEX process_groups_name_begins ON process_groups (name text_pattern_ops);
CREATE INDEX process_groups_newest ON process_groups (created_at DESC, group_id DESC);

-- The replacements of a group's instances, when, by whom, and with what outcome. The last few are kept.
CREATE TABLE rollouts (
    group_id   text NOT NULL REFERENCES process_groups(group_id),
    number     integer NOT NULL,
    release    integer NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('create', 'deploy', 'rollback', 'restart')),
    spec       jsonb NOT NULL,
    outcome    text NOT NULL DEFAULT 'under_way' CHECK (outcome IN ('under_way', 'succeeded', 'rolled_back', 'failed',
        'superseded')),
    reason     text NOT NULL DEFAULT '' CHECK (reason IN ('', 'instance_failed', 'progress_deadline_exceeded')),
    message    text NOT NULL DEFAULT '',
    created_by text NOT NULL,
    request    text, -- the caller's Idempotency-Key: the same request again is this rollout
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    PRIMARY KEY (group_id, number)
);

-- An instance is a container on a server. It counts until it is stopped.
CREATE TABLE instances (
    instance_id        text PRIMARY KEY, -- ins-…
    group_id           text NOT NULL REFERENCES process_groups(group_id),
    org_id             text NOT NULL REFERENCES orgs(org_id),
    server_id          text NOT NULL REFERENCES servers(server_id),
    release            integer NOT NULL,
    memory_limit_bytes bigint NOT NULL CHECK (memory_limit_bytes > 0),
    cpu_request        double precision NOT NULL CHECK (cpu_request >= 0),
    number             bigint NOT NULL, -- in its group, and in its id
    spec               jsonb NOT NULL, -- WorkloadSpec of its release
    ports              jsonb NOT NULL DEFAULT '[]', -- [{container_port, host_port}]
    state              text NOT NULL CHECK (state IN ('booting', 'running', 'draining', 'failed', 'stopped')),
    healthy            boolean NOT NULL DEFAULT false,
    message            text NOT NULL DEFAULT '',
    created_at         timestamptz NOT NULL DEFAULT now(),
    running_at         timestamptz,
    stopped_at         timestamptz,
    disk_request_bytes bigint GENERATED ALWAYS AS (COALESCE(((spec ->> 'disk_request_bytes'))::bigint, (0)::bigint))
        STORED NOT NULL,
    -- restarts: crashes of the instances in its place before it, in a row. retry_at: it crashed, and its place is
    -- not filled before then; NULL once it was. when it gets SIGTERM
    drain_until        timestamptz,
    restarts           integer NOT NULL DEFAULT 0,
    retry_at           timestamptz,
    -- A booting instance is first started, then watched: started_at is when its container ran, healthy_by until
    -- when it may become healthy. Nothing waits for it meanwhile.
    started_at         timestamptz,
    healthy_by         timestamptz,
    -- An instance that its server's maintenance has given up to its group: it is replaced elsewhere, and then stops. No
    -- table is rewritten.
    leaving            boolean NOT NULL DEFAULT false
);
CREATE INDEX instances_by_group ON instances (group_id) INCLUDE (state, memory_limit_bytes, cpu_request) WHERE state
    <> 'stopped';
CREATE INDEX instances_listing ON instances (group_id, number);
CREATE INDEX instances_by_org ON instances (org_id) INCLUDE (memory_limit_bytes, cpu_request, group_id, state) WHERE
    state <> 'stopped';
CREATE INDEX instances_by_server ON instances (server_id) INCLUDE (memory_limit_bytes, cpu_request,
    disk_request_bytes, group_id) WHERE state <> 'stopped';
CREATE INDEX instances_retry ON instances (group_id, retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX instances_leaving ON instances (org_id) WHERE leaving AND state <> 'stopped';
CREATE INDEX instances_stopped ON instances (stopped_at) WHERE state = 'stopped';
CREATE INDEX instances_begin ON instances (instance_id text_pattern_ops);
CREATE INDEX instances_newest ON instances (created_at DESC, instance_id DESC);

-- The memory that an instance costs beside its own limit.
CREATE TABLE workload_settings (
    one                         boolean PRIMARY KEY DEFAULT true CHECK (one),
    overhead_bytes_per_instance bigint NOT NULL CHECK (overhead_bytes_per_instance >= 0)
);
INSERT INTO workload_settings (overhead_bytes_per_instance) VALUES (33554432);

-- The IPv4 add-on of an environment: a floating IP at the provider.
CREATE TABLE ipv4_allocations (
    allocation_id text PRIMARY KEY, -- ip4-…
    org_id        text NOT NULL REFERENCES orgs(org_id),
    env_id        text NOT NULL REFERENCES envs(env_id),
    provider      text NOT NULL REFERENCES infra_providers(id),
    name          text NOT NULL UNIQUE, -- at the provider
    location      text NOT NULL, -- of the provider
    provider_id   text,
    address       text NOT NULL DEFAULT '',
    status        text NOT NULL CHECK (status IN ('pending', 'ready', 'releasing', 'failed')),
    reason        text NOT NULL DEFAULT '', -- ipam_exhausted, …
    message       text NOT NULL DEFAULT '',
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(), -- when the wish last changed
    deleted_at    timestamptz,
    server_id     text REFERENCES servers(server_id), -- the edge that it is on, or on its way to
    served_at     timestamptz -- since when that edge has it; NULL: not yet, or not any more
);
CREATE UNIQUE INDEX ipv4_allocations_env ON ipv4_allocations (env_id) WHERE deleted_at IS NULL;
CREATE INDEX ipv4_allocations_by_org ON ipv4_allocations (org_id) WHERE deleted_at IS NULL;
CREATE INDEX ipv4_allocations_moving ON ipv4_allocations (updated_at) WHERE deleted_at IS NULL AND (status IN
    ('pending', 'releasing'));
CREATE INDEX ipv4_allocations_by_server ON ipv4_allocations (server_id) WHERE server_id IS NOT NULL AND deleted_at IS
    NULL;
CREATE INDEX ipv4_allocations_ready ON ipv4_allocations (allocation_id) WHERE status = 'ready' AND deleted_at IS NULL;
CREATE INDEX ipv4_allocations_begin ON ipv4_allocations (allocation_id text_pattern_ops);
CREATE INDEX ipv4_allocations_name_begins ON ipv4_allocations (name text_pattern_ops);
CREATE INDEX ipv4_allocations_address_begins ON ipv4_allocations (address text_pattern_ops);
CREATE INDEX ipv4_allocations_provider_begins ON ipv4_allocations (provider_id text_pattern_ops);

CREATE TABLE volumes (
    volume_id         text PRIMARY KEY, -- vol-…
    org_id            text NOT NULL REFERENCES orgs(org_id),
    region            text NOT NULL CHECK (region IN ('sg', 'eu', 'us')),
    location          text NOT NULL, -- of the provider: who attaches it stands there
    name              text NOT NULL,
    size_bytes        bigint NOT NULL CHECK (size_bytes >= 10000000000),
    provider          text NOT NULL REFERENCES infra_providers(id),
    provider_name     text NOT NULL UNIQUE, -- its name at the provider
    provider_id       text,
    status            text NOT NULL CHECK (status IN ('pending', 'ready', 'releasing', 'failed')),
    reason            text NOT NULL DEFAULT '', -- no_capacity_volume, …
    message           text NOT NULL DEFAULT '',
    created_by        text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(), -- when the wish last changed
    deleted_at        timestamptz,
    -- A volume grows: what it is at the provider, and what its file system was last grown to, follow its size.
    made_bytes        bigint NOT NULL DEFAULT 0,
    grown_bytes       bigint NOT NULL DEFAULT 0,
    -- A volume that no group has on a server is on one for a while, to be backed up or restored.
    lent_to           text REFERENCES servers(server_id),
    lent_for          text NOT NULL DEFAULT '', -- the id of the backup or restore
    last_backup       boolean NOT NULL DEFAULT true, -- before it is deleted
    -- How often a volume's last backup failed since the request to delete the volume, and when it is tried again.
    last_backup_tries integer NOT NULL DEFAULT 0,
    last_backup_at    timestamptz,
    kept_until        timestamptz, -- in its deletion, if it holds data: until then the deletion can be undone
    CONSTRAINT volumes_lent CHECK ((lent_to IS NULL) = (lent_for = ''))
);
CREATE UNIQUE INDEX volumes_name ON volumes (org_id, name) WHERE deleted_at IS NULL;
CREATE INDEX volumes_by_org ON volumes (org_id) INCLUDE (size_bytes) WHERE deleted_at IS NULL;
CREATE INDEX volumes_moving ON volumes (updated_at) WHERE deleted_at IS NULL AND (status IN ('pending', 'releasing'));
CREATE INDEX volumes_growing ON volumes (updated_at) WHERE deleted_at IS NULL AND status = 'ready' AND grown_bytes <
    size_bytes;
CREATE INDEX volumes_lent_to ON volumes (lent_to) WHERE lent_to IS NOT NULL;
CREATE INDEX volumes_begin ON volumes (volume_id text_pattern_ops);
CREATE INDEX volumes_name_begins ON volumes (name text_pattern_ops);
CREATE INDEX volumes_provider_begins ON volumes (provider_id text_pattern_ops);
CREATE INDEX volumes_newest ON volumes (created_at DESC, volume_id DESC);

-- One writer: a volume is attached to one process group at a time, and its instance is on the server that has the
-- volume.
CREATE TABLE volume_attachments (
    attachment_id text PRIMARY KEY, -- vat-…
    org_id        text NOT NULL REFERENCES orgs(org_id),
    volume_id     text NOT NULL REFERENCES volumes(volume_id),
    group_id      text NOT NULL REFERENCES process_groups(group_id),
    mount_path    text NOT NULL,
    server_id     text REFERENCES servers(server_id), -- where it is attached at the provider now
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    deleted_at    timestamptz
);
CREATE UNIQUE INDEX volume_attachments_one ON volume_attachments (volume_id) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX volume_attachments_path ON volume_attachments (group_id, mount_path) WHERE deleted_at IS NULL;
CREATE INDEX volume_attachments_by_org ON volume_attachments (org_id) WHERE deleted_at IS NULL;
CREATE INDEX volume_attachments_by_group ON volume_attachments (group_id) WHERE deleted_at IS NULL;
-- Volumes of a server are counted for every placement.
CREATE INDEX volume_attachments_by_server ON volume_attachments (server_id) WHERE server_id IS NOT NULL;

-- When each volume is backed up next, as backup_schedules for tenants.
CREATE TABLE volume_backup_schedules (
    volume_id    text PRIMARY KEY REFERENCES volumes(volume_id),
    policy_at    timestamptz NOT NULL,
    next_at      timestamptz,
    due_at       timestamptz,
    -- When a volume was last chosen for a drill, and whether that failed, as in backup_schedules.
    drilled_at   timestamptz,
    drill_failed boolean NOT NULL DEFAULT false
);
CREATE INDEX volume_backup_schedules_next ON volume_backup_schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX volume_backup_schedules_due ON volume_backup_schedules (due_at) WHERE due_at IS NOT NULL;

-- A restore of a volume, or of a copy of it.
CREATE TABLE volume_restores (
    restore_id  text PRIMARY KEY, -- vrs-…
    org_id      text NOT NULL REFERENCES orgs(org_id),
    volume_id   text NOT NULL REFERENCES volumes(volume_id), -- that is restored
    backup_id   text NOT NULL REFERENCES backups(backup_id), -- of it or of another volume
    status      text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'running', 'succeeded', 'failed')),
    reason      text NOT NULL DEFAULT '',
    message     text NOT NULL DEFAULT '',
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    named       boolean NOT NULL DEFAULT false, -- as of restore_jobs
    CHECK ((status IN ('queued', 'running')) = (finished_at IS NULL))
);
CREATE INDEX volume_restores_by_org ON volume_restores (org_id) WHERE status IN ('queued', 'running');
CREATE UNIQUE INDEX volume_restores_under_way ON volume_restores (volume_id) WHERE finished_at IS NULL;
CREATE INDEX volume_restores_of_backup ON volume_restores (backup_id) WHERE finished_at IS NULL;
CREATE INDEX volume_restores_by_volume ON volume_restores (volume_id, created_at DESC);

-- The long work of orgs, running and waiting. An org has at most so many running steps, so that other orgs do not
-- wait behind it.
CREATE TABLE org_work (
    work_id  text PRIMARY KEY, -- the subject of the work: an instance, a snapshot, a restore
    org_id   text NOT NULL REFERENCES orgs(org_id),
    kind     text NOT NULL CHECK (kind IN ('start', 'snapshot', 'restore')),
    run      text NOT NULL, -- the workflow that is signalled when its turn comes
    seq      bigint GENERATED ALWAYS AS IDENTITY, -- the order of turns
    begun_at timestamptz, -- NULL while it waits
    until    timestamptz NOT NULL -- work that has not ended or asked again by then is dropped
);
CREATE INDEX org_work_by_org ON org_work (org_id, seq);

-- ------------------------------------------------------------------------------
-- Names, edges and certificates
-- ------------------------------------------------------------------------------

CREATE TABLE routes (
    route_id       text PRIMARY KEY, -- rte-…
    org_id         text NOT NULL REFERENCES orgs(org_id),
    env_id         text NOT NULL REFERENCES envs(env_id),
    group_id       text NOT NULL REFERENCES process_groups(group_id),
    hostname       text NOT NULL DEFAULT '', -- lower-case; '' for raw TCP
    listener_scope text NOT NULL CHECK (listener_scope IN ('shared_v6', 'env_v4')), -- the address that it listens on
    listen_port    integer NOT NULL CHECK (listen_port >= 1 AND listen_port <= 65535),
    protocol       text NOT NULL CHECK (protocol IN ('http', 'https', 'tcp')),
    target_port    integer NOT NULL CHECK (target_port >= 1 AND target_port <= 65535),
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    deleted_at     timestamptz
);
CREATE INDEX routes_by_port ON routes (listener_scope, listen_port) WHERE deleted_at IS NULL;
CREATE INDEX routes_by_env ON routes (env_id, route_id) WHERE deleted_at IS NULL;
CREATE INDEX routes_by_org ON routes (org_id) INCLUDE (listener_scope, env_id, listen_port) WHERE deleted_at IS NULL;
-- The same name may be served on a shared address and on an address of the env.
CREATE UNIQUE INDEX routes_hostname ON routes (org_id, hostname, listener_scope, listen_port) WHERE deleted_at IS NULL
    AND hostname <> '';
CREATE INDEX routes_by_hostname ON routes (hostname) WHERE deleted_at IS NULL AND hostname <> '';
-- Which ports edges open, besides the two that all have.
CREATE INDEX routes_public_ports ON routes (listen_port) WHERE deleted_at IS NULL AND (listen_port <> ALL (ARRAY[80,
    443]));
CREATE INDEX routes_begin ON routes (route_id text_pattern_ops);
CREATE INDEX routes_hostname_begins ON routes (hostname text_pattern_ops);
CREATE INDEX routes_newest ON routes (created_at DESC, route_id DESC);

-- What each edge serves.
CREATE TABLE edges (
    server_id       text PRIMARY KEY REFERENCES servers(server_id),
    network         text NOT NULL,
    version         bigint NOT NULL DEFAULT 0, -- the version that it reports
    -- The highest version that it was given. It has a higher one if the database was restored from a backup since.
    offered         bigint NOT NULL DEFAULT 0,
    refused_version bigint NOT NULL DEFAULT 0, -- a later document that its servers refused
    refused_reason  text NOT NULL DEFAULT '',
    applied_at      timestamptz,
    asked_at        timestamptz NOT NULL DEFAULT now(), -- when it asked for a document last
    refused_since   timestamptz, -- since when it refuses whole documents, however many there have been since
    -- It has been probing its sites without interruption for as long. Another watch begins when its agent starts.
    watch           text NOT NULL DEFAULT '',
    watched_from    timestamptz,
    watched_until   timestamptz,
    watch_changes   bigint NOT NULL DEFAULT 0, -- how many changes of the watch are recorded
    seen            pg_snapshot, -- the transactions that the offered document has seen
    closed          text[] NOT NULL DEFAULT '{}' -- tenants whose sites answer, and don't by the document that it serves
);
CREATE INDEX edges_by_network ON edges (network);

-- What the edges of a network serve: the version of their document, which counts up when its digest changes, and
-- the transactions that it has seen. The document itself is made from rows and is nowhere but in memory. One edge gets
-- a new document first, the others once it is released.
CREATE TABLE edge_documents (
    network    text PRIMARY KEY, -- servers.network_id, or the region of servers without one
    version    bigint NOT NULL DEFAULT 1,
    digest     bytea NOT NULL,
    seen       pg_snapshot NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    released   bigint NOT NULL DEFAULT 0, -- the highest version that an edge has tried, without closing sites
    held_since timestamptz DEFAULT now() -- since when there is a higher one
);

-- What edges leave out of their document because their servers refuse it: a name, a certificate, a port. Everything
-- else of the document is served.
CREATE TABLE edge_left_out (
    server_id text NOT NULL REFERENCES edges (server_id) ON DELETE CASCADE,
    kind      text NOT NULL CHECK (kind IN ('host', 'challenge', 'certificate', 'tcp', 'passing')),
    name      text NOT NULL, -- of a host; the id of a certificate; an address and port
    tenant_id text NOT NULL DEFAULT '',
    route_id  text NOT NULL DEFAULT '',
    reason    text NOT NULL,
    since     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (server_id, kind, name, tenant_id, route_id)
);

-- What edges found when they requested the sites that they serve: a row for a site and edge, written when that
-- changes. It holds until the edge's watched_until, and after a restart of the edge from its next verdict on.
CREATE TABLE site_health (
    tenant_id text NOT NULL REFERENCES tenants(tenant_id),
    server_id text NOT NULL REFERENCES edges(server_id) ON DELETE CASCADE,
    up        boolean NOT NULL,
    cause     text NOT NULL DEFAULT '' CHECK (cause IN ('', 'refused', 'timeout', 'error', 'missing', 'maintenance')),
    since     timestamptz NOT NULL, -- since when it is up or down, over restarts of the edge
    seen_from timestamptz NOT NULL, -- of the edge's watch: the first verdict in it
    PRIMARY KEY (tenant_id, server_id),
    CHECK (up = (cause = ''))
);
CREATE INDEX site_health_by_edge ON site_health (server_id);
CREATE INDEX site_health_down ON site_health (tenant_id) WHERE NOT up;

-- How long a tenant's site was up and down in a month of UTC, until counted_until. The time since then follows from
-- site_health (uncounted_uptime).
CREATE TABLE site_uptime (
    tenant_id     text NOT NULL REFERENCES tenants(tenant_id),
    month         date NOT NULL, -- its first day
    up_seconds    double precision NOT NULL,
    down_seconds  double precision NOT NULL,
    counted_until timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, month)
);
CREATE INDEX site_uptime_month ON site_uptime (month);

-- The names that orgs want served. Any number of orgs may have the same one pending; the first to show its TXT
-- record has it, alone.
CREATE TABLE domains (
    domain_id     text PRIMARY KEY, -- dom-…
    org_id        text NOT NULL REFERENCES orgs(org_id),
    tenant_id     text REFERENCES tenants(tenant_id), -- NULL: for the org's routes
    name          text NOT NULL, -- lower-case, without a trailing dot
    status        text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'verified', 'lost', 'expired')),
    reason        text NOT NULL DEFAULT '',
    message       text NOT NULL DEFAULT '',
    token         text NOT NULL, -- public: it stands in the name's TXT record
    points        boolean NOT NULL DEFAULT false, -- the name led here when it was last looked up
    by_route      boolean NOT NULL DEFAULT false, -- made with a route; goes with the last route of the name
    failures      integer NOT NULL DEFAULT 0, -- looks in a row that did not find the TXT record
    checked_at    timestamptz,
    next_check    timestamptz DEFAULT now(), -- NULL: not looked for any longer
    verified_at   timestamptz,
    missing_since timestamptz, -- since when a verified name has no TXT record
    elsewhere_since timestamptz, -- since when a verified name does not lead here
    sought_until  timestamptz NOT NULL, -- until when a name that is not verified is looked for
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    deleted_at    timestamptz
);
CREATE UNIQUE INDEX domains_verified ON domains (name) WHERE deleted_at IS NULL AND status = 'verified';
CREATE UNIQUE INDEX domains_claims ON domains (org_id, name) WHERE deleted_at IS NULL;
CREATE INDEX domains_by_name ON domains (name);
CREATE INDEX domains_by_tenant ON domains (tenant_id, domain_id) WHERE deleted_at IS NULL;
CREATE INDEX domains_due ON domains (next_check) WHERE deleted_at IS NULL AND next_check IS NOT NULL;
CREATE INDEX domains_begin ON domains (domain_id text_pattern_ops);
CREATE INDEX domains_name_begins ON domains (name text_pattern_ops);
CREATE INDEX domains_newest ON domains (created_at DESC, domain_id DESC);

-- This installation's present and coming records in its DNS zone: the ledger of records. A row is written before the
-- provider is called; the wanted content may change during the call, which the version shows.
CREATE TABLE dns_records (
    zone        text NOT NULL,
    name        text NOT NULL, -- relative to the zone
    type        text NOT NULL CHECK (type IN ('A', 'AAAA', 'CNAME', 'TXT')),
    ttl         integer NOT NULL CHECK (ttl >= 60),
    content     text[] NOT NULL, -- the wanted content
    sent        text[] NOT NULL DEFAULT '{}', -- all that the provider may have of it
    owner       text NOT NULL CHECK (owner IN ('edges', 'sites', 'site', 'challenge')),
    state       text NOT NULL CHECK (state IN ('intended', 'created', 'releasing', 'released')),
    version     bigint NOT NULL DEFAULT 1,
    made        boolean NOT NULL DEFAULT false, -- the provider confirmed it once, and no deletion since
    tries       integer NOT NULL DEFAULT 0, -- since the provider last confirmed the wanted content
    error       text NOT NULL DEFAULT '',
    next_try    timestamptz NOT NULL DEFAULT now(),
    taken_until timestamptz, -- until then one process applies it exclusively
    applied_at  timestamptz,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (zone, name, type)
);
CREATE INDEX dns_records_due ON dns_records (next_try) WHERE state IN ('intended', 'releasing');
CREATE INDEX dns_records_live ON dns_records (owner, zone, name, type) WHERE state <> 'released';
CREATE INDEX dns_records_sent ON dns_records USING gin (sent) WHERE sent <> '{}'::text[];

-- Addresses that left the records, and until when resolvers may still have them: until then they are not given back
-- to the provider, whose next customer would get our callers.
CREATE TABLE dns_departures (
    address text PRIMARY KEY,
    until   timestamptz NOT NULL
);

-- The last comparison of a zone with the rows: while too many records have no row none is deleted, and an operator
-- must check.
CREATE TABLE dns_comparisons (
    zone          text PRIMARY KEY,
    compared_at   timestamptz NOT NULL,
    owned         integer NOT NULL,
    orphans       integer NOT NULL,
    shadowed      text[] NOT NULL DEFAULT '{}', -- labels of sites that others' records keep the wildcard from
    breaker_since timestamptz -- NULL: it is closed
);

-- Times in which nothing outside this database is deleted, by an operator or by the breaker.
CREATE TABLE freezes (
    freeze_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    since     timestamptz NOT NULL DEFAULT now(),
    frozen_by text NOT NULL,
    reason    text NOT NULL,
    ended_at  timestamptz,
    ended_by  text NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX freezes_open ON freezes ((true)) WHERE ended_at IS NULL;

-- What the last gate let through although it held data, and what it refused.
CREATE TABLE destructions (
    kind          text NOT NULL,
    id            text NOT NULL,
    at            timestamptz, -- when it was let through
    refused_since timestamptz,
    refused_at    timestamptz, -- the last time
    message       text NOT NULL DEFAULT '',
    PRIMARY KEY (kind, id)
);
CREATE INDEX destructions_at ON destructions (at) WHERE at IS NOT NULL;
CREATE INDEX destructions_refused ON destructions (refused_at) WHERE refused_at IS NOT NULL;

-- Accounts at certificate authorities. The key is sealed under the master key.
CREATE TABLE acme_accounts (
    account_id text PRIMARY KEY,
    directory  text NOT NULL, -- URL of the authority's directory
    name       text NOT NULL, -- which of the accounts there: PREGO_ACME_ACCOUNT
    contact    text NOT NULL DEFAULT '',
    location   text NOT NULL DEFAULT '', -- the account's URL; '' until it is registered
    orders_url text NOT NULL DEFAULT '', -- where the authority lists its orders; '' if it doesn't
    sealed_key bytea NOT NULL,
    key_id     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (directory, name)
);

-- A certificate is a set of names; the last issued chain is in its row until it is replaced. The key is sealed for
-- the processes that hand it to edges.
CREATE TABLE certificates (
    certificate_id text PRIMARY KEY, -- derived from the names
    names          text[] NOT NULL CHECK (cardinality(names) >= 1 AND cardinality(names) <= 100),
    challenge      text NOT NULL CHECK (challenge IN ('dns-01', 'http-01')),
    org_id         text REFERENCES orgs(org_id),
    tenant_id      text, -- whose domain it is; NULL for sites' own names and routes
    status         text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'active', 'failed', 'retired')),
    reason         text NOT NULL DEFAULT '', -- why the last attempt failed, also of an active one
    message        text NOT NULL DEFAULT '',
    renews         boolean NOT NULL DEFAULT true, -- false: its names were lost, it is served until its end
    failures       integer NOT NULL DEFAULT 0, -- attempts that failed since the last success
    due_at         timestamptz, -- when the next attempt begins; NULL: none does by itself
    version        bigint NOT NULL DEFAULT 0, -- counts the issued chains
    directory      text NOT NULL DEFAULT '',
    serial         text NOT NULL DEFAULT '', -- hex
    issuer         text NOT NULL DEFAULT '',
    not_before     timestamptz,
    not_after      timestamptz,
    chain_pem      text NOT NULL DEFAULT '', -- leaf first
    sealed_key     bytea,
    key_id         text NOT NULL DEFAULT '',
    digest         text NOT NULL DEFAULT '', -- hex SHA-256 of the chain's PEM, whose leaf names the key
    ari_at         timestamptz, -- when the authority is asked next when to renew
    ari_url        text NOT NULL DEFAULT '', -- its explanation of an early renewal
    issued_at      timestamptz,
    retired_at     timestamptz,
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    changed        bigint NOT NULL DEFAULT nextval('certificate_changes'::regclass),
    CHECK (status <> 'active' OR sealed_key IS NOT NULL AND chain_pem <> '' AND not_after IS NOT NULL),
    CONSTRAINT certificates_check1 CHECK ((status = 'retired') = (retired_at IS NOT NULL))
);
CREATE INDEX certificates_names ON certificates USING gin (names) WHERE status <> 'retired';
CREATE INDEX certificates_due ON certificates (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX certificates_ari ON certificates (ari_at) WHERE ari_at IS NOT NULL;
CREATE INDEX certificates_keys ON certificates (key_id) WHERE status = 'active';
CREATE INDEX certificates_changed ON certificates (changed);
CREATE INDEX certificates_end ON certificates (not_after) WHERE status = 'active';
CREATE INDEX certificates_status ON certificates (status, certificate_id);
CREATE INDEX certificates_tenant ON certificates (tenant_id) WHERE tenant_id IS NOT NULL;
CREATE INDEX certificates_retired ON certificates (retired_at) WHERE retired_at IS NOT NULL;
CREATE INDEX certificates_begin ON certificates (certificate_id text_pattern_ops);
CREATE INDEX certificates_serial_begins ON certificates (serial text_pattern_ops);
CREATE INDEX certificates_all_names ON certificates USING gin (names);
CREATE INDEX certificates_newest ON certificates (created_at DESC, certificate_id DESC);

-- Requests to an authority. A row is written, with the sealed key and the request that it signed, before the
-- authority is asked.
CREATE TABLE acme_orders (
    order_id       text PRIMARY KEY,
    certificate_id text NOT NULL REFERENCES certificates(certificate_id) ON DELETE CASCADE,
    account_id     text NOT NULL REFERENCES acme_accounts(account_id),
    state          text NOT NULL DEFAULT 'intended' CHECK (state IN ('intended', 'pending', 'ready', 'processing',
        'valid', 'failed')),
    location       text NOT NULL DEFAULT '', -- the order's URL; '' until the authority has it
    finalize_url   text NOT NULL DEFAULT '',
    replaces       text NOT NULL DEFAULT '', -- the certificate that it replaces, as RFC 9773 names it
    csr            bytea NOT NULL,
    sealed_key     bytea, -- NULL once it has ended
    key_id         text NOT NULL,
    reason         text NOT NULL DEFAULT '',
    message        text NOT NULL DEFAULT '',
    expires_at     timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,
    CHECK ((state IN ('valid', 'failed')) = (ended_at IS NOT NULL))
);
CREATE UNIQUE INDEX acme_orders_open ON acme_orders (certificate_id) WHERE ended_at IS NULL;
CREATE INDEX acme_orders_certificate ON acme_orders (certificate_id, created_at DESC);

-- How a name is shown to be ours. The row is there before the answer can be seen, and until it is known to be gone:
-- removed_at.
CREATE TABLE acme_challenges (
    order_id    text NOT NULL REFERENCES acme_orders(order_id) ON DELETE CASCADE,
    authz_url   text NOT NULL,
    url         text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('dns-01', 'http-01')),
    name        text NOT NULL, -- without the *. of a wildcard
    token       text NOT NULL,
    answer      text NOT NULL, -- the body over HTTP, or the value of the TXT record
    served_at   timestamptz, -- when it was seen by us
    accepted_at timestamptz, -- when the authority was asked to look
    removed_at  timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    changed     bigint NOT NULL DEFAULT nextval('certificate_changes'::regclass),
    PRIMARY KEY (order_id, authz_url)
);
CREATE INDEX acme_challenges_changed ON acme_challenges (changed);
CREATE INDEX acme_challenges_live ON acme_challenges (order_id) WHERE removed_at IS NULL;

-- Token buckets of what an authority limits, as provider_budgets for the provider's requests.
CREATE TABLE acme_budgets (
    bucket        text PRIMARY KEY,
    capacity      double precision NOT NULL,
    refill_per_s  double precision NOT NULL CHECK (refill_per_s > 0),
    tokens        double precision NOT NULL,
    refilled_at   timestamptz NOT NULL DEFAULT now(),
    blocked_until timestamptz
);

-- Names whose certificate may have to be made, lost or retired, since a domain or a route changed. Whoever looks
-- takes them out.
CREATE TABLE certificate_names_due (
    name text PRIMARY KEY
);

-- ------------------------------------------------------------------------------
-- What happened
-- ------------------------------------------------------------------------------

-- What happens, in one table: the timelines of servers and tenants, what callers did with the resources of orgs, and
-- each change of state that a trigger below notes. Views show the first three under their own names.
--
-- It is also the feed that callers follow (docs/adr/0069), in the order of transactions, and within one in that of its
-- rows. A reader is given what transactions wrote that are older than any that is still running, so that nothing can
-- come before what it was given already: not in whatever order they commit.
CREATE TABLE events (
    xid         xid8 DEFAULT pg_current_xact_id(), -- NULL keeps it out of the feed, which tells it with another event
    seq         bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind        text NOT NULL, -- of the object
    id          text NOT NULL,
    org_id      text, -- that owns it
    about       text[] NOT NULL DEFAULT '{}', -- ids of other objects that it concerns
    step        text NOT NULL,
    attempt     integer NOT NULL DEFAULT 0,
    from_status text NOT NULL DEFAULT '',
    status      text NOT NULL DEFAULT '',
    reason      text NOT NULL DEFAULT '',
    message     text NOT NULL DEFAULT '',
    actor       text NOT NULL DEFAULT '',
    dedup_key   text, -- makes a repeated step write its event once; NULL where each is its own
    payload     jsonb -- of an event of an org; it holds no secret
);
CREATE INDEX events_order ON events (xid, seq);
-- What only the feed has, which is pruned from the beginning.
CREATE INDEX events_of_feed ON events (xid, seq) WHERE payload IS NULL AND kind NOT IN ('server', 'tenant');
CREATE INDEX events_of_timeline ON events (kind, id, seq) WHERE payload IS NULL AND kind IN ('server', 'tenant');
CREATE UNIQUE INDEX events_once ON events (kind, id, dedup_key) WHERE dedup_key IS NOT NULL;

CREATE VIEW server_events AS
SELECT seq AS event_id, id AS server_id, at, step, attempt, status, reason, message, actor
FROM events WHERE payload IS NULL AND kind = 'server';

CREATE VIEW tenant_lifecycle_events AS
SELECT seq AS event_id, id AS tenant_id, at, from_status AS from_state, status AS to_state, step, actor, reason, message
FROM events WHERE payload IS NULL AND kind = 'tenant';

-- Who accepted beforehand what timers destroy. A trial's end is accepted with its creation, the end of another tenant
-- with its cancellation or termination, as long as nothing that a caller did since takes that back. A backup is deleted
-- by the policy that it is kept by.
CREATE VIEW standing_acceptances AS
SELECT 'lifecycle' AS policy, t.tenant_id AS id, COALESCE(e.actor, t.created_by) AS accepted_by, COALESCE(e.at, t.created_at) AS accepted_at
FROM tenants t LEFT JOIN LATERAL (
    SELECT c.actor, c.at, c.message FROM tenant_lifecycle_events c
    WHERE c.tenant_id = t.tenant_id AND c.step = 'state_changed' AND c.actor NOT IN ('system', 'workflow')
    ORDER BY c.event_id DESC LIMIT 1) e ON true
WHERE t.plan = 'trial' OR e.message IN ('cancel', 'terminate')
UNION ALL SELECT 'retention', b.backup_id, p.updated_by, p.updated_at
FROM backups b JOIN tenants t ON t.tenant_id = b.tenant_id LEFT JOIN backup_policies own ON own.tenant_id = t.tenant_id
JOIN backup_policies p ON p.policy_id = COALESCE(own.policy_id, 'plan/' || t.plan)
UNION ALL SELECT 'retention', b.backup_id, p.updated_by, p.updated_at
FROM backups b JOIN volumes v ON v.volume_id = b.volume_id
JOIN LATERAL (SELECT * FROM backup_policies c WHERE c.policy_id IN ('volume/' || v.volume_id, 'org/' || v.org_id, 'volumes')
    ORDER BY c.volume_id IS NULL, c.org_id IS NULL LIMIT 1) p ON true;

-- What happened to an org's resources: app.create, group.scale, route.delete, org.quota_set, …
CREATE VIEW org_events AS
SELECT seq AS event_id, org_id, at, kind || '.' || step AS type,
    CASE kind WHEN 'org' THEN COALESCE(about[1], id) ELSE id END AS subject, -- the id of what it happened to
    actor, reason, payload
FROM events WHERE payload IS NOT NULL;
CREATE INDEX org_events_age ON events (seq) WHERE payload IS NOT NULL;
CREATE INDEX org_events_by_org ON events (org_id, seq DESC) WHERE payload IS NOT NULL;
CREATE INDEX org_events_by_subject ON events (org_id, (CASE kind WHEN 'org' THEN COALESCE(about[1], id) ELSE id END), seq DESC)
    WHERE payload IS NOT NULL;
CREATE INDEX org_events_by_actor ON events (org_id, actor, seq DESC) WHERE payload IS NOT NULL;
CREATE INDEX org_events_by_type ON events (org_id, (kind || '.' || step) text_pattern_ops, seq DESC) WHERE payload IS NOT NULL;

-- direct-provisioning §6
CREATE TABLE agent_command_audit (
    audit_id         text PRIMARY KEY,
    server_id        text NOT NULL REFERENCES servers(server_id),
    workflow_id      text,
    command_kind     text NOT NULL CHECK (command_kind IN ('bench', 'mariadb', 'redis-cli', 'bootstrap', 'volume',
        'address', 'transfer', 'patch')),
    args_redacted    text NOT NULL,
    actor            text NOT NULL CHECK (actor IN ('workflow', 'operator', 'system')),
    requested_at     timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz,
    finished_at      timestamptz,
    exit_code        integer,
    duration_ms      bigint,
    stdout_truncated text,
    stderr_truncated text,
    requested_by     text NOT NULL DEFAULT '', -- The principal that asked, by name and id; '' for workflows.
    ends_by          timestamptz NOT NULL DEFAULT now() -- Without an end by then, the process that ran it died.
);
CREATE INDEX agent_command_audit_unfinished ON agent_command_audit (ends_by) WHERE finished_at IS NULL;
CREATE INDEX idx_audit_workflow ON agent_command_audit (workflow_id);
CREATE INDEX agent_command_audit_listing ON agent_command_audit (server_id, requested_at DESC, audit_id DESC);
CREATE INDEX agent_command_audit_age ON agent_command_audit (requested_at);

-- The audit: who changed what, from where, the value before and after (docs/audit.md). An entry is written by a
-- trigger, in the transaction that changes the row, so that no change is without one.
CREATE TABLE audit_entries (
    entry_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor      text NOT NULL, -- the id of a principal; for what no request did the database's user
    actor_name text NOT NULL DEFAULT '',
    role       text NOT NULL, -- the access roles that allowed it; host or database for what no request did
    address    text NOT NULL DEFAULT '',
    request_id text NOT NULL DEFAULT '',
    operation  text NOT NULL DEFAULT '',
    kind       text NOT NULL,
    id         text NOT NULL,
    org_id     text NOT NULL DEFAULT '',
    verb       text NOT NULL CHECK (verb IN ('create', 'update', 'delete', 'request', 'refuse')),
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

-- Entries in the order of sealing, each hashed with the previous one. Sealing comes after the commit, so that writers
-- don't wait for each other.
CREATE TABLE audit_chain (
    seq       bigint PRIMARY KEY,
    entry_id  bigint NOT NULL UNIQUE,
    prev_hash bytea NOT NULL,
    hash      bytea NOT NULL
);

CREATE TABLE audit_unsealed (
    entry_id bigint PRIMARY KEY
);

CREATE TABLE audit_checkpoints (
    seq       bigint PRIMARY KEY,
    hash      bytea NOT NULL,
    entries   bigint NOT NULL,
    pruned_at timestamptz NOT NULL DEFAULT now()
);

-- How far events are pruned: the newest that is gone of orgs' events (org_events) and of the feed (events), so that
-- who reads on from an older one can be told.
CREATE TABLE pruned (
    what        text PRIMARY KEY, -- the table
    through     bigint NOT NULL DEFAULT 0,
    rows        bigint NOT NULL DEFAULT 0, -- that were ever deleted
    at          timestamptz NOT NULL DEFAULT now(),
    -- How far the feed is pruned: the newest that is gone is (through_xid, through).
    through_xid xid8 NOT NULL DEFAULT '0'
);

-- The feed of changes: changed rows, by transaction. It is only appended to, and pruned from its beginning. A
-- follower keeps a cursor: the oldest transaction that was running at its last read. Changes of that and all later
-- transactions are read the next time, so that no commit is missed, in any order; some are read twice. It replaces an
-- index on changed_xid of each table: updating an indexed column updates all the table's indexes. The column shows
-- the triggers that a statement notes its change itself.
CREATE TABLE changes (
    xid  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind text NOT NULL, -- the table
    id   text NOT NULL
);
CREATE INDEX changes_xid ON changes (xid);

-- How far the feed is pruned: changes of transactions before pruned_xid may be missing, and a follower with an older
-- cursor reads everything again. next_xid is where to prune to the next time: the oldest transaction that was running
-- at marked_at.
CREATE TABLE changes_pruned (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    pruned_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    next_xid   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    marked_at  timestamptz NOT NULL DEFAULT now()
);
INSERT INTO changes_pruned DEFAULT VALUES;

-- Which process checks whether a sweep has work, and when it last did. A running check is leased: when its worker
-- dies, another one checks as soon as the lease ends.
CREATE TABLE looks (
    look          text PRIMARY KEY,
    holder        text NOT NULL,
    leased_until  timestamptz NOT NULL,
    began_at      timestamptz NOT NULL,
    every_seconds double precision NOT NULL,
    pause_seconds double precision NOT NULL DEFAULT 0, -- at least, until the next one
    looked_at     timestamptz, -- when one last succeeded
    found_at      timestamptz, -- when one last found something to do
    took_seconds  double precision NOT NULL DEFAULT 0,
    error         text NOT NULL DEFAULT '' -- of the last one, '' if it succeeded
);

-- What the database rejected of a batch, whose rest was written. A rejected row is tried again and again: what was not
-- seen for ten minutes is accepted now, or gone.
CREATE TABLE rejected_rows (
    batch   text NOT NULL, -- such as 'heartbeats'
    name    text NOT NULL,
    reason  text NOT NULL,
    since   timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (batch, name)
);

-- Since when each thing has needed attention without interruption. Most rows don't record since when they are wrong,
-- only when they were last changed or tried.
CREATE TABLE attention_since (
    id    text PRIMARY KEY, -- attention.Item.ID
    since timestamptz NOT NULL
);

-- What is left of the rates of callers. Processes of the API lease parts of them, so that all of them together keep to
-- a rate. A row that is missing is full: nothing is lost with the table, or with rows that were not used for an hour.
CREATE UNLOGGED TABLE rate_budgets (
    budget text PRIMARY KEY,
    rest   double precision NOT NULL, -- at that time; it fills up again
    leased double precision NOT NULL, -- by the last statement
    at     timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The redo log: each committed change of a row that matters goes to the object storage within seconds, so that a
-- database that was restored to an earlier moment can be completed (docs/adr/0073-*). number is that of the newest
-- entry; unsaved is that entry while the storage does not have it.
CREATE TABLE redo (
    one              boolean PRIMARY KEY DEFAULT true CHECK (one),
    number           bigint NOT NULL DEFAULT 0,
    -- The number when this database took the place of another one (lineage). Commands to hosts carry it, and hosts
    -- refuse lower ones: those of a control plane that still works with the former database.
    epoch            bigint NOT NULL DEFAULT 0,
    unsaved          bytea,
    saved_at         timestamptz,
    -- The database that was last compared with the storage: its system identifier and timeline. Another one may have
    -- been restored.
    lineage          text NOT NULL DEFAULT '',
    recovering_since timestamptz, -- set: the storage has entries that this database lacks
    recovering       text NOT NULL DEFAULT '' -- in words
);
INSERT INTO redo DEFAULT VALUES;

-- Rows that changed since the newest entry: the table, and the row's primary key.
CREATE TABLE redo_due (
    tbl text NOT NULL,
    key jsonb NOT NULL
);

-- ------------------------------------------------------------------------------
-- Requests, the console, and costs
-- ------------------------------------------------------------------------------

-- Requests that were sent with an Idempotency-Key, and what came of them. What created a tenant, an app or an env is
-- committed with it and leads to it. Others are under way without a status until their lease ends: then the process
-- died, and the same request may run again. One with a status and no body is never answered twice.
CREATE TABLE request_keys (
    subject      text NOT NULL, -- the id of a principal
    key          text NOT NULL,  -- a MAC of the caller's key
    request_hash bytea NOT NULL, -- a MAC of the request under that key
    created_id   text, -- of what it created
    leased_until timestamptz NOT NULL DEFAULT now(),
    status       integer,
    body         bytea, -- holds no secret
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subject, key)
);
CREATE INDEX request_keys_age ON request_keys (created_at) WHERE created_id IS NULL;
CREATE INDEX request_keys_creations_age ON request_keys (created_at) WHERE created_id IS NOT NULL;

-- Who may do what. A user is known by an issuer and a name there: sub alone is no identity. A group is an issuer's; it
-- has grants, which its members have while they are logged in. A service account is an org's or the installation's.
CREATE TABLE principals (
    principal_id text PRIMARY KEY,
    kind         text NOT NULL CHECK (kind IN ('user', 'service_account', 'group')),
    issuer       text NOT NULL DEFAULT '',
    subject      text NOT NULL DEFAULT '',
    name         text NOT NULL CHECK (name <> ''),
    org_id       text REFERENCES orgs(org_id), -- whose service account it is; NULL is the installation's
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    disabled_at  timestamptz, -- nothing of it is accepted any more
    CHECK (kind = 'service_account' OR (issuer <> '' AND subject <> '' AND org_id IS NULL))
);
CREATE UNIQUE INDEX principals_issued ON principals (kind, issuer, subject) WHERE kind <> 'service_account';
CREATE UNIQUE INDEX principals_named ON principals (COALESCE(org_id, ''), name)
    WHERE kind = 'service_account' AND disabled_at IS NULL;
CREATE INDEX principals_org ON principals (org_id);

-- Access roles that operators made. The built-in ones are part of the program.
CREATE TABLE access_roles (
    name         text PRIMARY KEY,
    description  text NOT NULL DEFAULT '',
    capabilities text[] NOT NULL CHECK (cardinality(capabilities) BETWEEN 1 AND 200), -- patterns: tenant:*, *:read
    updated_by   text NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE access_grants (
    grant_id     text PRIMARY KEY,
    principal_id text NOT NULL REFERENCES principals(principal_id),
    access_role  text NOT NULL,
    org_id       text REFERENCES orgs(org_id), -- with all orgs below it; NULL is the installation
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX access_grants_once ON access_grants (principal_id, COALESCE(org_id, ''), access_role);
CREATE INDEX access_grants_org ON access_grants (org_id);
CREATE INDEX access_grants_role ON access_grants (access_role);

-- Tokens and logins. Only hashes of secrets are here. Each request reads the row of its own.
CREATE TABLE credentials (
    credential_id text PRIMARY KEY,
    kind          text NOT NULL CHECK (kind IN ('token', 'login')),
    hash          bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    prefix        text NOT NULL, -- the beginning of the secret, by which people recognize it
    principal_id  text NOT NULL REFERENCES principals(principal_id),
    parent_id     text REFERENCES credentials(credential_id), -- it ends with its parent, and has its caveats too
    name          text NOT NULL,
    caveats       jsonb NOT NULL DEFAULT '{}',
    group_ids     text[] NOT NULL DEFAULT '{}', -- of a login: the groups that its issuer named
    address       text NOT NULL DEFAULT '',     -- of a login: where it was made
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    fresh_at      timestamptz NOT NULL DEFAULT now(), -- of a login: when its user last proved who they are
    expires_at    timestamptz NOT NULL,
    last_used_at  timestamptz, -- to the minute
    revoked_at    timestamptz,
    revoked_by    text
);
CREATE INDEX credentials_principal ON credentials (principal_id, created_at);
CREATE INDEX credentials_parent ON credentials (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX credentials_expiry ON credentials (expires_at);

-- What the changes of a credential, and of all that were narrowed from it, have spent of the budgets in its caveats. A
-- credential without a budget in its chain has no row.
CREATE TABLE credential_spending (
    credential_id text PRIMARY KEY REFERENCES credentials(credential_id) ON DELETE CASCADE,
    monthly_cents bigint NOT NULL DEFAULT 0 CHECK (monthly_cents >= 0),
    seconds_down  bigint NOT NULL DEFAULT 0 CHECK (seconds_down >= 0)
);

-- Which tokens of an external issuer are exchanged for one of a service account: those for the audience that have all
-- of the claims.
CREATE TABLE token_trusts (
    principal_id text PRIMARY KEY REFERENCES principals(principal_id),
    issuer       text NOT NULL CHECK (issuer <> ''),
    audience     text NOT NULL CHECK (audience <> ''),
    claims       jsonb NOT NULL CHECK (jsonb_typeof(claims) = 'object'), -- name: text
    updated_by   text NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now()
);

-- Links that are good once. One logs its caller in to the console; with the other who opens it registers a passkey: a
-- new user who is invited, or a known one who has lost theirs.
CREATE TABLE login_links (
    link_id      text PRIMARY KEY,
    kind         text NOT NULL DEFAULT 'login' CHECK (kind IN ('login', 'join')),
    hash         bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    principal_id text REFERENCES principals(principal_id), -- whose it is; NULL is a new user
    parent_id    text REFERENCES credentials(credential_id), -- what its login ends with
    name         text NOT NULL DEFAULT '', -- of whom it invites
    access_role  text, -- what they are granted
    org_id       text REFERENCES orgs(org_id),
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    used_at      timestamptz,
    CHECK ((principal_id IS NULL) = (access_role IS NOT NULL)),
    CHECK (kind = 'join' OR principal_id IS NOT NULL)
);
CREATE INDEX login_links_expiry ON login_links (expires_at);
CREATE INDEX login_links_org ON login_links (org_id);
CREATE INDEX login_links_principal ON login_links (principal_id);
CREATE INDEX login_links_parent ON login_links (parent_id);

-- The public keys that users of the issuer prego log in with. No secret is here.
CREATE TABLE passkeys (
    passkey_id   text PRIMARY KEY,
    principal_id text NOT NULL REFERENCES principals(principal_id),
    key_id       bytea NOT NULL UNIQUE, -- the authenticator's name for it
    record       jsonb NOT NULL, -- public key, flags and counter, as the library keeps them
    name         text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz
);
CREATE INDEX passkeys_principal ON passkeys (principal_id);

-- Challenges that browsers are asked to sign, each once and within minutes. The browser that asked for one has the
-- secret of its hash in a cookie.
CREATE TABLE passkey_ceremonies (
    hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    purpose    text NOT NULL CHECK (purpose IN ('login', 'again', 'join', 'add')),
    about      text NOT NULL DEFAULT '', -- the link or the login that it is for
    session    jsonb NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX passkey_ceremonies_expiry ON passkey_ceremonies (expires_at);

-- How far each billed thing has been counted. hours are the hours counted since started_at; the next one begins at
-- started_at + hours. A thing that comes back is counted from the start.
CREATE TABLE cost_meters (
    meter_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider    text NOT NULL,
    kind        text NOT NULL,
    provider_id text NOT NULL,
    name        text NOT NULL DEFAULT '',
    region      text NOT NULL DEFAULT '',
    server_id   text,
    fleet_id    text,
    started_at  timestamptz NOT NULL,
    hours       bigint NOT NULL DEFAULT 0,
    ended_at    timestamptz, -- NULL: it is billed
    closed      boolean NOT NULL DEFAULT false, -- ended, and counted to its end
    priced      boolean NOT NULL DEFAULT true,
    month       date, -- that billed is of
    billed      bigint NOT NULL DEFAULT 0,
    UNIQUE (provider, kind, provider_id)
);
CREATE INDEX cost_meters_open ON cost_meters (meter_id) WHERE NOT closed;
CREATE INDEX cost_meters_unpriced ON cost_meters (meter_id) WHERE NOT priced;

-- The billed things of a day (UTC), and their owners at that time. Nothing here depends on rows that may go, or on
-- prices that may change.
CREATE TABLE cost_entries (
    day        date NOT NULL,
    meter_id   bigint NOT NULL,
    part       text NOT NULL CHECK (part IN ('used', 'idle', 'shared', 'untracked')),
    owner_kind text NOT NULL CHECK (owner_kind IN ('tenant', 'org', 'none')),
    owner_id   text NOT NULL DEFAULT '',
    org_id     text NOT NULL DEFAULT '',
    pool       text NOT NULL DEFAULT '', -- a shard, a Redis pool or a warm pool that it was part of
    basis      text NOT NULL CHECK (basis IN ('own', 'weight', 'memory', 'none')),
    amount     bigint NOT NULL CHECK (amount >= 0),
    currency   text NOT NULL,
    PRIMARY KEY (day, meter_id, part, owner_kind, owner_id, org_id, pool, basis)
);

-- Until when everything has been counted; one row.
CREATE TABLE cost_progress (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    counted_to timestamptz NOT NULL,
    began_at   timestamptz NOT NULL -- nothing before its month is counted
);

CREATE STATISTICS tenants_moving ON (converged_state <> state) FROM tenants;

-- References between tables that know each other.
ALTER TABLE golden_images ADD CONSTRAINT golden_images_verify_server_id_fkey FOREIGN KEY (verify_server_id) REFERENCES servers(server_id);
ALTER TABLE rebalance_moves ADD CONSTRAINT rebalance_moves_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenants(tenant_id);
ALTER TABLE tenants ADD CONSTRAINT tenants_restore_from_fkey FOREIGN KEY (restore_from) REFERENCES backups(backup_id);
ALTER TABLE tenant_losses ADD CONSTRAINT tenant_losses_backup_id_fkey FOREIGN KEY (backup_id) REFERENCES backups(backup_id);
ALTER TABLE backup_policies ADD CONSTRAINT backup_policies_volume_id_fkey FOREIGN KEY (volume_id) REFERENCES volumes(volume_id);
ALTER TABLE backups ADD CONSTRAINT backups_volume_id_fkey FOREIGN KEY (volume_id) REFERENCES volumes(volume_id);
ALTER TABLE backup_holds ADD CONSTRAINT backup_holds_volume_id_fkey FOREIGN KEY (volume_id) REFERENCES volumes(volume_id);
ALTER TABLE drills ADD CONSTRAINT drills_volume_id_fkey FOREIGN KEY (volume_id) REFERENCES volumes(volume_id);

-- Functions that views call. Their texts are in functions/, which is applied after this file: until then each is empty.
SET LOCAL check_function_bodies = off;
CREATE FUNCTION org_usage(p_org text, p_dimensions text[]) RETURNS TABLE(dimension text, usage double precision) LANGUAGE plpgsql AS '';
CREATE FUNCTION port_binding(p_scope text, p_env text, p_port integer) RETURNS text LANGUAGE sql AS '';

-- The tenants that count: living ones, and others that still have a place or a dedicated server. A failed tenant
-- counts until its resources are deleted, otherwise limits could be passed by failing again and again.
CREATE VIEW counted_tenants AS
 SELECT t.tenant_id,
    t.org_id,
    z.memory_bytes,
    z.cpu_request,
    GREATEST(z.storage_bytes, t.storage_quota_gb::bigint * 1000000000) AS storage_bytes,
    t.policy,
    t.own_server_cents
   FROM tenants t
     JOIN tenant_sizes z ON z.plan = t.plan
  WHERE NOT (t.state = 'data_purged'::text AND t.converged_state = 'data_purged'::text) AND ((t.state = ANY (ARRAY['trial'::text, 'provisioning'::text, 'active'::text, 'suspended'::text, 'grace_period'::text])) OR (EXISTS ( SELECT
           FROM tenant_allocations a
          WHERE a.tenant_id = t.tenant_id AND a.released_at IS NULL)) OR (EXISTS ( SELECT
           FROM servers s
          WHERE s.dedicated_for_tenant_id = t.tenant_id AND s.status <> 'terminated'::text)));

-- What each org uses, by dimension.
CREATE VIEW org_usage_view AS
 SELECT o.org_id,
    u.dimension,
    u.usage
   FROM orgs o
     CROSS JOIN LATERAL org_usage(o.org_id, '{max_instances,max_total_memory_bytes,max_total_cpu_request,max_envs,max_apps,max_routes,max_public_ports,max_ipv4_allocations,max_hostnames,max_volumes,max_total_volume_bytes,max_volume_attachments,max_snapshots_per_volume,max_restore_jobs,max_log_streams,max_exec_sessions,max_exec_sessions_per_hour,max_servers,max_monthly_euros}'::text[]) u(dimension, usage);

-- The promises to an org's process groups that are not allocated yet: a draining instance fills no place. Only
-- allocations are usage.
CREATE VIEW org_reserved_view AS
 SELECT o.org_id,
    u.dimension,
    u.reserved
   FROM orgs o
     CROSS JOIN LATERAL ( SELECT COALESCE(sum(GREATEST(g_1.replicas - COALESCE(i.n, 0::bigint), 0::bigint)), 0::numeric)::double precision AS n,
            COALESCE(sum(GREATEST(g_1.replicas::double precision * (g_1.memory_limit_bytes + s.overhead_bytes_per_instance)::double precision - COALESCE(i.memory + (i.n * s.overhead_bytes_per_instance)::numeric, 0::numeric)::double precision, 0::double precision)), 0::double precision) AS memory,
            COALESCE(sum(GREATEST(g_1.replicas::double precision * g_1.cpu_request - COALESCE(i.cpu, 0::double precision), 0::double precision)), 0::double precision) AS cpu
           FROM process_groups g_1
             CROSS JOIN workload_settings s
             LEFT JOIN ( SELECT instances.group_id,
                    count(*) AS n,
                    sum(instances.memory_limit_bytes) AS memory,
                    sum(instances.cpu_request) AS cpu
                   FROM instances
                  WHERE instances.org_id = o.org_id AND instances.state <> 'stopped'::text AND instances.state <> 'draining'::text
                  GROUP BY instances.group_id) i ON i.group_id = g_1.group_id
          WHERE g_1.org_id = o.org_id AND g_1.deleted_at IS NULL) g
     CROSS JOIN LATERAL ( VALUES ('max_instances'::text,g.n), ('max_total_memory_bytes'::text,g.memory), ('max_total_cpu_request'::text,g.cpu)) u(dimension, reserved);

-- The tenants of counted_tenants that do not live.
CREATE VIEW lingering_tenants AS
 SELECT t.tenant_id,
    t.org_id,
    z.memory_bytes,
    z.cpu_request,
    GREATEST(z.storage_bytes, t.storage_quota_gb::bigint * 1000000000) AS storage_bytes
   FROM tenants t
     JOIN tenant_sizes z ON z.plan = t.plan
  WHERE NOT (t.state = 'data_purged'::text AND t.converged_state = 'data_purged'::text) AND (t.state <> ALL (ARRAY['trial'::text, 'provisioning'::text, 'active'::text, 'suspended'::text, 'grace_period'::text])) AND ((EXISTS ( SELECT
           FROM tenant_allocations a
          WHERE a.tenant_id = t.tenant_id AND a.released_at IS NULL)) OR (EXISTS ( SELECT
           FROM servers s
          WHERE s.dedicated_for_tenant_id = t.tenant_id AND s.status <> 'terminated'::text)));

-- Queued and running restores: of tenants, of volumes, and into copies of either.
CREATE VIEW restores_under_way AS
 SELECT org_id FROM restore_jobs WHERE status IN ('queued', 'running')
UNION ALL
 SELECT org_id FROM volume_restores WHERE status IN ('queued', 'running');

-- A hostname counts when it is verified, and no longer because a route has it.
CREATE VIEW org_usage_rows AS
 SELECT apps.org_id,
    'apps'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    0::bigint AS memory,
    0::numeric AS cpu,
    0::numeric AS bytes
   FROM apps
  WHERE apps.deleted_at IS NULL
  GROUP BY apps.org_id
UNION ALL
 SELECT envs.org_id,
    'envs'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM envs
  WHERE envs.deleted_at IS NULL
  GROUP BY envs.org_id
UNION ALL
 SELECT ipv4_allocations.org_id,
    'ipv4_allocations'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM ipv4_allocations
  WHERE ipv4_allocations.deleted_at IS NULL
  GROUP BY ipv4_allocations.org_id
UNION ALL
 SELECT volume_attachments.org_id,
    'volume_attachments'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM volume_attachments
  WHERE volume_attachments.deleted_at IS NULL
  GROUP BY volume_attachments.org_id
UNION ALL
 SELECT restores_under_way.org_id,
    'restore_jobs'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM restores_under_way
  GROUP BY restores_under_way.org_id
UNION ALL
 SELECT volumes.org_id,
    'volumes'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    0 AS memory,
    0 AS cpu,
    sum(volumes.size_bytes) AS bytes
   FROM volumes
  WHERE volumes.deleted_at IS NULL
  GROUP BY volumes.org_id
UNION ALL
 SELECT r.org_id,
    k.kind,
    k.key,
    count(*) AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM routes r
     CROSS JOIN LATERAL ( VALUES ('routes'::text,''::text), ('port'::text,port_binding(r.listener_scope, r.env_id, r.listen_port))) k(kind, key)
  WHERE r.deleted_at IS NULL
  GROUP BY r.org_id, k.kind, k.key
UNION ALL
 SELECT domains.org_id,
    'hostname'::text AS kind,
    domains.name AS key,
    1 AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM domains
  WHERE domains.deleted_at IS NULL AND domains.status = 'verified'::text
UNION ALL
 SELECT instances.org_id,
    'instances'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    sum(instances.memory_limit_bytes)::bigint AS memory,
    sum(instances.cpu_request::numeric) AS cpu,
    0 AS bytes
   FROM instances
  WHERE instances.state <> 'stopped'::text
  GROUP BY instances.org_id
UNION ALL
 SELECT instances.org_id,
    'group'::text AS kind,
    instances.group_id AS key,
    count(*) AS n,
    sum(instances.memory_limit_bytes)::bigint AS memory,
    sum(instances.cpu_request::numeric) AS cpu,
    0 AS bytes
   FROM instances
  WHERE instances.state <> 'stopped'::text AND instances.state <> 'draining'::text
  GROUP BY instances.org_id, instances.group_id
UNION ALL
 SELECT process_groups.org_id,
    'group'::text AS kind,
    process_groups.group_id AS key,
    0 AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM process_groups
  WHERE process_groups.deleted_at IS NULL
UNION ALL
 SELECT t.org_id,
    'tenants'::text AS kind,
    ''::text AS key,
    count(*) AS n,
    sum(z.memory_bytes)::bigint AS memory,
    sum(z.cpu_request::numeric) AS cpu,
    sum(GREATEST(z.storage_bytes, t.storage_quota_gb::bigint * 1000000000)) AS bytes
   FROM tenants t
     JOIN tenant_sizes z ON z.plan = t.plan
  WHERE t.state = ANY (ARRAY['trial'::text, 'provisioning'::text, 'active'::text, 'suspended'::text, 'grace_period'::text])
  GROUP BY t.org_id
UNION ALL
 SELECT lingering_tenants.org_id,
    'tenant'::text AS kind,
    lingering_tenants.tenant_id AS key,
    0 AS n,
    0 AS memory,
    0 AS cpu,
    0 AS bytes
   FROM lingering_tenants;

-- Triggers. Their functions are also in functions/.
-- +goose StatementBegin
DO $$ DECLARE f text; BEGIN
    FOREACH f IN ARRAY ARRAY[
        'choose_data_hosts', 'cordon_shards_and_pools', 'count_change', 'count_network_members', 'count_rows',
            'forget_site', 'keep_shards_and_pools', 'note_allocation', 'note_allocations', 'note_audit',
            'note_certificate_name', 'note_change', 'note_domain', 'note_edges', 'note_event',
            'note_fleet_serves', 'note_group_status', 'note_instance_ports', 'note_instances', 'note_move', 'note_new',
            'note_pool_site', 'note_public_port', 'note_server_peers', 'note_volume_change', 'queue_audit',
            'note_redo', 'refuse_audit_change', 'refuse_change', 'refuse_cordoned', 'refuse_referenced'
    ] LOOP
        EXECUTE format('CREATE FUNCTION %I() RETURNS trigger LANGUAGE plpgsql AS ''''', f);
    END LOOP;
END $$;
-- +goose StatementEnd

-- What orgs own is counted when it is made and deleted, all rows of a statement together.
-- +goose StatementBegin
DO $$ DECLARE t text; BEGIN
    FOREACH t IN ARRAY ARRAY[
        'apps', 'envs', 'ipv4_allocations', 'volume_attachments', 'restore_jobs', 'volume_restores', 'volumes', 'routes',
            'instances', 'process_groups', 'tenants', 'domains'
    ] LOOP
        EXECUTE format('CREATE TRIGGER %I '
            'AFTER INSERT ON %I REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows()', t || '_counted_in', t);
        EXECUTE format('CREATE TRIGGER %I '
            'AFTER DELETE ON %I REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows()', t || '_counted_out', t);
    END LOOP;
END $$;
-- +goose StatementEnd

-- New candidates reach the feed of placement.
-- +goose StatementBegin
DO $$ DECLARE t text; BEGIN
    FOREACH t IN ARRAY ARRAY[
        'servers', 'db_shards', 'redis_pools', 'site_pool'
    ] LOOP
        EXECUTE format('CREATE TRIGGER %I '
            'AFTER INSERT ON %I REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_new()', t || '_note_new', t);
    END LOOP;
END $$;
-- +goose StatementEnd

-- Rows that others name without a foreign key, which would cost each reservation a lock.
-- +goose StatementBegin
DO $$ DECLARE t text; BEGIN
    FOREACH t IN ARRAY ARRAY[
        'tenants', 'servers', 'db_shards', 'redis_pools', 'tenant_allocations', 'infra_providers'
    ] LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_referenced()', t || '_referenced', t);
    END LOOP;
END $$;
-- +goose StatementEnd

-- Objects that are made, and changes of their states, become events: see functions/note_event.sql. changes are the
-- columns whose change is one.
-- +goose StatementBegin
DO $$ DECLARE t text; args text; made boolean; changes text[]; BEGIN
    FOR t, args, made, changes IN VALUES
        ('scaling_events',     $a$'scaling', 'event_id', ''$a$, true, '{finished_at}'::text[]),
        ('fleet_actions',      $a$'fleet', 'fleet_id', ''$a$, true, '{status}'),
        ('fleet_action_steps', $a$'fleet', 'fleet_id', ''$a$, false, '{state}'),
        ('process_groups',     $a$'group', 'group_id', 'env_id'$a$, false, '{status,status_reason,deploy_status}'),
        ('instances',          $a$'instance', 'instance_id', 'group_id server_id'$a$, true, '{state,healthy}'),
        ('volumes',            $a$'volume', 'volume_id', ''$a$, false, '{status,reason,deleted_at}'),
        ('volume_attachments', $a$'attachment', 'attachment_id', 'volume_id group_id'$a$, false, '{server_id}'),
        ('ipv4_allocations',   $a$'ipv4', 'allocation_id', 'env_id'$a$, false, '{status,reason,deleted_at}'),
        ('tenant_moves',       $a$'move', 'move_id', 'tenant_id from_server_id to_server_id'$a$, true, '{state,reason}'),
        ('backups',            $a$'backup', 'backup_id', 'tenant_id volume_id server_id'$a$, true, '{state,verified_at,held_at}'),
        ('snapshots',          $a$'snapshot', 'snapshot_id', 'tenant_id server_id'$a$, true, '{status}'),
        ('restore_jobs',       $a$'restore', 'job_id', 'tenant_id snapshot_id backup_id'$a$, true, '{status}'),
        ('volume_restores',    $a$'restore', 'restore_id', 'volume_id backup_id'$a$, true, '{status}'),
        ('drills',             $a$'drill', 'drill_id', 'tenant_id volume_id backup_id server_id'$a$, true, '{state}'),
        ('certificates',       $a$'certificate', 'certificate_id', 'tenant_id'$a$, true, '{status,version,failures}'),
        ('rebalances',         $a$'rebalance', 'rebalance_id', ''$a$, true, '{state}'),
        ('patch_waves',        $a$'patch_wave', 'wave_id', ''$a$, true, '{}'),
        ('stack_releases',     $a$'release', 'name', ''$a$, true, '{status}'),
        ('agent_releases',     $a$'agent_release', 'version', ''$a$, true, '{status}'),
        ('golden_images',      $a$'image', 'image_id', ''$a$, true, '{status}'),
        ('login_links',        $a$'login_link', 'link_id', 'principal_id'$a$, true, '{used_at}')
    LOOP
        IF made THEN
            EXECUTE format('CREATE TRIGGER %I AFTER INSERT ON %I FOR EACH ROW EXECUTE FUNCTION note_event(%s)',
                t || '_told', t, args);
        END IF;
        IF changes <> '{}' THEN
            EXECUTE format('CREATE TRIGGER %I '
                'AFTER UPDATE OF %s ON %I FOR EACH ROW WHEN (%s) EXECUTE FUNCTION note_event(%s)', t || '_changed_told',
                (SELECT string_agg(quote_ident(c), ', ') FROM unnest(changes) c), t,
                (SELECT string_agg(format('OLD.%I IS DISTINCT FROM NEW.%1$I', c), ' OR ') FROM unnest(changes) c), args);
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd

-- Changes that a request makes are audited. The arguments are the kind of object and the columns of its id, its
-- org, and those left out: see functions/note_audit.sql.
-- +goose StatementBegin
DO $$ DECLARE t text; args text; unless text;
    always constant text := '';
    requests constant text := $w$WHEN (current_setting('prego.request', true) <> '')$w$;
BEGIN
    FOR t, args, unless IN VALUES
        ('orgs',                $a$'org', 'org_id', 'org_id', '', ''$a$, always),
        ('principals',          $a$'principal', 'principal_id', 'org_id', '', ''$a$, always),
        ('access_roles',        $a$'access_role', 'name', '', '', 'updated_at'$a$, always),
        ('access_grants',       $a$'grant', 'grant_id', 'org_id', '', ''$a$, always),
        ('credentials',         $a$'credential', 'credential_id', 'principal_id', '', 'hash last_used_at'$a$, always),
        ('passkeys',            $a$'passkey', 'passkey_id', '', '', 'key_id record last_used_at'$a$, always),
        ('token_trusts',        $a$'token_trust', 'principal_id', 'principal_id', '', 'updated_at'$a$, always),
        ('login_links',         $a$'login_link', 'link_id', 'org_id', '', 'hash'$a$, always),
        ('org_quotas',          $a$'quota', 'org_id dimension', 'org_id', '', 'updated_at'$a$, always),
        ('limit_requests',      $a$'limit_request', 'limit_request_id', 'org_id', '', ''$a$, always),
        ('org_placement_pools', $a$'org_placement_pool', 'org_id pool_id', 'org_id', '', ''$a$, always),
        ('fleets',              $a$'fleet', 'fleet_id', '', '', 'request_hash last_seq updated_at'$a$, always),
        ('policies',            $a$'policy', 'policy_id', '', '', 'updated_at'$a$, always),
        ('fleet_policies',      $a$'fleet_policy', 'fleet_id policy_id', '', '', 'last_used_at'$a$, always),
        ('placement_pools',     $a$'placement_pool', 'pool_id', '', '', 'updated_at'$a$, always),
        ('site_pool_policies',  $a$'site_pool_policy', 'plan', '', '', ''$a$, always),
        ('warm_pools',          $a$'warm_pool', 'region plan', '', '', 'updated_at'$a$, always),
        ('registries',          $a$'registry', 'host', 'org_id', 'sealed', 'updated_at'$a$, always),
        ('backup_policies',     $a$'backup_policy', 'policy_id', 'org_id', '', 'updated_at'$a$, always),
        ('backup_holds',        $a$'backup_hold', 'tenant_id volume_id', '', '', ''$a$, always),
        ('image_digests',       $a$'image_digest', 'image', '', '', ''$a$, always),
        ('capacity_defaults',   $a$'capacity_default', 'role', '', '', ''$a$, always),
        ('tenant_sizes',        $a$'tenant_size', 'plan', '', '', ''$a$, always),
        ('workload_settings',   $a$'workload_settings', 'one', '', '', ''$a$, always),
        ('residency_zones',     $a$'residency_zone', 'country', '', '', ''$a$, always),
        ('infra_providers',     $a$'infra_provider', 'id', '', '', ''$a$, always),
        ('freezes',             $a$'freeze', 'freeze_id', '', '', ''$a$, always),
        ('servers',             $a$'server', 'server_id', '', '', 'request_hash agent_key_sha256 updated_at changed_xid'$a$, requests),
        ('server_maintenances', $a$'maintenance', 'server_id number', '', '', 'updated_at'$a$, requests),
        ('patch_waves',         $a$'patch_wave', 'wave_id', '', '', ''$a$, requests),
        ('agent_command_audit', $a$'command', 'audit_id', '', '', 'stdout_truncated stderr_truncated started_at finished_at duration_ms ends_by'$a$, requests),
        ('golden_images',       $a$'image', 'image_id', '', '', 'recipe_hash agent_sha256 stack_sha256 updated_at'$a$, requests),
        ('stack_releases',      $a$'release', 'name', '', '', 'updated_at'$a$, requests),
        ('agent_releases',      $a$'agent_release', 'version', '', '', 'document signature updated_at'$a$, requests),
        ('rebalances',          $a$'rebalance', 'rebalance_id', '', '', 'updated_at'$a$, requests),
        ('fleet_actions',       $a$'fleet_action', 'fleet_id seq', '', '', ''$a$, requests),
        ('tenants',             $a$'tenant', 'tenant_id', 'org_id', '', 'request_hash updated_at'$a$, requests),
        ('tenant_moves',        $a$'move', 'move_id', 'org_id', '', 'updated_at'$a$, requests),
        ('placement_overrides', $a$'placement_override', 'override_id', '', '', ''$a$, requests),
        ('site_usage',          $a$'site_usage', 'tenant_id', '', '', ''$a$, requests),
        ('domains',             $a$'domain', 'domain_id', 'org_id', 'token', 'updated_at'$a$, requests),
        ('certificates',        $a$'certificate', 'certificate_id', 'org_id', 'sealed_key', 'changed chain_pem updated_at'$a$, requests),
        ('backups',             $a$'backup', 'backup_id', 'org_id', 'sealed_identity', 'upload_id part_bytes parts'$a$, requests),
        ('restore_jobs',        $a$'restore', 'job_id', 'org_id', '', ''$a$, requests),
        ('drills',              $a$'drill', 'drill_id', 'org_id', '', ''$a$, requests),
        ('snapshots',           $a$'snapshot', 'snapshot_id', 'org_id', '', ''$a$, requests),
        ('apps',                $a$'app', 'app_id', 'org_id', '', ''$a$, requests),
        ('envs',                $a$'env', 'env_id', 'org_id', '', ''$a$, requests),
        ('process_groups',      $a$'group', 'group_id', 'org_id', '', 'stable_spec updated_at'$a$, requests),
        ('rollouts',            $a$'rollout', 'group_id number', '', '', 'spec'$a$, requests),
        ('routes',              $a$'route', 'route_id', 'org_id', '', ''$a$, requests),
        ('ipv4_allocations',    $a$'ipv4', 'allocation_id', 'org_id', '', 'updated_at'$a$, requests),
        ('volumes',             $a$'volume', 'volume_id', 'org_id', '', 'updated_at'$a$, requests),
        ('volume_attachments',  $a$'attachment', 'attachment_id', 'org_id', '', ''$a$, requests),
        ('volume_restores',     $a$'volume_restore', 'restore_id', 'org_id', '', ''$a$, requests)
    LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR DELETE OR UPDATE ON %I FOR EACH ROW'
            ' %s EXECUTE FUNCTION note_audit(%s)', t || '_audit', t, unless, args);
        EXECUTE format('CREATE TRIGGER %I AFTER TRUNCATE ON %I EXECUTE FUNCTION note_audit(%s)',
            t || '_audit_truncate', t, args);
    END LOOP;
END $$;
-- +goose StatementEnd

-- Every table is in the redo log, except what is measured, counted from other tables, tried again by itself, or a
-- record of what happened. Columns that only note when something was last seen make no entry by themselves.
-- +goose StatementBegin
DO $$ DECLARE t text; key text; cols text[];
    left_out constant text[] := string_to_array('allocation_snapshots attention_since changes changes_pruned '
        'container_reports cost_entries cost_meters cost_progress decision_inputs destructions '
        'dns_comparisons dns_departures edge_documents edge_left_out events goose_db_version looks org_counters '
        'org_sessions org_usage_changes org_usage_drifts org_usage_parts org_usage_sweep org_work orphan_sightings '
        'peers_due provider_budgets provider_catalogs provider_prices pruned rate_budgets reconcile_runs redo redo_due '
        'region_room rejected_rows scaling_events server_samples site_health site_uptime', ' ');
    seen constant text[] := string_to_array('updated_at changed_xid agent_last_heartbeat_at agent_status load1 '
        'memory_pct disk_pct docker_state cpu_pct worker_slots_pct db_disk_pct redis_memory_pct clock_ahead_seconds '
        'checked_at next_check asked_at applied_at watched_from watched_until watch_changes taken_until ari_at '
        'last_used_at site_usage.database_bytes site_usage.files_bytes site_usage.backups_bytes site_usage.users '
        'site_usage.measured_at site_usage.tried_at site_usage.message', ' ');
BEGIN
    FOR t IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
        AND c.relname <> ALL (left_out) ORDER BY 1
    LOOP
        SELECT string_agg(quote_literal(a.attname), ', ' ORDER BY a.attnum) INTO STRICT key FROM pg_index i
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indrelid = t::regclass AND i.indisprimary;
        IF key IS NULL THEN
            RAISE EXCEPTION 'table % has no primary key: it needs one for the redo log', t;
        END IF;
        SELECT array_agg(a.attname ORDER BY a.attnum) INTO STRICT cols FROM pg_attribute a
        WHERE a.attrelid = t::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> ALL (seen)
          AND t || '.' || a.attname <> ALL (seen)
          AND a.atttypid <> ALL ('{xid8,pg_snapshot}'::regtype[]); -- transactions of this database alone
        EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION note_redo(%s)',
            'redo_' || t, t, key);
        EXECUTE format('CREATE TRIGGER %I AFTER UPDATE ON %I FOR EACH ROW WHEN (%s) EXECUTE FUNCTION note_redo(%s)',
            'redo_' || t || '_changed', t,
            (SELECT string_agg(format('OLD.%I IS DISTINCT FROM NEW.%1$I', c), ' OR ') FROM unnest(cols) c), key);
    END LOOP;
END $$;
-- +goose StatementEnd

CREATE TRIGGER site_pool_data BEFORE INSERT ON site_pool FOR EACH ROW EXECUTE FUNCTION choose_data_hosts();
CREATE TRIGGER tenant_allocations_data BEFORE INSERT ON tenant_allocations FOR EACH ROW EXECUTE FUNCTION
    choose_data_hosts();

CREATE TRIGGER servers_cordon AFTER UPDATE OF cordoned_at ON servers FOR EACH ROW WHEN (old.cordoned_at IS DISTINCT
    FROM new.cordoned_at AND new.status = 'active') EXECUTE FUNCTION cordon_shards_and_pools();
-- Also shards and pools of a server that becomes active while it is cordoned.
CREATE TRIGGER servers_stay_cordoned AFTER UPDATE OF status ON servers FOR EACH ROW WHEN (new.cordoned_at IS NOT NULL
    AND new.status = 'active' AND old.status IS DISTINCT FROM new.status) EXECUTE FUNCTION cordon_shards_and_pools();

CREATE TRIGGER apps_counted AFTER UPDATE ON apps FOR EACH ROW WHEN ((old.deleted_at IS NULL) <> (new.deleted_at IS
    NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER envs_counted AFTER UPDATE ON envs FOR EACH ROW WHEN ((old.deleted_at IS NULL) <> (new.deleted_at IS
    NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER ipv4_allocations_counted AFTER UPDATE ON ipv4_allocations FOR EACH ROW WHEN ((old.deleted_at IS NULL)
    <> (new.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER volume_attachments_counted AFTER UPDATE ON volume_attachments FOR EACH ROW WHEN ((old.deleted_at IS
    NULL) <> (new.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER restore_jobs_counted AFTER UPDATE ON restore_jobs FOR EACH ROW WHEN ((old.status IN ('queued',
    'running')) <> (new.status IN ('queued', 'running'))) EXECUTE FUNCTION count_change();
CREATE TRIGGER volume_restores_counted AFTER UPDATE ON volume_restores FOR EACH ROW WHEN ((old.status IN ('queued',
    'running')) <> (new.status IN ('queued', 'running'))) EXECUTE FUNCTION count_change();
CREATE TRIGGER volumes_counted AFTER UPDATE ON volumes FOR EACH ROW WHEN ((old.deleted_at IS NULL) <> (new.deleted_at
    IS NULL) OR old.size_bytes <> new.size_bytes) EXECUTE FUNCTION count_change();
CREATE TRIGGER routes_counted AFTER UPDATE ON routes FOR EACH ROW WHEN ((old.deleted_at IS NULL) <> (new.deleted_at IS
    NULL) OR old.hostname <> new.hostname OR old.listener_scope <> new.listener_scope OR old.listen_port <>
    new.listen_port) EXECUTE FUNCTION count_change();
CREATE TRIGGER instances_counted AFTER UPDATE ON instances FOR EACH ROW WHEN ((old.state = 'stopped') <> (new.state =
    'stopped') OR (old.state IN ('stopped', 'draining')) <> (new.state IN ('stopped', 'draining')) OR
    old.memory_limit_bytes <> new.memory_limit_bytes OR old.cpu_request <> new.cpu_request) EXECUTE FUNCTION
    count_change();
CREATE TRIGGER process_groups_counted AFTER UPDATE ON process_groups FOR EACH ROW WHEN (old.replicas <> new.replicas
    OR old.memory_limit_bytes <> new.memory_limit_bytes OR old.cpu_request <> new.cpu_request OR (old.deleted_at IS NULL)
    <> (new.deleted_at IS NULL)) EXECUTE FUNCTION count_change();
-- A tenant that gets a place lives, and counts already: reserve_placements holds its row.
CREATE TRIGGER tenant_allocations_counted AFTER UPDATE OF released_at ON tenant_allocations FOR EACH ROW WHEN
    ((old.released_at IS NULL) <> (new.released_at IS NULL)) EXECUTE FUNCTION count_change();
CREATE TRIGGER servers_counted_in AFTER INSERT ON servers FOR EACH ROW WHEN (new.dedicated_for_tenant_id IS NOT NULL)
    EXECUTE FUNCTION count_change();
CREATE TRIGGER servers_counted AFTER UPDATE OF dedicated_for_tenant_id, status ON servers FOR EACH ROW WHEN
    (old.dedicated_for_tenant_id IS DISTINCT FROM new.dedicated_for_tenant_id OR new.dedicated_for_tenant_id IS NOT NULL
    AND (old.status = 'terminated') <> (new.status = 'terminated')) EXECUTE FUNCTION count_change();
-- Changes between the states of a living tenant do not matter.
CREATE TRIGGER tenants_counted AFTER UPDATE OF state, converged_state, plan, storage_quota_gb ON tenants FOR EACH ROW
    WHEN (old.state <> new.state OR old.converged_state <> new.converged_state OR old.plan <> new.plan OR
    old.storage_quota_gb <> new.storage_quota_gb) EXECUTE FUNCTION count_change();
CREATE TRIGGER domains_counted AFTER UPDATE OF status, deleted_at ON domains FOR EACH ROW WHEN ((old.status =
    'verified' AND old.deleted_at IS NULL) <> (new.status = 'verified' AND new.deleted_at IS NULL)) EXECUTE FUNCTION
    count_change();

CREATE TRIGGER servers_join_network AFTER INSERT ON servers FOR EACH ROW WHEN (new.network_id IS NOT NULL) EXECUTE
    FUNCTION count_network_members();
CREATE TRIGGER servers_change_network AFTER UPDATE OF network_id, status ON servers FOR EACH ROW WHEN (old.network_id
    IS DISTINCT FROM new.network_id OR (old.status = 'terminated') <> (new.status = 'terminated')) EXECUTE FUNCTION
    count_network_members();

CREATE TRIGGER site_pool_forgotten AFTER DELETE ON site_pool FOR EACH ROW EXECUTE FUNCTION forget_site();

CREATE TRIGGER servers_keep_shards_and_pools AFTER UPDATE OF status, plan_tier_lock, tenant_capacity ON servers
    FOR EACH ROW WHEN (old.status IS DISTINCT FROM new.status OR old.plan_tier_lock IS
    DISTINCT FROM new.plan_tier_lock OR old.tenant_capacity IS DISTINCT FROM new.tenant_capacity)
    EXECUTE FUNCTION keep_shards_and_pools();

CREATE TRIGGER tenant_allocations_peers AFTER UPDATE ON tenant_allocations FOR EACH ROW WHEN (old.app_server_id IS
    DISTINCT FROM new.app_server_id OR old.db_shard_id IS DISTINCT FROM new.db_shard_id OR old.redis_pool_id IS DISTINCT
    FROM new.redis_pool_id OR old.released_at IS DISTINCT FROM new.released_at) EXECUTE FUNCTION note_allocation();

CREATE TRIGGER tenant_allocations_peers_new AFTER INSERT ON tenant_allocations REFERENCING NEW TABLE AS made FOR EACH
    STATEMENT EXECUTE FUNCTION note_allocations();

CREATE TRIGGER domains_certificate AFTER UPDATE OF status, points, deleted_at, tenant_id ON domains FOR EACH ROW WHEN
    (old.status <> new.status OR old.points <> new.points OR (old.deleted_at IS NULL) <> (new.deleted_at IS NULL) OR
    old.tenant_id IS DISTINCT FROM new.tenant_id) EXECUTE FUNCTION note_certificate_name();
CREATE TRIGGER routes_certificate AFTER INSERT ON routes FOR EACH ROW WHEN (new.hostname <> '' AND new.listen_port <>
    80) EXECUTE FUNCTION note_certificate_name();

CREATE TRIGGER db_shards_note_change BEFORE UPDATE ON db_shards FOR EACH ROW WHEN (old.changed_xid = new.changed_xid)
    EXECUTE FUNCTION note_change();
CREATE TRIGGER redis_pools_note_change BEFORE UPDATE ON redis_pools FOR EACH ROW WHEN (old.changed_xid =
    new.changed_xid) EXECUTE FUNCTION note_change();
CREATE TRIGGER site_pool_note_change BEFORE UPDATE ON site_pool FOR EACH ROW WHEN (old.changed_xid = new.changed_xid)
    EXECUTE FUNCTION note_change();
CREATE TRIGGER servers_cordon_noted BEFORE UPDATE OF cordoned_at ON servers FOR EACH ROW WHEN (old.cordoned_at IS
    DISTINCT FROM new.cordoned_at AND old.changed_xid = new.changed_xid) EXECUTE FUNCTION note_change();
CREATE TRIGGER servers_note_tenants BEFORE UPDATE OF tenant_count, dedicated_for_tenant_id ON servers FOR EACH ROW
    WHEN (old.changed_xid = new.changed_xid AND (old.tenant_count <> new.tenant_count OR old.dedicated_for_tenant_id IS
    DISTINCT FROM new.dedicated_for_tenant_id)) EXECUTE FUNCTION note_change();
-- Heartbeats change rows all the time; only a change of memory by some points, or of what else placement looks at,
-- is noted. A statement that notes its change itself spares the call.
CREATE TRIGGER servers_note_change BEFORE UPDATE OF status, accepts_trial, warm_plan, image, fleet_id, agent_status,
    memory_pct, cpu_pct, worker_slots_pct, db_disk_pct, redis_memory_pct ON servers FOR EACH ROW WHEN (old.changed_xid =
    new.changed_xid AND (old.status IS DISTINCT FROM new.status OR old.accepts_trial IS DISTINCT FROM new.accepts_trial OR
    old.warm_plan IS DISTINCT FROM new.warm_plan OR old.image IS DISTINCT FROM new.image OR old.fleet_id IS DISTINCT FROM
    new.fleet_id OR (old.agent_status = 'connected') IS DISTINCT FROM (new.agent_status = 'connected') OR
    floor(old.memory_pct / 5) IS DISTINCT FROM floor(new.memory_pct / 5) OR floor(old.cpu_pct / 5) IS DISTINCT FROM
    floor(new.cpu_pct / 5) OR floor(old.worker_slots_pct / 5) IS DISTINCT FROM floor(new.worker_slots_pct / 5) OR
    floor(old.db_disk_pct / 5) IS DISTINCT FROM floor(new.db_disk_pct / 5) OR floor(old.redis_memory_pct / 5) IS DISTINCT
    FROM floor(new.redis_memory_pct / 5))) EXECUTE FUNCTION note_change();
-- Placement follows what network a server is in once it is placed on.
CREATE TRIGGER servers_note_network BEFORE UPDATE OF network_id, private_address ON servers FOR EACH ROW WHEN
    (old.changed_xid = new.changed_xid AND new.status <> 'provisioning' AND (old.network_id IS DISTINCT FROM
    new.network_id OR old.private_address IS DISTINCT FROM new.private_address)) EXECUTE FUNCTION note_change();

CREATE TRIGGER domains_noted AFTER UPDATE OF status, deleted_at ON domains FOR EACH ROW WHEN ((old.status = 'verified'
    AND old.deleted_at IS NULL) <> (new.status = 'verified' AND new.deleted_at IS NULL)) EXECUTE FUNCTION note_domain();

-- A site that becomes active is in the documents since it was opened.
CREATE TRIGGER tenants_note_edges AFTER UPDATE OF state, opening_since ON tenants FOR EACH ROW WHEN
    ((old.opening_since IS DISTINCT FROM new.opening_since OR old.state IS DISTINCT FROM new.state AND ((old.state IN
    ('active', 'suspended', 'grace_period')) OR (new.state IN ('active', 'suspended', 'grace_period')))) AND NOT
    (old.opening_since IS NOT NULL AND new.state = 'active')) EXECUTE FUNCTION note_edges();
CREATE TRIGGER tenant_allocations_note_edges AFTER UPDATE OF released_at ON tenant_allocations FOR EACH ROW WHEN
    (old.released_at IS DISTINCT FROM new.released_at) EXECUTE FUNCTION note_edges();
CREATE TRIGGER restore_jobs_note_edges AFTER UPDATE OF status ON restore_jobs FOR EACH ROW WHEN (old.status IS
    DISTINCT FROM new.status) EXECUTE FUNCTION note_edges();
CREATE TRIGGER instances_note_edges AFTER UPDATE OF state, healthy ON instances FOR EACH ROW WHEN ((old.state =
    'running' AND old.healthy) IS DISTINCT FROM (new.state = 'running' AND new.healthy)) EXECUTE FUNCTION note_edges();
CREATE TRIGGER routes_note_edges AFTER INSERT ON routes FOR EACH ROW EXECUTE FUNCTION note_edges();
CREATE TRIGGER routes_note_edges_gone AFTER UPDATE OF deleted_at ON routes FOR EACH ROW WHEN (old.deleted_at IS
    DISTINCT FROM new.deleted_at) EXECUTE FUNCTION note_edges();
-- Edges send the site's visitors where the tenant lives.
CREATE TRIGGER tenant_allocations_note_edges_moved AFTER UPDATE OF app_server_id ON tenant_allocations FOR EACH ROW
    WHEN (old.app_server_id IS DISTINCT FROM new.app_server_id) EXECUTE FUNCTION note_edges();
CREATE TRIGGER tenant_moves_note_edges AFTER UPDATE OF opened_at, finished_at ON tenant_moves FOR EACH ROW WHEN
    ((old.opened_at IS DISTINCT FROM new.opened_at OR old.finished_at IS DISTINCT FROM new.finished_at) AND
    new.switched_at IS NOT NULL AND new.to_server_id <> new.from_server_id) EXECUTE FUNCTION note_edges();

CREATE TRIGGER fleets_note_serves AFTER UPDATE OF serves_tenants ON fleets FOR EACH ROW WHEN (old.serves_tenants IS
    DISTINCT FROM new.serves_tenants) EXECUTE FUNCTION note_fleet_serves();

CREATE TRIGGER process_groups_status_since BEFORE UPDATE OF status ON process_groups FOR EACH ROW WHEN (old.status IS
    DISTINCT FROM new.status) EXECUTE FUNCTION note_group_status();

CREATE TRIGGER instances_peers_new AFTER INSERT ON instances FOR EACH ROW WHEN (new.ports <> '[]'::jsonb AND new.state
    <> 'stopped') EXECUTE FUNCTION note_instance_ports();
CREATE TRIGGER instances_peers AFTER UPDATE OF ports, state ON instances FOR EACH ROW WHEN (old.ports <> new.ports OR
    old.ports <> '[]'::jsonb AND (old.state = 'stopped') <> (new.state = 'stopped')) EXECUTE FUNCTION
    note_instance_ports();

CREATE TRIGGER instances_came AFTER INSERT ON instances FOR EACH ROW WHEN (new.state <> 'stopped') EXECUTE FUNCTION
    note_instances();
CREATE TRIGGER instances_went AFTER UPDATE OF state ON instances FOR EACH ROW WHEN ((old.state = 'stopped') <>
    (new.state = 'stopped')) EXECUTE FUNCTION note_instances();

CREATE TRIGGER tenant_moves_peers AFTER UPDATE OF to_server_id, finished_at ON tenant_moves FOR EACH ROW WHEN
    (old.to_server_id IS DISTINCT FROM new.to_server_id OR old.finished_at IS DISTINCT FROM new.finished_at) EXECUTE
    FUNCTION note_move();

CREATE TRIGGER site_pool_peers AFTER INSERT OR DELETE ON site_pool FOR EACH ROW EXECUTE FUNCTION note_pool_site();
CREATE TRIGGER site_pool_peers_dropped AFTER UPDATE OF dropped_at ON site_pool FOR EACH ROW WHEN (old.dropped_at IS
    DISTINCT FROM new.dropped_at) EXECUTE FUNCTION note_pool_site();

CREATE TRIGGER routes_peers_new AFTER INSERT ON routes FOR EACH ROW EXECUTE FUNCTION note_public_port();
CREATE TRIGGER routes_peers AFTER UPDATE OF listen_port, deleted_at ON routes FOR EACH ROW WHEN (old.listen_port <>
    new.listen_port OR old.deleted_at IS DISTINCT FROM new.deleted_at) EXECUTE FUNCTION note_public_port();

CREATE TRIGGER servers_peers_new AFTER INSERT ON servers FOR EACH ROW EXECUTE FUNCTION note_server_peers();
CREATE TRIGGER servers_peers AFTER UPDATE OF network_id, private_address, status, identity_revoked_at ON servers FOR
    EACH ROW WHEN (old.network_id IS DISTINCT FROM new.network_id OR old.private_address IS DISTINCT FROM
    new.private_address OR (old.status = 'terminated') <> (new.status = 'terminated') OR (old.identity_revoked_at IS
    NULL) <> (new.identity_revoked_at IS NULL)) EXECUTE FUNCTION note_server_peers();

CREATE TRIGGER volumes_note_change BEFORE UPDATE ON volumes FOR EACH ROW WHEN (old.* IS DISTINCT FROM new.*) EXECUTE
    FUNCTION note_volume_change();

CREATE TRIGGER audit_entries_queue AFTER INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION queue_audit();

CREATE TRIGGER audit_entries_refuse BEFORE DELETE OR UPDATE ON audit_entries FOR EACH ROW EXECUTE FUNCTION
    refuse_audit_change();
CREATE TRIGGER audit_entries_refuse_truncate BEFORE TRUNCATE ON audit_entries EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_chain_refuse BEFORE DELETE OR UPDATE ON audit_chain FOR EACH ROW EXECUTE FUNCTION
    refuse_audit_change();
CREATE TRIGGER audit_chain_refuse_truncate BEFORE TRUNCATE ON audit_chain EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_checkpoints_refuse BEFORE DELETE OR UPDATE ON audit_checkpoints FOR EACH ROW EXECUTE FUNCTION
    refuse_audit_change();
CREATE TRIGGER audit_checkpoints_refuse_truncate BEFORE TRUNCATE ON audit_checkpoints EXECUTE FUNCTION
    refuse_audit_change();

CREATE TRIGGER servers_tags_fixed BEFORE UPDATE OF tags ON servers FOR EACH ROW WHEN (old.tags IS DISTINCT FROM
    new.tags) EXECUTE FUNCTION refuse_change('tags');
CREATE TRIGGER tenants_constraint_fixed BEFORE UPDATE OF require_tags, disallow_tags ON tenants FOR EACH ROW WHEN
    (old.require_tags IS DISTINCT FROM new.require_tags OR old.disallow_tags IS DISTINCT FROM new.disallow_tags) EXECUTE
    FUNCTION refuse_change('constraint');

CREATE TRIGGER servers_refuse_cordoned BEFORE UPDATE OF tenant_count ON servers FOR EACH ROW WHEN (new.cordoned_at IS
    NOT NULL AND new.tenant_count > old.tenant_count) EXECUTE FUNCTION refuse_cordoned();

-- ------------------------------------------------------------------------------
-- What customers' requests see: row-level security
-- ------------------------------------------------------------------------------

-- The statements of a customer's request that changes nothing run as this role. It sees rows of the orgs in the setting
-- prego.orgs, and no rows without it. That stops a statement with a forgotten condition, not an injected one, which
-- could set the setting. The owner of the tables bypasses the policies, and so must other roles that processes log in
-- as. The role is the cluster's: another database may have created it, or be about to.
-- +goose StatementBegin
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'prego_customer') THEN
        CREATE ROLE prego_customer NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'the role prego_customer is missing, and % may not create it', current_user
            USING HINT = format('As a superuser: CREATE ROLE prego_customer NOLOGIN; GRANT prego_customer TO %I', current_user);
END $$;
DO $$ BEGIN
    IF NOT pg_has_role('prego_customer', 'MEMBER') THEN
        EXECUTE format('GRANT prego_customer TO %I', current_user);
    END IF;
EXCEPTION WHEN unique_violation THEN NULL;
END $$;
-- +goose StatementEnd

SET LOCAL check_function_bodies = off;
CREATE FUNCTION prego_orgs() RETURNS text[] LANGUAGE sql AS '';
CREATE FUNCTION refuse_foreign() RETURNS trigger LANGUAGE plpgsql AS '';

-- Rows of orgs, by their org or by what they belong to, whose policy is applied in turn. Tables that are in none of
-- these lists are out of customers' reach.
-- +goose StatementBegin
DO $$ DECLARE
    own       text := '(org_id = ANY ((SELECT prego_orgs())::text[]))';
    of_tenant text := 'EXISTS (SELECT FROM tenants t WHERE t.tenant_id = %1$I.tenant_id)';
    of_volume text := 'EXISTS (SELECT FROM volumes v WHERE v.volume_id = %1$I.volume_id)';
    dedicated text := '(dedicated_for_tenant_id IS NULL OR EXISTS (SELECT FROM tenants t WHERE t.tenant_id = %1$I.dedicated_for_tenant_id))';
    p         record;
BEGIN
    FOR p IN SELECT * FROM (
        SELECT unnest(ARRAY[
            'orgs', 'org_quotas', 'org_counters', 'org_usage_changes', 'org_usage_parts', 'org_sessions', 'org_placement_pools',
            'tenants', 'tenant_moves', 'backups', 'snapshots', 'restore_jobs', 'drills', 'apps', 'envs', 'process_groups',
            'instances', 'ipv4_allocations', 'volumes', 'volume_attachments', 'volume_restores', 'org_work', 'routes', 'domains',
            'certificates', 'events', 'audit_entries', 'cost_entries', 'access_grants', 'login_links', 'limit_requests', 'registries'
        ]), own
        UNION ALL SELECT unnest(ARRAY[
            'tenant_allocations', 'allocation_snapshots', 'site_usage', 'site_health', 'site_uptime', 'tenant_losses',
            'backup_schedules', 'stack_release_sites'
        ]), of_tenant
        UNION ALL VALUES
            ('volume_backup_schedules', of_volume),
            ('backup_policy_changes', 'EXISTS (SELECT FROM backup_policies p WHERE p.policy_id = backup_policy_changes.policy_id)'),
            ('backup_holds', of_tenant || ' OR ' || of_volume),
            -- The policies of plans and of all volumes are everybody's.
            ('backup_policies', 'num_nonnulls(tenant_id, org_id, volume_id) = 0 OR ' || own || ' OR ' || of_tenant || ' OR ' || of_volume),
            ('rollouts', 'EXISTS (SELECT FROM process_groups g WHERE g.group_id = rollouts.group_id)'),
            ('placement_pools', 'is_default OR EXISTS (SELECT FROM org_placement_pools o WHERE o.pool_id = placement_pools.pool_id)'),
            -- Service accounts of an org with their tokens, and who has a grant on it.
            ('principals', own || ' OR EXISTS (SELECT FROM access_grants g WHERE g.principal_id = principals.principal_id)'),
            ('credentials', 'EXISTS (SELECT FROM principals p WHERE p.principal_id = credentials.principal_id AND p.org_id IS NOT NULL)'),
            ('token_trusts', 'EXISTS (SELECT FROM principals p WHERE p.principal_id = token_trusts.principal_id AND p.org_id IS NOT NULL)'),
            ('audit_chain', 'EXISTS (SELECT FROM audit_entries e WHERE e.entry_id = audit_chain.entry_id)'),
            ('servers', dedicated), ('db_shards', dedicated), ('redis_pools', dedicated)
    ) p (tbl, seen) LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', p.tbl);
        EXECUTE format('CREATE POLICY customers_read ON %1$I FOR SELECT TO prego_customer USING (' || p.seen || ')', p.tbl);
        IF p.tbl NOT IN ('servers', 'db_shards', 'redis_pools', 'tenants', 'backups', 'certificates', 'credentials', 'login_links', 'registries') THEN
            EXECUTE format('GRANT SELECT ON %I TO prego_customer', p.tbl);
        END IF;
    END LOOP;
    -- Sealed keys and hashes stay with the control plane. xmin is in ETags.
    FOR p IN SELECT a.attrelid::regclass AS tbl, string_agg(format('%I', a.attname), ', ') AS shown FROM pg_attribute a
        WHERE a.attrelid = ANY ('{tenants,backups,certificates,credentials,login_links,registries}'::regclass[]) AND (a.attnum > 0 OR a.attname = 'xmin') AND NOT a.attisdropped
            AND a.attname NOT IN ('request_hash', 'sealed_identity', 'sealed_key', 'sealed', 'hash') GROUP BY a.attrelid LOOP
        EXECUTE format('GRANT SELECT (%s) ON %s TO prego_customer', p.shown, p.tbl);
    END LOOP;
    FOR p IN SELECT c.relname AS tbl FROM pg_class c WHERE c.relkind = 'v' AND c.relnamespace = current_schema()::regnamespace LOOP
        EXECUTE format('ALTER VIEW %I SET (security_invoker = true)', p.tbl);
        EXECUTE format('GRANT SELECT ON %I TO prego_customer', p.tbl);
    END LOOP;
END $$;
-- +goose StatementEnd

-- What hosts something of theirs and is not their own: where it is and whether it works, but neither addresses nor
-- who else is there.
GRANT SELECT (server_id, role, region, infra_provider, location, status, network_id, dedicated_for_tenant_id) ON servers TO prego_customer;
GRANT SELECT (shard_id, server_id, region, status) ON db_shards TO prego_customer;
GRANT SELECT (pool_id, server_id, region, status) ON redis_pools TO prego_customer;
GRANT SELECT (server_id, number, kind, status, finished_at) ON server_maintenances TO prego_customer;
GRANT SELECT (meter_id, kind, region, priced, started_at, ended_at, hours) ON cost_meters TO prego_customer;
GRANT SELECT (server_id, network, watched_from, watched_until) ON edges TO prego_customer;
-- Settings, which hold nothing of orgs.
GRANT SELECT ON infra_providers, residency_zones, tenant_sizes, workload_settings, capacity_defaults, provider_prices,
    cost_progress, pruned, access_roles TO prego_customer;

-- A customer's request that changes something sees everything, as the last gate, quotas and capacity must. What it
-- changes are rows of the orgs that it reaches. Rows that triggers and the control plane derive from these need no guard.
-- +goose StatementBegin
DO $$ DECLARE t text; args text; BEGIN
    FOR t, args IN
        SELECT unnest(ARRAY[
            'orgs', 'org_quotas', 'org_sessions', 'org_placement_pools', 'tenants', 'tenant_moves', 'backups', 'snapshots', 'restore_jobs',
            'drills', 'apps', 'envs', 'process_groups', 'instances', 'ipv4_allocations', 'volumes', 'volume_attachments',
            'volume_restores', 'org_work', 'routes', 'domains', 'certificates', 'principals', 'access_grants', 'login_links',
            'limit_requests', 'registries'
        ]), $a$'org_id'$a$
        UNION ALL SELECT unnest(ARRAY[
            'tenant_allocations', 'placement_overrides', 'site_usage', 'tenant_losses', 'backup_schedules'
        ]), $a$'tenant_id'$a$
        UNION ALL VALUES
            ('volume_backup_schedules', $a$'volume_id'$a$), ('rollouts', $a$'group_id'$a$), ('credentials', $a$'principal_id'$a$),
            ('token_trusts', $a$'principal_id'$a$),
            ('backup_holds', $a$'tenant_id', 'volume_id'$a$), ('backup_policies', $a$'org_id', 'tenant_id', 'volume_id'$a$)
    LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE INSERT OR UPDATE OR DELETE ON %I FOR EACH ROW
            WHEN (current_setting(''prego.orgs'', true) <> '''') EXECUTE FUNCTION refuse_foreign(%s)', t || '_foreign', t, args);
    END LOOP;
END $$;
-- +goose StatementEnd
