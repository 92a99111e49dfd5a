-- +goose Up

-- A booting instance is first started, then watched: started_at is when its container
-- ran, healthy_by until when it may become healthy. Nothing waits for it meanwhile.
ALTER TABLE instances
    ADD COLUMN started_at timestamptz,
    ADD COLUMN healthy_by timestamptz;

-- How far a server's agent has told of its containers: which stream of reports, and the
-- last of them that was written. A server without a row has an agent that tells nothing.
CREATE TABLE container_reports (
    server_id   text PRIMARY KEY REFERENCES servers (server_id),
    stream      text NOT NULL,
    seq         bigint NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
