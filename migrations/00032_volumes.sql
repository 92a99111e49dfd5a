-- +goose Up

-- What workflows do to volumes and addresses on hosts is audited like other commands.
ALTER TABLE agent_command_audit DROP CONSTRAINT agent_command_audit_command_kind_check;
ALTER TABLE agent_command_audit ADD CONSTRAINT agent_command_audit_command_kind_check
    CHECK (command_kind IN ('bench', 'mariadb', 'redis-cli', 'bootstrap', 'volume', 'address'));

-- Volumes of a server are counted for every placement.
CREATE INDEX volume_attachments_by_server ON volume_attachments (server_id) WHERE server_id IS NOT NULL;

-- A volume grows: what it is at the provider, and what its file system was last grown to,
-- follow its size.
ALTER TABLE volumes ADD COLUMN made_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE volumes ADD COLUMN grown_bytes bigint NOT NULL DEFAULT 0;
UPDATE volumes SET made_bytes = size_bytes, grown_bytes = size_bytes WHERE provider_id IS NOT NULL;
CREATE INDEX volumes_growing ON volumes (updated_at) WHERE deleted_at IS NULL AND status = 'ready' AND grown_bytes < size_bytes;
