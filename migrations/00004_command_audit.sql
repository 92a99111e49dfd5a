-- +goose Up

-- Who asked, where that was a person.
ALTER TABLE agent_command_audit ADD COLUMN requested_by text NOT NULL DEFAULT '';
CREATE INDEX agent_command_audit_listing ON agent_command_audit (server_id, requested_at DESC, audit_id DESC);
DROP INDEX idx_audit_server;
