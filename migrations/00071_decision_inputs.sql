-- +goose Up

-- What placement decisions were made on, so that any of them can be replayed. A journal is of one
-- process: its first row (first = 0) is the state of the snapshot, the others are the changes and the
-- decisions since, in their order. A decision names its journal and event (decision_log ->> 'input').
CREATE TABLE decision_inputs (
    journal    text NOT NULL,
    first      bigint NOT NULL CHECK (first >= 0), -- number of its first event
    events     integer NOT NULL CHECK (events > 0),
    body       bytea NOT NULL, -- zstd of a JSON array
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (journal, first)
);
-- It is compressed already.
ALTER TABLE decision_inputs ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX decision_inputs_age ON decision_inputs (created_at);
