-- +goose Up

-- What edges leave out of their document because their servers refuse it: a name, a certificate, a port. Everything
-- else of the document is served.
CREATE TABLE edge_left_out (
    server_id text NOT NULL REFERENCES edges (server_id) ON DELETE CASCADE,
    kind      text NOT NULL CHECK (kind IN ('host', 'challenge', 'certificate', 'tcp', 'passing')),
    name      text NOT NULL, -- of a host; the id of a certificate; an address and port
    tenant_id text NOT NULL DEFAULT '',
    route_id  text NOT NULL DEFAULT '',
    reason    text NOT NULL,
    since     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (server_id, kind, name, tenant_id, route_id)
);

-- Since when an edge refuses whole documents, however many there have been since.
ALTER TABLE edges ADD COLUMN refused_since timestamptz;
