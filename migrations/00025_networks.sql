-- +goose Up

-- Private networks at the provider. Servers in one reach each other by their private
-- addresses; there is no way from one to another. A provider's network lies in one network
-- zone and has room for so many servers, so a zone has as many as it takes, by ordinal.
CREATE TABLE networks (
    network_id          text PRIMARY KEY, -- <provider>-<zone>-<ordinal>
    infra_provider      text NOT NULL REFERENCES infra_providers (id),
    zone                text NOT NULL,
    ordinal             integer NOT NULL CHECK (ordinal >= 1),
    ip_range            cidr NOT NULL,
    provider_network_id text, -- NULL until it is made, and again when it is found to be gone
    -- servers that are in it, or are to be, and are not terminated
    members             integer NOT NULL DEFAULT 0 CHECK (members >= 0),
    full_at             timestamptz, -- when the provider refused one more server
    created_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (infra_provider, zone, ordinal)
);

ALTER TABLE servers
    ADD COLUMN network_id text REFERENCES networks (network_id),
    ADD COLUMN private_address inet, -- as the provider says it; NULL until it does
    ADD COLUMN agent_private_address inet; -- as the agent says it
CREATE INDEX servers_by_network ON servers (network_id) WHERE network_id IS NOT NULL;

-- The network in which a waiting tenant's missing servers are to be; NULL is any.
ALTER TABLE tenants ADD COLUMN waiting_network text;

ALTER TABLE resources DROP CONSTRAINT resources_kind_check;
ALTER TABLE resources ADD CONSTRAINT resources_kind_check
    CHECK (kind IN ('server', 'volume', 'primary_ip', 'firewall', 'placement_group', 'image', 'network'));

-- +goose StatementBegin
CREATE FUNCTION count_network_members() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.status <> 'terminated' THEN
        UPDATE networks SET members = members - 1 WHERE network_id = OLD.network_id;
    END IF;
    IF NEW.status <> 'terminated' THEN
        UPDATE networks SET members = members + 1 WHERE network_id = NEW.network_id;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER servers_join_network AFTER INSERT ON servers FOR EACH ROW WHEN (NEW.network_id IS NOT NULL) EXECUTE FUNCTION count_network_members();
CREATE TRIGGER servers_change_network AFTER UPDATE OF network_id, status ON servers FOR EACH ROW
    WHEN (OLD.network_id IS DISTINCT FROM NEW.network_id OR (OLD.status = 'terminated') <> (NEW.status = 'terminated'))
    EXECUTE FUNCTION count_network_members();

-- Placement follows what network a server is in once it is placed on.
CREATE TRIGGER servers_note_network BEFORE UPDATE OF network_id, private_address ON servers FOR EACH ROW
    WHEN (OLD.changed_xid = NEW.changed_xid AND NEW.status <> 'provisioning'
      AND (OLD.network_id IS DISTINCT FROM NEW.network_id OR OLD.private_address IS DISTINCT FROM NEW.private_address))
    EXECUTE FUNCTION note_change();
