-- +goose Up

-- By how many seconds a host's clock was ahead of the gateway's at the last heartbeat;
-- negative is behind, NULL is not known. Beyond the gateway's tolerance it is skewed:
-- tokens and certificates made here are refused there, or will be.
ALTER TABLE servers ADD COLUMN clock_ahead_seconds double precision;
ALTER TABLE servers ADD COLUMN clock_skewed boolean NOT NULL DEFAULT false;
