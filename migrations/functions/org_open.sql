-- org_open counts what has no counters. Of open or running work there is never more than the limit, and a lease ends and
-- an hour passes without a change of a row. Servers are few; money also changes with the provider's prices.
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
    WHEN 'max_servers' THEN
        SELECT count(*) INTO n FROM counted_tenants t WHERE t.org_id = p_org AND t.policy = 'one_tenant_one_server';
    WHEN 'max_monthly_euros' THEN
        SELECT (org_priced_cents(p_org) + COALESCE(sum(t.own_server_cents), 0))::float8 / 100 INTO n
        FROM counted_tenants t WHERE t.org_id = p_org AND t.policy = 'one_tenant_one_server';
    END CASE; -- another one is an error: nothing that is not counted may be taken
    RETURN n;
END $$;
