-- +goose Up

-- Requests that were sent with an Idempotency-Key, and what they were answered. One
-- without status is under way until its lease ends: then its process died, and the same
-- request may run again. One with a status and no body is never answered twice.
CREATE TABLE request_keys (
    subject      text NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    leased_until timestamptz NOT NULL,
    status       int,
    body         bytea, -- holds no secret
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subject, key)
);
CREATE INDEX request_keys_age ON request_keys (created_at);
