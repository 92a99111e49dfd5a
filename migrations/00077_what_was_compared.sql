-- +goose Up

-- What the last comparison of a zone with the rows found: while too many records have no row none is
-- deleted, and somebody has to look.
CREATE TABLE dns_comparisons (
    zone          text PRIMARY KEY,
    compared_at   timestamptz NOT NULL,
    owned         integer NOT NULL,
    orphans       integer NOT NULL,
    breaker_since timestamptz -- NULL: it is closed
);

-- Since when the storage lacks a backup's objects although its row says that it is stored.
ALTER TABLE backups ADD COLUMN missing_at timestamptz;
CREATE INDEX backups_missing ON backups (missing_at) WHERE missing_at IS NOT NULL;
