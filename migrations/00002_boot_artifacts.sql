-- +goose Up

-- Second boot stages, by content: hosts fetch them with their bootstrap token and
-- check the digest that their user_data pins. They hold no secret.
CREATE TABLE boot_artifacts (
    sha256     bytea PRIMARY KEY,
    content    bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
