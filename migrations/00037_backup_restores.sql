-- +goose Up

-- A restore is of a snapshot on the host, or of a backup in object storage.
ALTER TABLE restore_jobs ALTER COLUMN snapshot_id DROP NOT NULL;
ALTER TABLE restore_jobs ADD COLUMN backup_id text REFERENCES backups (backup_id);
ALTER TABLE restore_jobs ADD CONSTRAINT restore_jobs_of_one CHECK ((snapshot_id IS NULL) <> (backup_id IS NULL));
CREATE INDEX restore_jobs_of_backup ON restore_jobs (backup_id) WHERE backup_id IS NOT NULL AND status IN ('queued', 'running');
