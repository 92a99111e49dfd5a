-- +goose Up

-- What providers asked for what they sell, since when and until when; written whenever their
-- price list is read and says something else. Amounts are net, in millionths of the currency.
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
    valid_to   timestamptz, -- NULL: in force
    PRIMARY KEY (provider, kind, type, location, valid_from)
);
CREATE UNIQUE INDEX provider_prices_in_force ON provider_prices (provider, kind, type, location) WHERE valid_to IS NULL;

-- How far each thing that is billed has been counted. hours are those that are counted since
-- started_at; the next one begins at started_at + hours. A thing that comes back is counted anew.
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

-- What was billed on a day (UTC), and whose it was then. Nothing here depends on rows that
-- may go, or on prices that may change.
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

-- By what a thing that no row owns is billed, and since when.
ALTER TABLE orphan_sightings
    ADD COLUMN type     text NOT NULL DEFAULT '',
    ADD COLUMN location text NOT NULL DEFAULT '',
    ADD COLUMN size_gb  double precision NOT NULL DEFAULT 0,
    ADD COLUMN made_at  timestamptz;
