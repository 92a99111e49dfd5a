-- +goose Up
-- Who closed a server to newcomers, and why. cordoned_at is set while anybody keeps it closed:
-- an operator, then cordoned_by says who, or the control plane itself, then closing is set: a
-- fleet that is about to remove the server, or an image that is verified there. Opening it for
-- the one leaves it closed for the other. No table is rewritten; the rows of the UPDATE are the few
-- servers that are being removed.
ALTER TABLE servers
    ADD COLUMN cordoned_by   text,
    ADD COLUMN cordon_reason text,
    ADD COLUMN closing       boolean NOT NULL DEFAULT false;
UPDATE servers SET closing = true WHERE cordoned_at IS NOT NULL AND status <> 'terminated';
