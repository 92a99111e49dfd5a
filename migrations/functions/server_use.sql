-- What would be lost or detached with a server: the tenants whose site, database or cache is there, or moves from or
-- to it, or whose site or database is left there after another server of theirs was lost, until they are restored; the
-- instances that are not stopped; and the attached volumes, also if the last instance has stopped, or lent to it for a
-- backup or a restore. A tenant with several of these on the server counts once.
CREATE OR REPLACE FUNCTION server_use(p_server text) RETURNS TABLE (tenants integer, instances integer, volumes integer) LANGUAGE sql STABLE AS $$
    SELECT (GREATEST(s.tenant_count, (SELECT sum(d.current_tenant_count) FROM db_shards d WHERE d.server_id = p_server),
            (SELECT sum(r.current_tenants) FROM redis_pools r WHERE r.server_id = p_server))
        + (SELECT count(*) FROM lost_data l WHERE l.server_id = p_server AND l.lost_with <> p_server
            AND s.status_reason <> 'server_missing'))::integer,
        (SELECT count(*) FROM instances i WHERE i.server_id = p_server AND i.state <> 'stopped')::integer,
        (SELECT count(*) FROM (SELECT a.volume_id FROM volume_attachments a WHERE a.server_id = p_server
            UNION SELECT v.volume_id FROM volumes v WHERE v.lent_to = p_server) v WHERE s.provider_server_id IS NOT NULL)::integer
    FROM servers s WHERE s.server_id = p_server
$$;
