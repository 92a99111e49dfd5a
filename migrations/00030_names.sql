-- +goose Up

-- The names that orgs want served. Any number of orgs may have the same one pending; the
-- first to show its TXT record has it, alone.
CREATE TABLE domains (
    domain_id     text PRIMARY KEY, -- dom-…
    org_id        text NOT NULL REFERENCES orgs (org_id),
    tenant_id     text REFERENCES tenants (tenant_id), -- NULL: for the org's routes
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

-- Routes of before had their names without a proof: they are claims like any other.
INSERT INTO domains (domain_id, org_id, name, by_route, token, sought_until, created_by)
SELECT 'dom-' || left(md5(org_id || '/' || hostname), 12), org_id, hostname, true, md5(random()::text) || md5(random()::text), now() + interval '14 days', 'migration'
FROM routes WHERE deleted_at IS NULL AND hostname <> '' GROUP BY org_id, hostname;

-- The same name may wait at routes of several orgs; only the one that has verified it is served.
DROP INDEX routes_hostname;
CREATE UNIQUE INDEX routes_hostname ON routes (org_id, hostname, listener_scope, listen_port) WHERE deleted_at IS NULL AND hostname <> '';
CREATE INDEX routes_by_hostname ON routes (hostname) WHERE deleted_at IS NULL AND hostname <> '';

-- A hostname counts when it is verified, and no longer because a route has it.
-- +goose StatementBegin
CREATE OR REPLACE VIEW org_usage_rows AS
SELECT org_id, 'apps' AS kind, '' AS key, count(*) AS n, 0::bigint AS memory, 0::numeric AS cpu, 0::numeric AS bytes FROM apps WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'envs', '', count(*), 0, 0, 0 FROM envs WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'ipv4_allocations', '', count(*), 0, 0, 0 FROM ipv4_allocations WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'volume_attachments', '', count(*), 0, 0, 0 FROM volume_attachments WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT org_id, 'restore_jobs', '', count(*), 0, 0, 0 FROM restore_jobs WHERE status IN ('queued', 'running') GROUP BY org_id
UNION ALL SELECT org_id, 'volumes', '', count(*), 0, 0, sum(size_bytes) FROM volumes WHERE deleted_at IS NULL GROUP BY org_id
UNION ALL SELECT r.org_id, k.kind, k.key, count(*), 0, 0, 0 FROM routes r
    CROSS JOIN LATERAL (VALUES ('routes', ''), ('port', port_binding(r.listener_scope, r.env_id, r.listen_port))) k (kind, key)
    WHERE r.deleted_at IS NULL GROUP BY r.org_id, k.kind, k.key
UNION ALL SELECT org_id, 'hostname', name, 1, 0, 0, 0 FROM domains WHERE deleted_at IS NULL AND status = 'verified'
UNION ALL SELECT org_id, 'instances', '', count(*), sum(memory_limit_bytes)::bigint, sum(cpu_request::numeric), 0 FROM instances WHERE state <> 'stopped' GROUP BY org_id
UNION ALL SELECT org_id, 'group', group_id, count(*), sum(memory_limit_bytes)::bigint, sum(cpu_request::numeric), 0 FROM instances
    WHERE state <> 'stopped' AND state <> 'draining' GROUP BY org_id, group_id
UNION ALL SELECT org_id, 'group', group_id, 0, 0, 0, 0 FROM process_groups WHERE deleted_at IS NULL
UNION ALL SELECT t.org_id, 'tenants', '', count(*), sum(z.memory_bytes)::bigint, sum(z.cpu_request::numeric), sum(GREATEST(z.storage_bytes, t.storage_quota_gb::bigint * 1000000000))
    FROM tenants t JOIN tenant_sizes z ON z.plan = t.plan
    WHERE t.state IN ('trial', 'provisioning', 'active', 'suspended', 'grace_period') GROUP BY t.org_id
UNION ALL SELECT org_id, 'tenant', tenant_id, 0, 0, 0, 0 FROM lingering_tenants;
-- +goose StatementEnd
INSERT INTO org_usage_changes (org_id, kind, key, n)
SELECT org_id, 'hostname', hostname, -count(*) FROM routes WHERE deleted_at IS NULL AND hostname <> '' GROUP BY org_id, hostname;
CREATE TRIGGER domains_counted_in AFTER INSERT ON domains REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER domains_counted_out AFTER DELETE ON domains REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_rows();
CREATE TRIGGER domains_counted AFTER UPDATE OF status, deleted_at ON domains FOR EACH ROW
    WHEN ((OLD.status = 'verified' AND OLD.deleted_at IS NULL) <> (NEW.status = 'verified' AND NEW.deleted_at IS NULL)) EXECUTE FUNCTION count_change();

-- The edges learn of a name that is served, or no longer.
-- +goose StatementBegin
CREATE FUNCTION note_domain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (kind, id) VALUES ('domains', NEW.domain_id);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER domains_noted AFTER UPDATE OF status, deleted_at ON domains FOR EACH ROW
    WHEN ((OLD.status = 'verified' AND OLD.deleted_at IS NULL) <> (NEW.status = 'verified' AND NEW.deleted_at IS NULL)) EXECUTE FUNCTION note_domain();

-- What this installation has, or is about to have, in its DNS zone: the ledger of records.
-- A row is written before the provider is called; what it shall be may change while that
-- goes on, which the version tells.
CREATE TABLE dns_records (
    zone        text NOT NULL,
    name        text NOT NULL, -- relative to the zone
    type        text NOT NULL CHECK (type IN ('A', 'AAAA', 'CNAME', 'TXT')),
    ttl         integer NOT NULL CHECK (ttl >= 60),
    content     text[] NOT NULL, -- what it shall say
    sent        text[] NOT NULL DEFAULT '{}', -- all that the provider may have of it
    owner       text NOT NULL CHECK (owner IN ('edges', 'sites', 'site', 'challenge')),
    state       text NOT NULL CHECK (state IN ('intended', 'created', 'releasing', 'released')),
    version     bigint NOT NULL DEFAULT 1,
    made        boolean NOT NULL DEFAULT false, -- the provider confirmed it once, and no deletion since
    tries       integer NOT NULL DEFAULT 0, -- since the provider last confirmed what was asked
    error       text NOT NULL DEFAULT '',
    next_try    timestamptz NOT NULL DEFAULT now(),
    taken_until timestamptz, -- whoever applies it has it to itself until then
    applied_at  timestamptz,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (zone, name, type)
);
CREATE INDEX dns_records_due ON dns_records (next_try) WHERE state IN ('intended', 'releasing');
CREATE INDEX dns_records_live ON dns_records (owner, zone, name, type) WHERE state <> 'released';
CREATE INDEX dns_records_sent ON dns_records USING gin (sent) WHERE sent <> '{}';

-- All edges are read with each look at the zone.
CREATE INDEX servers_edges ON servers (server_id) WHERE role = 'edge';

-- Addresses that left the records, and until when resolvers may still have them: until then
-- they are not given back to the provider, whose next customer would get our callers.
CREATE TABLE dns_departures (
    address text PRIMARY KEY,
    until   timestamptz NOT NULL
);
