-- The volumes that a server has, or is about to have, with their groups ('' for none): attached or maybe attached
-- volumes, volumes of groups that run or start there, volumes lent to it for a backup or a restore, and the server's
-- own. The provider attaches at most 16.
CREATE OR REPLACE FUNCTION volumes_on(p_server text) RETURNS TABLE (group_id text, volume_id text) LANGUAGE sql STABLE AS $$
    SELECT a.group_id, a.volume_id FROM volume_attachments a WHERE a.server_id = p_server
    UNION SELECT a.group_id, a.volume_id FROM instances i JOIN volume_attachments a ON a.group_id = i.group_id AND a.deleted_at IS NULL
        WHERE i.server_id = p_server AND i.state <> 'stopped'
    UNION SELECT COALESCE((SELECT a.group_id FROM volume_attachments a WHERE a.volume_id = v.volume_id AND a.deleted_at IS NULL), ''), v.volume_id
        FROM volumes v WHERE v.lent_to = p_server
    UNION SELECT '', r.name FROM resources r WHERE r.server_id = p_server AND r.kind = 'volume' AND r.state <> 'released'
$$;
