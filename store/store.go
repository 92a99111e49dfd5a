// Package store is Postgres: the truth about servers, tokens, resources and
// what happened to them. Every statement is a named constant, every write that
// races is one conditional statement, and times are the database's.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
)

// Store reads and writes one database. It is safe for concurrent use.
type Store struct {
	pool conns
	// tierLimits are the tiers' limits as Postgres reads them.
	tierLimits json.RawMessage
	// machines are the machine types to order, for the price of a tenant's own server.
	machines  server.Catalog
	newOrgs   prego.Tier
	workLimit int
	tries     chan struct{} // has an entry for each dry run
	past      atomic.Pointer[overviewPast]
}

// New makes a Store over a pool that the caller closes, with the limits that come with
// the program.
func New(pool *pgxpool.Pool) *Store {
	return NewWithTiers(pool, quota.DefaultTiers(), prego.TierFree)
}

// NewWithTiers is New with other limits, which are valid, and with the tier of orgs
// that ask for none.
func NewWithTiers(pool *pgxpool.Pool, tiers quota.Tiers, newOrgs prego.Tier) *Store {
	limits, err := json.Marshal(tiers)
	if err != nil {
		panic("store: valid tiers always marshal: " + err.Error())
	}
	// A dry run keeps a connection and needs another for views: dry runs that had all of them would wait for each
	// other.
	tries := make(chan struct{}, max(1, pool.Config().MaxConns/4))
	return &Store{pool: conns{pool}, tierLimits: limits, newOrgs: newOrgs, workLimit: defaultWorkLimit, tries: tries, machines: server.DefaultCatalog()}
}

// Orders sets the machine types that servers are ordered from, before the store is used.
func (s *Store) Orders(c server.Catalog) { s.machines = c }

// Open connects a pool of at most maxConns connections to the database's primary and checks it
// once. The URL may name several hosts (host1:5432,host2:5432): the host that takes writes is used, and
// when that changes the pool follows.
func Open(ctx context.Context, url string, maxConns int32, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// The parser's error can quote the URL, and with it the password.
		return nil, errors.New("DATABASE_URL is not a Postgres connection string")
	}
	if maxConns > 0 {
		cfg.MaxConns = maxConns
	}
	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.ConnConfig.Tracer = tracer
	// Rows are answers as they are, whatever the time zone of the machine.
	cfg.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		c.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
		return nil
	}
	var p primary
	p.follow(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	p.pool.Store(pool)
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("database at %s:%d: %w", cfg.ConnConfig.Host, cfg.ConnConfig.Port, err)
	}
	return pool, nil
}

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error { return s.pool.Ping(ctx) }
