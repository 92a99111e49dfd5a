-- +goose Up

-- Whose last backup failed is asked each time somebody looks at what needs attention; few rows are.
CREATE INDEX backups_failed ON backups (finished_at) WHERE state = 'failed';
