-- For columns that no caller may change: a running server's tags and a tenant's constraint (placement-pools, "Are
-- Placement Pools dynamic?").
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is fixed', TG_ARGV[0], TG_TABLE_NAME USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
