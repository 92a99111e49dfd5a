-- +goose Up

-- Whether servers for waiting instances are created in a fleet.
ALTER TABLE fleets ADD COLUMN serves_workloads boolean NOT NULL DEFAULT false;
