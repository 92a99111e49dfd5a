-- +goose Up

-- When the servers of a fleet are patched by themselves: a cron expression of five fields, 'never', or '' for the environment's
-- window. Defaults that are constants: no table is rewritten.
ALTER TABLE fleets
    ADD COLUMN patch_schedule text NOT NULL DEFAULT '',
    ADD COLUMN patch_seconds  integer NOT NULL DEFAULT 0 CHECK (patch_seconds BETWEEN 0 AND 86400); -- how long that window is open

-- Servers that are patched together: those that one command named, or those of a fleet in one window. What came of each is in
-- its drain; a wave's row is what these have in common.
CREATE TABLE patch_waves (
    wave_id      text PRIMARY KEY,
    requested_by text NOT NULL,
    why          text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX patch_waves_newest ON patch_waves (created_at DESC, wave_id);
ALTER TABLE server_drains ADD COLUMN wave_id text REFERENCES patch_waves (wave_id);
CREATE INDEX server_drains_wave ON server_drains (wave_id) WHERE wave_id IS NOT NULL; -- few rows
