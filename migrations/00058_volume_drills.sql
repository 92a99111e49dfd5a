-- +goose Up

-- A drill is of a tenant's or of a volume's newest backup. A volume's has no site: it is restored into a directory of the host's
-- own disk. Few rows: the checks and indexes are made at once.
ALTER TABLE drills ALTER COLUMN tenant_id DROP NOT NULL;
ALTER TABLE drills ALTER COLUMN pool_site_id SET DEFAULT '';
ALTER TABLE drills
    ADD COLUMN volume_id text REFERENCES volumes (volume_id),
    ADD COLUMN bytes     bigint NOT NULL DEFAULT 0; -- that were read again, of a volume's files
ALTER TABLE drills ADD CONSTRAINT drills_of_one CHECK (num_nonnulls(tenant_id, volume_id) = 1);
CREATE UNIQUE INDEX drills_of_volume_running ON drills (volume_id) WHERE volume_id IS NOT NULL AND state = 'running';
CREATE INDEX drills_by_volume ON drills (volume_id, created_at DESC) WHERE volume_id IS NOT NULL;

-- When a volume's turn to be drilled came last, and whether that failed, as in backup_turns.
ALTER TABLE volume_backup_turns
    ADD COLUMN drilled_at   timestamptz,
    ADD COLUMN drill_failed boolean NOT NULL DEFAULT false;

-- All backups of a tenant or of a volume are held. The unique constraint is what the version before names in ON CONFLICT.
ALTER TABLE backup_holds DROP CONSTRAINT backup_holds_pkey;
ALTER TABLE backup_holds ALTER COLUMN tenant_id DROP NOT NULL;
ALTER TABLE backup_holds
    ADD COLUMN volume_id text UNIQUE REFERENCES volumes (volume_id),
    ADD CONSTRAINT backup_holds_of_tenant UNIQUE (tenant_id),
    ADD CONSTRAINT backup_holds_of_one CHECK (num_nonnulls(tenant_id, volume_id) = 1);

-- A volume's row says when it was changed last, whoever changes it.
-- +goose StatementBegin
CREATE FUNCTION note_volume_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.updated_at := now(); RETURN NEW; END $$;
-- +goose StatementEnd
CREATE TRIGGER volumes_note_change BEFORE UPDATE ON volumes FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION note_volume_change();

-- How often a volume's last backup failed since it was to be deleted, and when it is tried again.
ALTER TABLE volumes
    ADD COLUMN last_backup_tries int NOT NULL DEFAULT 0,
    ADD COLUMN last_backup_at    timestamptz;
