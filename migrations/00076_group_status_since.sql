-- +goose Up

-- Since when a group has its status. What was refused by a quota waits from a time to come, so
-- waiting_since does not say how long it has been unschedulable. Statements don't have to think of it.
ALTER TABLE process_groups ADD COLUMN status_since timestamptz NOT NULL DEFAULT now();
UPDATE process_groups SET status_since = LEAST(COALESCE(waiting_since, updated_at), updated_at);

-- +goose StatementBegin
CREATE FUNCTION note_group_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.status_since := now();
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER process_groups_status_since BEFORE UPDATE OF status ON process_groups FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_group_status();
