package world

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/migrations"
)

// The clock of SQL. It exists before the migrations run, so that column defaults and functions use it, and in a schema
// that is searched before pg_catalog. A session sets the time; without that, it is the real time. Randomness comes from
// a sequence. Open transactions are this database's only: others in the cluster are not of the play.
const sqlClock = `
CREATE SEQUENCE world_draws;
CREATE FUNCTION now() RETURNS timestamptz LANGUAGE sql STABLE AS
	$$ SELECT COALESCE(NULLIF(current_setting('world.tx', true), '')::timestamptz, pg_catalog.now()) $$;
CREATE FUNCTION transaction_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT public.now() $$;
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
	$$ SELECT COALESCE(NULLIF(current_setting('world.now', true), '')::timestamptz, pg_catalog.clock_timestamp()) $$;
CREATE FUNCTION statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
	$$ SELECT COALESCE(NULLIF(current_setting('world.now', true), '')::timestamptz, pg_catalog.statement_timestamp()) $$;
CREATE FUNCTION random() RETURNS float8 LANGUAGE sql VOLATILE AS
	$$ SELECT ('x' || substr(md5('r' || nextval('public.world_draws')), 1, 8))::bit(32)::bigint / 4294967296.0::float8 $$;
CREATE FUNCTION gen_random_uuid() RETURNS uuid LANGUAGE sql VOLATILE AS $$
SELECT md5('u' || nextval('public.world_draws'))::uuid $$;
CREATE FUNCTION pg_current_snapshot() RETURNS pg_snapshot LANGUAGE sql AS $$
	SELECT pg_stat_clear_snapshot();
	SELECT (LEAST(top, min(mine)) || ':' || top || ':' || COALESCE(string_agg(mine::text, ','
	ORDER BY mine) FILTER (WHERE mine < top), ''))::pg_snapshot
	FROM (SELECT pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS top) s
		LEFT JOIN (SELECT backend_xid::text::bigint AS mine, datid FROM pg_stat_get_activity(NULL)
		WHERE backend_xid IS NOT NULL AND backend_type = 'client backend') a
		ON datid = (SELECT oid FROM pg_database WHERE datname = current_database())
	GROUP BY top $$;
CREATE FUNCTION planted(bug text) RETURNS boolean LANGUAGE sql STABLE AS $$
SELECT COALESCE(current_setting('world.bug', true) = bug, false) $$;`

// sqlReset brings a database back to its state after the migrations, except what Postgres has learned of it. A separate
// schema keeps the content of that moment.
const sqlReset = `
CREATE SCHEMA world_kept;
DO $$
DECLARE t record; filled boolean;
BEGIN
	FOR t IN SELECT c.oid::regclass AS id, c.relname AS name FROM pg_class c WHERE c.relkind = 'r'
	AND c.relnamespace = 'public'::regnamespace LOOP
		EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', t.id);
		EXECUTE format('SELECT EXISTS (SELECT FROM %s)', t.id) INTO filled;
		IF filled THEN
			EXECUTE format('CREATE TABLE world_kept.%I AS TABLE %s', t.name, t.id);
		END IF;
	END LOOP;
	CREATE TABLE world_kept.world_sequences AS SELECT sequencename AS name, last_value AS reached FROM pg_sequences
	WHERE schemaname = 'public';
END $$;
CREATE FUNCTION world_kept.fill(source regnamespace) RETURNS void LANGUAGE plpgsql
SET session_replication_role = replica AS $$
DECLARE t record; filled boolean; names text;
BEGIN
	FOR t IN SELECT c.oid::regclass AS id, k.oid::regclass AS kept, k.oid AS kept_id FROM pg_class c
	LEFT JOIN pg_class k ON k.relname = c.relname AND k.relnamespace = source
		WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace LOOP
		EXECUTE format('SELECT EXISTS (SELECT FROM %s)', t.id) INTO filled;
		IF filled THEN
			EXECUTE format('DELETE FROM %s', t.id);
		END IF;
		IF t.kept IS NOT NULL THEN
			SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO names FROM pg_attribute
			WHERE attrelid = t.id AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
			EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s',
				t.id, names, names, t.kept);
		END IF;
	END LOOP;
END $$;
CREATE FUNCTION world_kept.reset() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM world_kept.fill('world_kept');
	PERFORM setval(format('public.%I', name)::regclass, COALESCE(reached, 1), reached IS NOT NULL)
	FROM world_kept.world_sequences;
	DROP SCHEMA IF EXISTS world_base CASCADE;
END $$;
-- A base backup, and the restore of it, except for the world's dice and for events, which the redo log does not have.
CREATE FUNCTION world_kept.back_up() RETURNS void LANGUAGE plpgsql AS $$
DECLARE t text;
BEGIN
	CREATE SCHEMA world_base;
	FOR t IN SELECT relname FROM pg_class
	WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'events' ORDER BY 1 LOOP
		EXECUTE format('CREATE TABLE world_base.%I AS TABLE public.%1$I', t);
	END LOOP;
	CREATE TABLE world_base.world_sequences AS SELECT sequencename AS name, last_value AS reached FROM pg_sequences
	WHERE schemaname = 'public' AND sequencename NOT IN ('world_draws', 'events_seq_seq');
END $$;
CREATE FUNCTION world_kept.restore() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	CREATE TABLE world_base.events AS TABLE public.events;
	PERFORM world_kept.fill('world_base');
	PERFORM setval(format('public.%I', name)::regclass, COALESCE(reached, 1), reached IS NOT NULL)
	FROM world_base.world_sequences;
END $$;`

// settings of each database: generic plans, since planning is most of what short statements
// cost.
var settings = []string{
	"search_path = public, pg_catalog", "deadlock_timeout = '20ms'",
	"plan_cache_mode = force_generic_plan", "jit = off",
}

// template is made once per cluster.
var template struct {
	sync.Once
	err   error
	admin string
	name  string
	next  atomic.Int64

	mu     sync.Mutex
	places []*place // that no play uses
}

// place is a database with sessions, where one play takes place after another.
type place struct {
	url    string
	bridge *bridge
	plays  int
}

func onURL(base, database string) string {
	u, err := url.Parse(base)
	if err != nil {
		panic("world: " + err.Error())
	}
	u.Path = "/" + database
	return u.String()
}

func admin(base string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, base)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// makeTemplate makes a migrated database whose clock is the world's.
func makeTemplate(t testing.TB) {
	t.Helper()
	template.Do(func() {
		template.admin = onURL(pgtest.URL(t), "postgres")
		sum := sha256.Sum256([]byte(migrations.Hash() + sqlClock + sqlReset + sqlAsks() + strings.Join(settings, ";")))
		template.name = "world_" + hex.EncodeToString(sum[:8])
		template.err = func() error {
			if admin(onURL(template.admin, template.name), "SELECT 1") == nil {
				return nil
			}
			making := fmt.Sprintf("%s_%d", template.name, os.Getpid())
			if err := admin(template.admin,
				append([]string{"CREATE DATABASE " + making}, alter(making)...)...); err != nil {
				return err
			}
			u := onURL(template.admin, making)
			if err := admin(u, sqlClock); err != nil {
				return err
			}
			if err := migrations.Up(context.Background(), u); err != nil {
				return err
			}
			if err := admin(u, sqlReset); err != nil {
				return err
			}
			if err := watchDatabase(context.Background(), u); err != nil {
				return err
			}
			err := admin(template.admin, "ALTER DATABASE "+making+" RENAME TO "+template.name)
			if err != nil && (strings.Contains(err.Error(), "already exists") ||
				strings.Contains(err.Error(), "duplicate key")) {
				return nil // another process was first
			}
			return err
		}()
	})
	if template.err != nil {
		t.Fatalf("world: template: %v", template.err)
	}
}

// Bug is the active planted bug, of the bugs that the program was built with (tools/planted.sh); "" for none. It is set
// before the first play.
var Bug string

// alter sets the settings of a database, which are not cloned.
func alter(name string) []string {
	out := []string{"ALTER DATABASE " + name + " SET world.bug = '" + Bug + "'"}
	for _, s := range settings {
		out = append(out, "ALTER DATABASE "+name+" SET "+s)
	}
	return out
}

// takePlace returns a place as it is after the migrations, until it is given back.
func takePlace(t testing.TB) *place {
	t.Helper()
	makeTemplate(t)
	p, err := func() (*place, error) {
		template.mu.Lock()
		defer template.mu.Unlock()
		if n := len(template.places); n > 0 {
			p := template.places[n-1]
			template.places = template.places[:n-1]
			return p, p.reset()
		}
		name := fmt.Sprintf("%s_%d_%d", template.name, os.Getpid(), template.next.Add(1))
		if err := admin(template.admin, append([]string{"CREATE DATABASE " + name + " TEMPLATE " + template.name +
			" STRATEGY FILE_COPY"}, alter(name)...)...); err != nil {
			return nil, err
		}
		p := &place{url: onURL(template.admin, name)}
		var err error
		p.bridge, err = newBridge(context.Background(), p.url) // until the process ends
		return p, err
	}()
	if err != nil {
		t.Fatalf("world: database: %v", err)
	}
	return p
}

// giveBack lets another play have the place. A test that plays a seed forty times to shorten it
// would use up Postgres's connections otherwise.
func (p *place) giveBack() {
	template.mu.Lock()
	defer template.mu.Unlock()
	template.places = append(template.places, p)
}

// reset is 5 to 10 ms, a clone is 40, and its sessions would know nothing.
func (p *place) reset() error {
	if p.plays++; p.plays%32 == 0 {
		if err := admin(p.url, "VACUUM"); err != nil {
			return err
		}
	}
	return admin(p.url, "SELECT world_kept.reset()")
}
