-- +goose Up
-- Releases of the agent's program, which hosts fetch and try in rings. The document is signed by whoever
-- built it, with a key that the control plane has not.
CREATE TABLE agent_releases (
    version     text        PRIMARY KEY,
    serial      bigint      NOT NULL UNIQUE,
    sha256      text        NOT NULL,
    document    bytea       NOT NULL,
    signature   bytea       NOT NULL,
    rings       jsonb       NOT NULL,
    status      text        NOT NULL DEFAULT 'created' CHECK (status IN ('created', 'rolling', 'paused', 'stopped', 'done', 'cancelled')),
    reason      text        NOT NULL DEFAULT '',
    message     text        NOT NULL DEFAULT '',
    created_by  text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    started_at  timestamptz,
    finished_at timestamptz,
    updated_at  timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX agent_releases_open ON agent_releases ((true)) WHERE status IN ('rolling', 'paused', 'stopped');

CREATE TABLE agent_release_servers (
    version     text        NOT NULL REFERENCES agent_releases (version),
    server_id   text        NOT NULL REFERENCES servers (server_id),
    ring        integer     NOT NULL CHECK (ring >= 0),
    -- offered: its agent is told of the release; back: the host went back to the agent before; silent: it was not
    -- heard of in time.
    status      text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'offered', 'done', 'back', 'refused', 'silent', 'skipped')),
    message     text        NOT NULL DEFAULT '',
    offered_at  timestamptz,
    finished_at timestamptz,
    PRIMARY KEY (version, server_id)
);
CREATE INDEX agent_release_servers_offered ON agent_release_servers (server_id) WHERE status = 'offered';
