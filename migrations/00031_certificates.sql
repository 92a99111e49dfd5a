-- +goose Up

-- The order in which what edges serve has changed: certificates and challenges take the
-- next number with each change, so that a reader sees whether there is something newer.
CREATE SEQUENCE certificate_changes;

-- Accounts at certificate authorities. The key is sealed under the master key.
CREATE TABLE acme_accounts (
    account_id  text PRIMARY KEY,
    directory   text NOT NULL,               -- URL of the authority's directory
    name        text NOT NULL,               -- which of the accounts there: PREGO_ACME_ACCOUNT
    contact     text NOT NULL DEFAULT '',
    location    text NOT NULL DEFAULT '',    -- the account's URL; '' until it is registered
    orders_url  text NOT NULL DEFAULT '',    -- where the authority lists its orders; '' if it doesn't
    sealed_key  bytea NOT NULL,
    key_id      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (directory, name)
);

-- A certificate is a set of names; what was issued last for them is in its row until it is
-- replaced. The key is sealed for those who hand it to edges.
CREATE TABLE certificates (
    certificate_id text PRIMARY KEY,         -- derived from the names
    names          text[] NOT NULL CHECK (cardinality(names) BETWEEN 1 AND 100),
    challenge      text NOT NULL CHECK (challenge IN ('dns-01', 'http-01')),
    org_id         text REFERENCES orgs (org_id),
    tenant_id      text,                     -- whose domain it is; NULL for sites' own names and routes
    status         text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'active', 'failed', 'retired')),
    reason         text NOT NULL DEFAULT '', -- why the last attempt failed, also of an active one
    message        text NOT NULL DEFAULT '',
    renews         boolean NOT NULL DEFAULT true, -- false: its names were lost, it is served until its end
    failures       int NOT NULL DEFAULT 0,   -- attempts that failed since the last success
    due_at         timestamptz,              -- when the next attempt begins; NULL: none does by itself
    version        bigint NOT NULL DEFAULT 0, -- counts what was issued
    directory      text NOT NULL DEFAULT '',
    serial         text NOT NULL DEFAULT '', -- hex
    issuer         text NOT NULL DEFAULT '',
    not_before     timestamptz,
    not_after      timestamptz,
    chain_pem      text NOT NULL DEFAULT '', -- leaf first
    sealed_key     bytea,
    key_id         text NOT NULL DEFAULT '',
    digest         text NOT NULL DEFAULT '', -- hex SHA-256 of the chain's PEM, whose leaf names the key
    ari_at         timestamptz,              -- when the authority is asked next when to renew
    ari_url        text NOT NULL DEFAULT '', -- its explanation of an early renewal
    issued_at      timestamptz,
    retired_at     timestamptz,
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    changed        bigint NOT NULL DEFAULT nextval('certificate_changes'),
    CHECK (status <> 'active' OR (sealed_key IS NOT NULL AND chain_pem <> '' AND not_after IS NOT NULL)),
    CHECK ((status = 'retired') = (retired_at IS NOT NULL))
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

-- What is asked of an authority. A row is written, with the key that is sealed and the
-- request that it signed, before the authority is asked.
CREATE TABLE acme_orders (
    order_id       text PRIMARY KEY,
    certificate_id text NOT NULL REFERENCES certificates (certificate_id) ON DELETE CASCADE,
    account_id     text NOT NULL REFERENCES acme_accounts (account_id),
    state          text NOT NULL DEFAULT 'intended' CHECK (state IN ('intended', 'pending', 'ready', 'processing', 'valid', 'failed')),
    location       text NOT NULL DEFAULT '', -- the order's URL; '' until the authority has it
    finalize_url   text NOT NULL DEFAULT '',
    replaces       text NOT NULL DEFAULT '', -- the certificate that it replaces, as RFC 9773 names it
    csr            bytea NOT NULL,
    sealed_key     bytea,                    -- NULL once it has ended
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

-- How a name is shown to be ours. The row is there before the answer can be seen, and until
-- it is known to be gone: removed_at.
CREATE TABLE acme_challenges (
    order_id    text NOT NULL REFERENCES acme_orders (order_id) ON DELETE CASCADE,
    authz_url   text NOT NULL,
    url         text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('dns-01', 'http-01')),
    name        text NOT NULL,               -- without the *. of a wildcard
    token       text NOT NULL,
    answer      text NOT NULL,               -- the body over HTTP, or the value of the TXT record
    served_at   timestamptz,                 -- when it was seen by us
    accepted_at timestamptz,                 -- when the authority was asked to look
    removed_at  timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    changed     bigint NOT NULL DEFAULT nextval('certificate_changes'),
    PRIMARY KEY (order_id, authz_url)
);
CREATE INDEX acme_challenges_changed ON acme_challenges (changed);
CREATE INDEX acme_challenges_live ON acme_challenges (order_id) WHERE removed_at IS NULL;

-- Token buckets of what an authority limits, as provider_budgets for the provider's
-- requests.
CREATE TABLE acme_budgets (
    bucket        text PRIMARY KEY,
    capacity      double precision NOT NULL,
    refill_per_s  double precision NOT NULL CHECK (refill_per_s > 0),
    tokens        double precision NOT NULL,
    refilled_at   timestamptz NOT NULL DEFAULT now(),
    blocked_until timestamptz
);

-- Names whose certificate may have to be made, lost or retired, since a domain or a route
-- changed. Whoever looks takes them out.
CREATE TABLE certificate_names_due (name text PRIMARY KEY);

-- +goose StatementBegin
CREATE FUNCTION note_certificate_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'domains' THEN INSERT INTO certificate_names_due VALUES (NEW.name) ON CONFLICT DO NOTHING;
    WHEN 'routes' THEN INSERT INTO certificate_names_due VALUES (NEW.hostname) ON CONFLICT DO NOTHING;
    END CASE;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER domains_certificate AFTER UPDATE OF status, points, deleted_at, tenant_id ON domains FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.points <> NEW.points OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL) OR OLD.tenant_id IS DISTINCT FROM NEW.tenant_id)
    EXECUTE FUNCTION note_certificate_name();
CREATE TRIGGER routes_certificate AFTER INSERT ON routes FOR EACH ROW
    WHEN (NEW.hostname <> '' AND NEW.protocol = 'https') EXECUTE FUNCTION note_certificate_name();
