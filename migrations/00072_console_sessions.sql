-- +goose Up
-- Who is logged in to the console, and one-time codes with which somebody can. Only hashes of
-- what browsers hold are here.
CREATE TABLE console_sessions (
    session_hash BYTEA PRIMARY KEY CHECK (octet_length(session_hash) = 32),
    subject TEXT NOT NULL,
    operator BOOLEAN NOT NULL,
    address TEXT NOT NULL DEFAULT '',
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    expires_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX console_sessions_expires ON console_sessions (expires_at);

CREATE TABLE console_logins (
    code_hash BYTEA PRIMARY KEY CHECK (octet_length(code_hash) = 32),
    subject TEXT NOT NULL,
    operator BOOLEAN NOT NULL,
    session_expires_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);
