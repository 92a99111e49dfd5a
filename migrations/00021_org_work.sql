-- +goose Up

-- The long work of orgs: what is under way, and what waits for its turn. An org has at
-- most so many steps under way, so that nobody else waits behind them.
CREATE TABLE org_work (
    work_id  text PRIMARY KEY, -- what is worked on: an instance, a snapshot, a restore
    org_id   text NOT NULL REFERENCES orgs (org_id),
    kind     text NOT NULL CHECK (kind IN ('start', 'snapshot', 'restore')),
    run      text NOT NULL, -- the workflow that is told when its turn comes
    seq      bigint GENERATED ALWAYS AS IDENTITY, -- the order of turns
    begun_at timestamptz, -- NULL while it waits
    until    timestamptz NOT NULL -- what has not ended or asked again by then is forgotten
);
CREATE INDEX org_work_by_org ON org_work (org_id, seq);
