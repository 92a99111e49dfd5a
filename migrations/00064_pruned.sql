-- +goose Up

-- How far tables are pruned that only grow. through is of org_events: the newest that is
-- gone, so that who reads on from an older one can be told.
CREATE TABLE pruned (
    what    text PRIMARY KEY, -- the table
    through bigint NOT NULL DEFAULT 0,
    rows    bigint NOT NULL DEFAULT 0, -- that were ever deleted
    at      timestamptz NOT NULL DEFAULT now()
);
