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

-- Golden images: snapshots at the provider that were booted once before servers are
-- made from them. The row is written before anything is made, and outlives it.
CREATE TABLE golden_images (
    image_id          text PRIMARY KEY, -- img-…
    provider          text NOT NULL REFERENCES infra_providers (id),
    region            text NOT NULL CHECK (region IN ('sg', 'eu', 'us')), -- where it is built; it can be used anywhere
    base_image        text NOT NULL, -- the provider's image that it is made from
    architecture      text NOT NULL CHECK (architecture IN ('x86', 'arm')),
    recipe_hash       text NOT NULL DEFAULT '', -- of all that the builder runs; '' until it begins
    agent_sha256      text NOT NULL DEFAULT '', -- of the agent that it was verified with
    stack_sha256      text NOT NULL DEFAULT '',
    containers        text[] NOT NULL DEFAULT '{}', -- container images that are in it
    status            text NOT NULL DEFAULT 'building' CHECK (status IN ('building', 'verifying', 'ready', 'failed', 'deleting', 'deleted')),
    reason            text NOT NULL DEFAULT '',
    message           text NOT NULL DEFAULT '', -- what it does now, or why it failed
    current           boolean NOT NULL DEFAULT false, -- new servers are made from it
    attempt           integer NOT NULL DEFAULT 0, -- builders asked for
    server_type       text NOT NULL DEFAULT '', -- of the builder
    location          text NOT NULL DEFAULT '',
    provider_image_id text,
    size_gb           double precision NOT NULL DEFAULT 0, -- what is billed
    disk_gb           double precision NOT NULL DEFAULT 0, -- the least disk that it fits on
    verify_server_id  text REFERENCES servers (server_id), -- the server that was booted from it
    created_by        text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    verified_at       timestamptz,
    deleted_at        timestamptz,
    CHECK (NOT current OR (status = 'ready' AND provider_image_id IS NOT NULL))
);
CREATE UNIQUE INDEX golden_images_current ON golden_images (provider, base_image, architecture) WHERE current;
CREATE UNIQUE INDEX golden_images_building ON golden_images (provider, base_image, architecture) WHERE status IN ('building', 'verifying');
CREATE UNIQUE INDEX golden_images_provider_id ON golden_images (provider, provider_image_id) WHERE status <> 'deleted';
CREATE INDEX golden_images_listing ON golden_images (created_at DESC, image_id DESC);

ALTER TABLE resources DROP CONSTRAINT resources_kind_check;
ALTER TABLE resources ADD CONSTRAINT resources_kind_check
    CHECK (kind IN ('server', 'volume', 'primary_ip', 'firewall', 'placement_group', 'image'));
