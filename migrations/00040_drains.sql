-- +goose Up
-- What empties a server: a drain, and a reboot or a replacement that begins with one. The
-- row is what the run follows, and what it can be started again from.
CREATE TABLE server_drains (
    server_id           text        NOT NULL REFERENCES servers (server_id),
    number              integer     NOT NULL, -- of the server's, from 1
    kind                text        NOT NULL CHECK (kind IN ('drain', 'reboot', 'replace')),
    -- making: its replacement is being made; waiting: for others of its fleet; finishing: it is empty, and is rebooted or
    -- deleted.
    status              text        NOT NULL CHECK (status IN ('making', 'waiting', 'moving', 'finishing', 'done', 'failed', 'cancelled')),
    reason              text        NOT NULL DEFAULT '', -- of a drain that waits or failed
    message             text        NOT NULL DEFAULT '',
    why                 text        NOT NULL DEFAULT '', -- as the caller gave it
    requested_by        text        NOT NULL,
    keep_tenants        boolean     NOT NULL DEFAULT false, -- tenants stay; only instances move
    was_open            boolean     NOT NULL, -- it was not cordoned before
    by_fleet            boolean     NOT NULL DEFAULT false, -- its fleet is about to remove it
    deadline_at         timestamptz, -- for moving; NULL: it waits for as long as it takes
    total               integer     NOT NULL DEFAULT 0, -- instances to be moved, as far as they were seen
    left_now            integer     NOT NULL DEFAULT 0, -- of them, those that are still there
    left_dns            boolean     NOT NULL DEFAULT false, -- an edge: no resolver has its addresses any more
    replacement_id      text        REFERENCES servers (server_id),
    boot_id             text, -- of the host before its reboot
    acted_at            timestamptz, -- when the provider was asked last to reboot it
    cancel_requested_at timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz, -- moving began
    finished_at         timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (server_id, number),
    CHECK ((finished_at IS NULL) = (status IN ('making', 'waiting', 'moving', 'finishing')))
);
CREATE UNIQUE INDEX server_drains_open ON server_drains (server_id) WHERE finished_at IS NULL;

-- An instance that its server's drain has given up to its group: it is replaced elsewhere, and
-- then stops. No table is rewritten.
ALTER TABLE instances ADD COLUMN leaving boolean NOT NULL DEFAULT false;
CREATE INDEX instances_leaving ON instances (org_id) WHERE leaving AND state <> 'stopped';
