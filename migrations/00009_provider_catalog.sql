-- +goose Up

-- What each provider said it sells: machine types, locations, images, prices. The
-- last good answer stays when the provider is away.
CREATE TABLE provider_catalogs (
    provider     text PRIMARY KEY REFERENCES infra_providers (id),
    document     jsonb,       -- NULL until it first said so
    refreshed_at timestamptz, -- when the document was read
    attempted_at timestamptz NOT NULL DEFAULT now(),
    failure      text NOT NULL DEFAULT '', -- of the last attempt; holds no secret
    CHECK ((document IS NULL) = (refreshed_at IS NULL))
);
