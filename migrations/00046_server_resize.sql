-- +goose Up

-- A server that is emptied and gets another type of the provider's. Few rows: the check is
-- replaced at once.
ALTER TABLE server_drains DROP CONSTRAINT server_drains_kind_check;
ALTER TABLE server_drains ADD CONSTRAINT server_drains_kind_check CHECK (kind IN ('drain', 'reboot', 'replace', 'resize'));
ALTER TABLE server_drains ADD COLUMN server_type text NOT NULL DEFAULT '', -- of a resize: what it is to be
    ADD COLUMN refused text NOT NULL DEFAULT ''; -- of a resize: why the provider does not do it
