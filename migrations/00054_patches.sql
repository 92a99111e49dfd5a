-- +goose Up

-- Which of Debian's security updates a host lacks, as its agent tells when that changes, and once a day. Defaults that are
-- constants: no table is rewritten.
ALTER TABLE servers
    ADD COLUMN patch_state   text NOT NULL DEFAULT 'unknown', -- pending: updates are missing; reboot: it runs code that was replaced
    ADD COLUMN patches       jsonb,
    ADD COLUMN patches_at    timestamptz, -- when it was told
    ADD COLUMN patches_since timestamptz; -- since when it is pending or reboot
ALTER TABLE servers ADD CONSTRAINT servers_patch_state_check CHECK (patch_state IN ('unknown', 'current', 'pending', 'reboot')) NOT VALID;

-- A server that is emptied, gets its security updates, and is rebooted if it needs that. Few rows: the checks are replaced at once.
ALTER TABLE server_drains DROP CONSTRAINT server_drains_kind_check;
ALTER TABLE server_drains ADD CONSTRAINT server_drains_kind_check CHECK (kind IN ('drain', 'reboot', 'replace', 'resize', 'patch'));
ALTER TABLE server_drains
    ADD COLUMN checked_at  timestamptz, -- of a patch: its host has told what is to be done, before anything moved
    ADD COLUMN to_patch    text NOT NULL DEFAULT '', -- and this is it; '' for nothing
    ADD COLUMN patching_at timestamptz, -- apt was told to install
    ADD COLUMN patched_at  timestamptz, -- and has done so
    ADD COLUMN patched     jsonb; -- what it installed
ALTER TABLE agent_command_audit DROP CONSTRAINT agent_command_audit_command_kind_check;
ALTER TABLE agent_command_audit ADD CONSTRAINT agent_command_audit_command_kind_check
    CHECK (command_kind IN ('bench', 'mariadb', 'redis-cli', 'bootstrap', 'volume', 'address', 'transfer', 'patch')) NOT VALID;
