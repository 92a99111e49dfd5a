-- +goose Up

-- Edges end the callers' TLS on every port but 80, whatever the instances speak: a route with
-- the protocol http needs a certificate there, too.
DROP TRIGGER routes_certificate ON routes;
CREATE TRIGGER routes_certificate AFTER INSERT ON routes FOR EACH ROW
    WHEN (NEW.hostname <> '' AND NEW.listen_port <> 80) EXECUTE FUNCTION note_certificate_name();

-- Which ports edges open, besides the two that all have.
CREATE INDEX routes_public_ports ON routes (listen_port) WHERE deleted_at IS NULL AND listen_port NOT IN (80, 443);
