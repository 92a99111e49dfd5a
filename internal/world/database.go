package world

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego/internal/pgtest"
	"github.com/prego/prego/migrations"
)

// The clock of SQL. It is there before the migrations run, so that column defaults and
// functions mean it, and in a schema that is searched before pg_catalog. A session says what
// time it is; without that, it is the real time. Randomness comes from a sequence.
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
CREATE FUNCTION gen_random_uuid() RETURNS uuid LANGUAGE sql VOLATILE AS $$ SELECT md5('u' || nextval('public.world_draws'))::uuid $$;`

// template is made once per test binary.
var template struct {
	sync.Once
	err   error
	admin string
	name  string
	next  atomic.Int64
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
		template.name = "world_" + migrations.Hash() + fmt.Sprint(time.Now().UnixNano())
		u := onURL(template.admin, template.name)
		template.err = func() error {
			if err := admin(template.admin, "CREATE DATABASE "+template.name, "ALTER DATABASE "+template.name+" SET search_path = public, pg_catalog",
				"ALTER DATABASE "+template.name+" SET deadlock_timeout = '20ms'"); err != nil {
				return err
			}
			if err := admin(u, sqlClock); err != nil {
				return err
			}
			return migrations.Up(context.Background(), u)
		}()
	})
	if template.err != nil {
		t.Fatalf("world: template: %v", template.err)
	}
}

// database is a clone, dropped when the test ends unless it failed.
func database(t testing.TB) string {
	t.Helper()
	makeTemplate(t)
	name := fmt.Sprintf("%s_%d", template.name, template.next.Add(1))
	// Settings of a database are not cloned.
	if err := admin(template.admin, "CREATE DATABASE "+name+" TEMPLATE "+template.name+" STRATEGY FILE_COPY", "ALTER DATABASE "+name+" SET search_path = public, pg_catalog",
		"ALTER DATABASE "+name+" SET deadlock_timeout = '20ms'"); err != nil {
		t.Fatalf("world: clone: %v", err)
	}
	t.Cleanup(func() { _ = admin(template.admin, "DROP DATABASE "+name+" WITH (FORCE)") })
	return onURL(template.admin, name)
}
