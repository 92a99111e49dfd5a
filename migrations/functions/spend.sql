-- spend counts what a change costs a month and for how long it takes something out of service, in hundredths and seconds,
-- against the budgets of a credential and of all that it was narrowed from, which share theirs with it. It returns the
-- first budget that this would exceed, and then counts nothing. All rows are locked in one order; whoever is second reads
-- what the first has spent.
CREATE OR REPLACE FUNCTION spend(p_credential text, p_cents bigint, p_seconds bigint)
RETURNS TABLE (caveat text, most bigint, spent bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    chain text[];
BEGIN
    WITH RECURSIVE up AS (
        SELECT c.credential_id, c.parent_id FROM credentials c WHERE c.credential_id = p_credential
        UNION ALL SELECT p.credential_id, p.parent_id FROM credentials p JOIN up ON p.credential_id = up.parent_id
    ) SELECT array_agg(credential_id ORDER BY credential_id) INTO chain FROM up;
    INSERT INTO credential_spending (credential_id) SELECT id FROM unnest(chain) AS u (id) ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM FROM credential_spending s WHERE s.credential_id = ANY (chain) ORDER BY s.credential_id FOR UPDATE;
    RETURN QUERY
    SELECT b.caveat, b.most, b.spent FROM credential_spending s JOIN credentials c USING (credential_id)
    CROSS JOIN LATERAL (VALUES
        ('monthly_cents', (c.caveats ->> 'monthly_cents')::bigint, s.monthly_cents, p_cents),
        ('seconds_down', (c.caveats ->> 'seconds_down')::bigint, s.seconds_down, p_seconds)
    ) b (caveat, most, spent, wanted)
    WHERE s.credential_id = ANY (chain) AND b.wanted > 0 AND b.spent + b.wanted > b.most
    ORDER BY b.caveat, b.most - b.spent LIMIT 1;
    IF NOT FOUND THEN
        UPDATE credential_spending s SET monthly_cents = s.monthly_cents + p_cents, seconds_down = s.seconds_down + p_seconds
        WHERE s.credential_id = ANY (chain);
    END IF;
END $$;
