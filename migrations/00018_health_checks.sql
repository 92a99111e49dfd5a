-- +goose Up

-- A health check has a kind, and its defaults. Before, it was a command, every 5 seconds
-- unless it said otherwise. What is stopped keeps what it was.
CREATE FUNCTION pg_temp.with_kind(spec jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN
    jsonb_set(spec, '{health}', jsonb_strip_nulls((spec -> 'health') - 'grace_seconds' || jsonb_build_object(
        'kind', 'command', 'timeout_seconds', 5, 'start_period_seconds', NULLIF(spec #> '{health,grace_seconds}', '0'),
        'interval_seconds', COALESCE(NULLIF(spec #> '{health,interval_seconds}', '0'), '5'), 'retries', COALESCE(NULLIF(spec #> '{health,retries}', '0'), '3'))));
UPDATE process_groups SET spec = pg_temp.with_kind(spec) WHERE spec ? 'health';
UPDATE process_groups SET stable_spec = pg_temp.with_kind(stable_spec) WHERE stable_spec ? 'health';
UPDATE instances SET spec = pg_temp.with_kind(spec) WHERE spec ? 'health' AND state <> 'stopped';
DROP FUNCTION pg_temp.with_kind(jsonb);
