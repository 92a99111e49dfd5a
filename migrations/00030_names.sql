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
    failures      integer NOT NULL DEFAULT 0, -- looks in a row that did not find the TXT record
    checked_at    timestamptz,
    next_check    timestamptz DEFAULT now(), -- NULL: not looked for any longer
    verified_at   timestamptz,
    missing_since timestamptz, -- since when a verified name has no TXT record
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

-- What this installation has, or is about to have, in its DNS zone: the ledger of records.
-- A row is written before the provider is called; what it shall be may change while that
-- goes on, which the version tells.
CREATE TABLE dns_records (
    zone        text NOT NULL,
    name        text NOT NULL, -- relative to the zone
    type        text NOT NULL CHECK (type IN ('A', 'AAAA', 'CNAME', 'TXT')),
    ttl         integer NOT NULL CHECK (ttl >= 60),
    content     text[] NOT NULL,
    owner       text NOT NULL CHECK (owner IN ('edges', 'sites', 'site', 'challenge')),
    state       text NOT NULL CHECK (state IN ('intended', 'created', 'releasing', 'released')),
    version     bigint NOT NULL DEFAULT 1,
    urgent      boolean NOT NULL DEFAULT false, -- an address leaves, or somebody waits
    failures    integer NOT NULL DEFAULT 0,
    error       text NOT NULL DEFAULT '',
    next_try    timestamptz NOT NULL DEFAULT now(),
    taken_until timestamptz, -- whoever applies it has it to itself until then
    applied_at  timestamptz,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (zone, name, type)
);
CREATE INDEX dns_records_due ON dns_records (urgent DESC, next_try) WHERE state IN ('intended', 'releasing');
CREATE INDEX dns_records_contents ON dns_records USING gin (content) WHERE state <> 'released';
