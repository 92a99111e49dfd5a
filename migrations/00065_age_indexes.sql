-- +goose NO TRANSACTION
-- +goose Up

-- By age, for pruning. Built beside the writers of these tables, which can be large: none of
-- them waits. What an interrupted build left behind is built anew.
DROP INDEX CONCURRENTLY IF EXISTS instances_stopped;
CREATE INDEX CONCURRENTLY instances_stopped ON instances (stopped_at) WHERE state = 'stopped';
DROP INDEX CONCURRENTLY IF EXISTS agent_command_audit_age;
CREATE INDEX CONCURRENTLY agent_command_audit_age ON agent_command_audit (requested_at);
DROP INDEX CONCURRENTLY IF EXISTS idempotency_keys_age;
CREATE INDEX CONCURRENTLY idempotency_keys_age ON idempotency_keys (created_at);
DROP INDEX CONCURRENTLY IF EXISTS org_idempotency_keys_age;
CREATE INDEX CONCURRENTLY org_idempotency_keys_age ON org_idempotency_keys (created_at);
