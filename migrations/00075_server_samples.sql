-- +goose Up

-- What agents reported of their hosts, once in five minutes: heartbeats themselves overwrite one another
-- in servers. At 100,000 servers these are 29 million rows a day, so rows are narrow, there is one index, and time
-- comes first in it: new rows go to its end and old ones are deleted from its beginning, and a server's day is
-- 288 keys that are known. There is no reference to servers, which would lock each server's row.
CREATE TABLE server_samples (
    at               timestamptz NOT NULL, -- when the five minutes began
    server_id        text NOT NULL,
    load1            real,
    memory_pct       real,
    disk_pct         real,
    cpu_pct          real,
    worker_slots_pct real,
    db_disk_pct      real,
    redis_memory_pct real,
    PRIMARY KEY (at, server_id)
);
-- Each row is deleted a day later: what is deleted is made room for new rows in time.
ALTER TABLE server_samples SET (autovacuum_vacuum_scale_factor = 0.05);
