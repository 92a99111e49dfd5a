-- Whether a restore may choose a backup by itself: it is stored and not being deleted, its storage has it, and the last
-- attempt to restore it did not find it bad. Whatever picks the newest backup asks this.
CREATE OR REPLACE FUNCTION backup_is_usable(p_state text, p_missing_at timestamptz, p_verify_message text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_state = 'stored' AND p_missing_at IS NULL AND p_verify_message = ''
$$;
