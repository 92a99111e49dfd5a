-- +goose Up

-- Addresses of environments are floating: a server has one primary address only, and an edge
-- serves many environments. Primary ones that are there stay until they are released.
ALTER TABLE resources DROP CONSTRAINT resources_kind_check;
ALTER TABLE resources ADD CONSTRAINT resources_kind_check
    CHECK (kind IN ('server', 'volume', 'primary_ip', 'floating_ip', 'firewall', 'placement_group', 'image', 'network'));
ALTER TABLE ipv4_allocations ADD COLUMN kind text NOT NULL DEFAULT 'primary_ip' CHECK (kind IN ('primary_ip', 'floating_ip'));
ALTER TABLE ipv4_allocations ADD COLUMN server_id text REFERENCES servers (server_id); -- the edge that it is on, or on its way to
ALTER TABLE ipv4_allocations ADD COLUMN served_at timestamptz; -- since when that edge has it; NULL: not yet, or not any more
CREATE INDEX ipv4_allocations_by_server ON ipv4_allocations (server_id) WHERE server_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX ipv4_allocations_floating ON ipv4_allocations (allocation_id) WHERE kind = 'floating_ip' AND status = 'ready' AND deleted_at IS NULL;
