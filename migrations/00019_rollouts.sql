-- +goose Up

-- How a group's instances are replaced, and how far that is. The defaults are those of
-- before, and what processes of the version before leave alone.
ALTER TABLE process_groups
    ADD COLUMN rollout_policy jsonb NOT NULL
        DEFAULT '{"max_surge": 1, "max_unavailable": 0, "progress_deadline_seconds": 600, "max_failures": 2, "auto_rollback": true}',
    ADD COLUMN surge_limit integer CHECK (surge_limit >= 0), -- what the org's quota leaves of max_surge; NULL: all
    ADD COLUMN deploy_reason text NOT NULL DEFAULT '',
    ADD COLUMN progress_at timestamptz NOT NULL DEFAULT now(), -- when an instance of the wanted release became healthy last, or its rollout began
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN last_rollout integer NOT NULL DEFAULT 0;
ALTER TABLE process_groups DROP CONSTRAINT process_groups_deploy_status_check;
ALTER TABLE process_groups ADD CONSTRAINT process_groups_deploy_status_check
    CHECK (deploy_status IN ('none', 'rolling', 'draining_first', 'stopping_first', 'succeeded', 'rolled_back', 'failed')) NOT VALID;
ALTER TABLE process_groups VALIDATE CONSTRAINT process_groups_deploy_status_check;

-- restarts: crashes of the instances in its place before it, in a row. retry_at: it
-- crashed, and its place is not filled before then; NULL once it was.
ALTER TABLE instances
    ADD COLUMN drain_until timestamptz, -- when it gets SIGTERM
    ADD COLUMN restarts integer NOT NULL DEFAULT 0,
    ADD COLUMN retry_at timestamptz;
CREATE INDEX instances_retry ON instances (group_id, retry_at) WHERE retry_at IS NOT NULL;

-- What a group's instances were replaced by, when, by whom, and what came of it. The last
-- few are kept.
CREATE TABLE rollouts (
    group_id   text NOT NULL REFERENCES process_groups (group_id),
    number     integer NOT NULL,
    release    integer NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('create', 'deploy', 'rollback', 'restart')),
    spec       jsonb NOT NULL,
    outcome    text NOT NULL DEFAULT 'under_way' CHECK (outcome IN ('under_way', 'succeeded', 'rolled_back', 'failed', 'superseded')),
    reason     text NOT NULL DEFAULT '' CHECK (reason IN ('', 'instance_failed', 'progress_deadline_exceeded')),
    message    text NOT NULL DEFAULT '',
    created_by text NOT NULL,
    request    text, -- who asked with which Idempotency-Key: the same request again is this rollout
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    PRIMARY KEY (group_id, number)
);
-- Of groups from before: the last good release, and the wanted one if it is another.
INSERT INTO rollouts (group_id, number, release, kind, spec, outcome, created_by, created_at, ended_at)
SELECT group_id, 1, stable_release, CASE stable_release WHEN 1 THEN 'create' ELSE 'deploy' END, stable_spec, 'succeeded', created_by, created_at, updated_at
FROM process_groups WHERE stable_release > 0 AND deleted_at IS NULL
UNION ALL
SELECT group_id, CASE stable_release WHEN 0 THEN 1 ELSE 2 END, release, CASE release WHEN 1 THEN 'create' ELSE 'deploy' END, spec, 'under_way', created_by, updated_at, NULL
FROM process_groups WHERE stable_release <> release AND deleted_at IS NULL;
UPDATE process_groups g SET last_rollout = (SELECT max(r.number) FROM rollouts r WHERE r.group_id = g.group_id) WHERE deleted_at IS NULL;
