-- org_open counts open or running work. It has no counters: a lease ends and an hour passes without a change of a
-- row, and there is never more of it than the limit.
CREATE OR REPLACE FUNCTION org_open(p_org text, p_dimension text) RETURNS float8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    n float8;
BEGIN
    CASE p_dimension
    WHEN 'max_snapshots_per_volume' THEN
        SELECT COALESCE(max(s.n), 0) INTO n FROM (SELECT count(*) AS n FROM snapshots WHERE org_id = p_org AND status IN ('queued', 'running') GROUP BY tenant_id) s;
    WHEN 'max_log_streams' THEN
        SELECT count(*) INTO n FROM org_sessions s WHERE s.org_id = p_org AND s.kind = 'logs' AND s.closed_at IS NULL AND s.lease_until > now();
    WHEN 'max_exec_sessions' THEN
        SELECT count(*) INTO n FROM org_sessions s WHERE s.org_id = p_org AND s.kind = 'exec' AND s.closed_at IS NULL AND s.lease_until > now();
    WHEN 'max_exec_sessions_per_hour' THEN
        SELECT count(*) INTO n FROM org_sessions s WHERE s.org_id = p_org AND s.kind = 'exec' AND s.opened_at > now() - interval '1 hour';
    END CASE; -- another one is an error: nothing that is not counted may be taken
    RETURN n;
END $$;
