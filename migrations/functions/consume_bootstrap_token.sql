-- consume_bootstrap_token exchanges a server's bootstrap token, once, and binds the server to a key. One conditional
-- UPDATE decides who consumes it: hash, expiry, state and source address are its conditions, so exactly one
-- concurrent caller succeeds. The token is locked before the server, as a release does. The row may change between
-- the two UPDATEs: the conditions are checked again under its lock, and the token is given back when they no longer
-- hold. No row means that the token can't be consumed.
CREATE OR REPLACE FUNCTION consume_bootstrap_token(p_hash bytea, p_key bytea, p_server text, p_source text, p_version text, p_boot text, p_tags text[],
    p_audit text, p_short_key text)
RETURNS TABLE (attempt integer, host text, ipv6 text, status text)
LANGUAGE plpgsql AS $$
DECLARE
    v_token text;
    v_tags text[];
    v_workflow text;
BEGIN
    UPDATE server_bootstrap_tokens t SET consumed_at = now(), consumed_key = p_key
    FROM servers s
    WHERE t.token_hash = p_hash AND t.server_id = p_server
      AND t.consumed_at IS NULL AND t.superseded_at IS NULL AND t.expires_at > now()
      AND s.server_id = t.server_id AND s.status = 'provisioning' AND s.attempt = t.attempt
      AND (p_source = '' OR s.host = p_source OR (s.ipv6 <> '' AND p_source::inet <<= s.ipv6::inet))
    RETURNING t.token_id, t.attempt, s.host, s.ipv6, s.status INTO v_token, attempt, host, ipv6, status;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE servers s SET agent_first_seen_at = now(), agent_key_sha256 = p_key, agent_version = p_version, agent_boot_id = p_boot,
        identity_revoked_at = NULL, agent_tags = p_tags, running_at = COALESCE(s.running_at, now()), updated_at = now()
    WHERE s.server_id = p_server AND s.status = 'provisioning' AND s.attempt = consume_bootstrap_token.attempt
    RETURNING s.tags, s.workflow_id INTO v_tags, v_workflow;
    IF NOT FOUND THEN
        UPDATE server_bootstrap_tokens t SET consumed_at = NULL, consumed_key = NULL WHERE t.token_id = v_token;
        RETURN;
    END IF;
    UPDATE server_bootstrap_tokens t SET superseded_at = now()
    WHERE t.server_id = p_server AND t.token_id <> v_token AND t.consumed_at IS NULL AND t.superseded_at IS NULL;
    INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor, started_at, finished_at, exit_code, duration_ms)
    VALUES (p_audit, p_server, v_workflow, 'bootstrap', 'consume token_id=' || v_token || ' key=' || p_short_key, 'system', now(), now(), 0, 0);
    INSERT INTO events (kind, id, step, attempt, status, message, actor, dedup_key)
    VALUES ('server', p_server, 'handshake', attempt, status, 'agent ' || p_version, 'system', 'handshake/' || attempt)
    ON CONFLICT (kind, id, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING;
    IF NOT (v_tags @> p_tags AND p_tags @> v_tags) THEN
        INSERT INTO events (kind, id, step, attempt, status, message, actor, dedup_key)
        VALUES ('server', p_server, 'agent_tags_differ', attempt, status, 'the agent says ' || COALESCE(NULLIF(array_to_string(p_tags, ', '), ''), 'none')
            || '; the server was asked for with ' || COALESCE(NULLIF(array_to_string(v_tags, ', '), ''), 'none'), 'system', 'agent_tags_differ/' || attempt)
        ON CONFLICT (kind, id, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING;
    END IF;
    RETURN NEXT;
END
$$;
