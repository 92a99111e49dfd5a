-- +goose Up

-- Whether a caller named the backup of a restore. One that was chosen gives way to the next older backup if it turns
-- out to be missing or unreadable.
ALTER TABLE restore_jobs ADD COLUMN named boolean NOT NULL DEFAULT false;
ALTER TABLE volume_restores ADD COLUMN named boolean NOT NULL DEFAULT false;
