-- +goose Up
-- Tenants that a drain moves away: how many there were, as far as they were seen, and how many are still there.
ALTER TABLE server_drains ADD COLUMN tenants_total integer NOT NULL DEFAULT 0, ADD COLUMN tenants_left integer NOT NULL DEFAULT 0;
