-- assign_placement_group gives a server a place in the first group named "<prefix>-<n>",
-- n up to p_groups, that has fewer than p_size members and is not excluded, and returns its
-- name, or '' when every one is full. A server keeps the place that it has. An advisory
-- lock per prefix makes callers choose one at a time; each statement here sees what the
-- caller before it committed.
CREATE OR REPLACE FUNCTION assign_placement_group(p_server text, p_prefix text, p_size integer, p_groups integer, p_exclude text[]) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    chosen text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('placement-groups/' || p_prefix, 0));
    SELECT group_name INTO chosen FROM placement_group_members WHERE server_id = p_server AND group_name <> ALL (p_exclude);
    IF FOUND THEN
        RETURN chosen;
    END IF;
    SELECT g.name INTO chosen FROM (SELECT p_prefix || '-' || n AS name, n FROM generate_series(1, p_groups) n) g
    LEFT JOIN placement_group_members m ON m.group_name = g.name
    WHERE g.name <> ALL (p_exclude)
    GROUP BY g.name, g.n HAVING count(m.server_id) < p_size
    ORDER BY g.n LIMIT 1;
    IF NOT FOUND THEN
        DELETE FROM placement_group_members WHERE server_id = p_server;
        RETURN '';
    END IF;
    INSERT INTO placement_group_members (server_id, group_name) VALUES (p_server, chosen)
    ON CONFLICT (server_id) DO UPDATE SET group_name = EXCLUDED.group_name;
    RETURN chosen;
END
$$;
