-- +goose Up

-- Disk is a dimension of instances and of what servers offer to them, beside memory.
ALTER TABLE fleets ADD COLUMN workload_disk_bytes bigint NOT NULL DEFAULT 0 CHECK (workload_disk_bytes >= 0);
-- What the spec says, so that every writer of a spec writes it.
ALTER TABLE process_groups ADD COLUMN disk_request_bytes bigint NOT NULL GENERATED ALWAYS AS (COALESCE((spec ->> 'disk_request_bytes')::bigint, 0)) STORED;
ALTER TABLE instances ADD COLUMN disk_request_bytes bigint NOT NULL GENERATED ALWAYS AS (COALESCE((spec ->> 'disk_request_bytes')::bigint, 0)) STORED;

DROP INDEX instances_by_server;
CREATE INDEX instances_by_server ON instances (server_id) INCLUDE (memory_limit_bytes, cpu_request, disk_request_bytes, group_id) WHERE state <> 'stopped';
