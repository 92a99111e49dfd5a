-- The server for backups and restores of a volume: its present server, or else a server at its location that has room
-- for another volume and no dedicated tenant; NULL if there is none.
CREATE OR REPLACE FUNCTION volume_host(p_volume text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT COALESCE(
        (SELECT t.server_id FROM volume_attachments t WHERE t.volume_id = p_volume AND t.server_id IS NOT NULL AND t.deleted_at IS NULL),
        (SELECT v.lent_to FROM volumes v WHERE v.volume_id = p_volume),
        (SELECT c.server_id FROM (
             SELECT s.server_id, (SELECT count(DISTINCT o.volume_id) FROM volumes_on(s.server_id) o WHERE o.volume_id <> p_volume) AS has
             FROM volumes v JOIN servers s ON s.location = v.location AND s.infra_provider = v.provider AND s.region = v.region
             WHERE v.volume_id = p_volume AND s.role IN ('app', 'node') AND s.status = 'active' AND s.agent_status = 'connected' AND NOT s.closing AND NOT kept_for_tenants(s.server_id)) c
         WHERE c.has < 16 ORDER BY c.has, c.server_id LIMIT 1))
$$;
