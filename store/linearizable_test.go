package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// Concurrent requests of many clients must have the effect of some sequential order. Histories
// of real clients on a real Postgres are checked for that by porcupine. Some give up in the
// middle of a request: its outcome is then unknown, and both outcomes must fit.

// request is what a client asks for, about the nth thing, and at which place.
type request struct {
	do    string
	n     int
	place int
}

// answered is the outcome; unknown means that the client gave up.
type answered struct {
	said    string
	n       int
	limit   int
	unknown bool
}

// errNotAsked is of a request that was not made.
var errNotAsked = errors.New("not asked")

// clients is the number of concurrent clients, each with so many requests.
const (
	clients  = 6
	requests = 8
)

// play runs the clients concurrently, and returns what happened when.
func playHistory(seed uint64, draw func(r *rand.Rand, client, i int) request, do func(ctx context.Context, a request) (answered, error)) []porcupine.Operation {
	var mu sync.Mutex
	var out []porcupine.Operation
	var wg sync.WaitGroup
	began := time.Now()
	for c := range clients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			for i := range requests {
				a := draw(r, c, i)
				ctx, cancel := context.WithCancel(context.Background())
				if r.IntN(14) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(4000))*time.Microsecond)
				}
				op := porcupine.Operation{ClientId: c, Input: a, Call: int64(time.Since(began))}
				got, err := do(ctx, a)
				op.Output, op.Return = got, int64(time.Since(began))
				if err != nil { // any error: the request may take effect at any time
					op.Output, op.Return = answered{unknown: true}, math.MaxInt64
				}
				cancel()
				if errors.Is(err, errNotAsked) || err != nil && a.do == "read" {
					continue
				}
				mu.Lock()
				out = append(out, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return out
}

// model is what one client after the other would find. step returns the states that may come
// of a request, none if the answer does not fit.
func model[S comparable](first S, step func(s S, a request, got answered) []S) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{first} },
		Step: func(state, input, output any) (out []any) {
			for _, s := range step(state.(S), input.(request), output.(answered)) {
				out = append(out, s)
			}
			return out
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
	}
	return m.ToModel()
}

// linearizable fails the test if no order explains a history.
func linearizable(t *testing.T, m porcupine.Model, history []porcupine.Operation) {
	t.Helper()
	if got := porcupine.CheckOperationsTimeout(m, history, time.Minute); got != porcupine.Ok {
		slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		for _, op := range history {
			t.Logf("client %d, %8d to %8d µs: %+v: %+v", op.ClientId, op.Call/1000, min(op.Return/1000, 99_999_999), op.Input, op.Output)
		}
		t.Fatalf("%s: no order of these explains the answers", got)
	}
}

// crowdedPool has a connection for each client.
func crowdedPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	cfg.MaxConns = clients + 2
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// limited is an org with a limit, and its apps.
type limited struct {
	limit int
	apps  uint64 // existing
	ever  uint64 // ever created
}

// limitedModel: an app is refused if and only if it would be above the limit, creating it again
// with its key changes nothing, and a reader sees limit and usage of one moment.
func limitedModel(s limited, a request, got answered) []limited {
	bit := uint64(1) << (a.n % 64)
	after := s
	switch a.do {
	case "create":
		fits := s.ever&bit != 0 || bits.OnesCount64(s.apps)+1 <= s.limit
		if s.ever&bit == 0 {
			after.apps, after.ever = s.apps|bit, s.ever|bit
		}
		switch {
		case got.unknown && fits:
			return []limited{s, after}
		case got.unknown:
			return []limited{s}
		case (got.said == "ok") != fits:
			return nil
		case !fits:
			return []limited{s}
		}
	case "delete":
		after.apps &^= bit
		if got.unknown {
			return []limited{s, after}
		}
	case "limit":
		after.limit = a.n
		if got.unknown {
			return []limited{s, after}
		}
	case "read":
		if got.limit != s.limit || got.n != bits.OnesCount64(s.apps) {
			return nil
		}
	}
	return []limited{after}
}

// drawLimited lets a client create its own apps, again if the outcome is unknown,
// delete apps that it knows, change the limit, and read.
func drawLimited(r *rand.Rand, client, i int) request {
	own := client*(64/clients) + i/2%(64/clients)
	switch r.IntN(8) {
	case 0:
		return request{do: "limit", n: r.IntN(8)}
	case 1, 2:
		return request{do: "read"}
	case 3, 4:
		return request{do: "delete", n: own}
	}
	return request{do: "create", n: own}
}

func TestQuotasAreLinearizable(t *testing.T) {
	t.Parallel()
	s := New(crowdedPool(t))
	for seed := range deep.Times(25) {
		orgID := prego.OrgID(fmt.Sprintf("org-%d", seed))
		_, err := s.PutOrg(t.Context(), orgID, tenant.PutOrgRequest{Tier: prego.TierEnterprise}, "test")
		require.NoError(t, err)
		_, err = s.SetQuota(t.Context(), orgID, quota.MaxApps, 4, "test", "")
		require.NoError(t, err)
		gone := map[int]bool{} // an app that was deleted is not created again: its key is used up
		var mu sync.Mutex
		history := playHistory(uint64(seed), drawLimited, func(ctx context.Context, a request) (answered, error) {
			id := fmt.Sprintf("app-%d-%d", seed, a.n)
			mu.Lock()
			deleted := gone[a.n]
			gone[a.n] = deleted || a.do == "delete"
			mu.Unlock()
			switch {
			case a.do == "create" && deleted:
				return answered{}, errNotAsked
			case a.do == "create":
				_, _, err := s.CreateApp(ctx, workload.App{AppID: prego.AppID(id), OrgID: orgID, Name: fmt.Sprintf("app-%d", a.n), CreatedBy: "test"}, "key-"+id)
				var refused *org.QuotaExceeded
				if errors.As(err, &refused) {
					return answered{said: "refused"}, nil
				}
				return answered{said: "ok"}, err
			case a.do == "delete":
				err := s.DeleteApp(ctx, id, "test")
				if prego.CodeOf(err) == prego.CodeAppNotFound {
					err = nil
				}
				return answered{}, err
			case a.do == "limit":
				_, err := s.SetQuota(ctx, orgID, quota.MaxApps, float64(a.n), "test", "")
				return answered{}, err
			}
			quotas, err := s.OrgQuotas(ctx, orgID)
			i := slices.IndexFunc(quotas, func(q org.Quota) bool { return q.Dimension == string(quota.MaxApps) })
			if err != nil {
				return answered{}, err
			}
			return answered{limit: int(quotas[i].Limit), n: int(quotas[i].Usage)}, nil
		})
		linearizable(t, model(limited{limit: 4}, limitedModel), history)
	}
}

// placed is a server with places for three tenants.
type placed struct {
	tenants  uint64
	cordoned bool
}

const places = 3

// placedModel: a tenant has one place, no server has more tenants than it takes, and none comes while
// it is cordoned. A reservation never waits for another's, so that it may be lost without need.
func placedModel(s placed, a request, got answered) []placed {
	bit := uint64(1) << a.n
	after := s
	switch a.do {
	case "reserve":
		fits := s.tenants&bit == 0 && bits.OnesCount64(s.tenants) < places && !s.cordoned
		after.tenants |= bit
		switch {
		case got.unknown && fits:
			return []placed{s, after}
		case got.unknown, got.said == "lost":
			return []placed{s}
		case got.said == "already" && s.tenants&bit == 0, got.said == "placed" && !fits:
			return nil
		}
	case "release", "cordon", "uncordon":
		if a.do == "release" {
			after.tenants &^= bit
		} else {
			after.cordoned = a.do == "cordon"
		}
		if got.unknown {
			return []placed{s, after}
		}
	case "read":
		if got.n != bits.OnesCount64(s.tenants) {
			return nil
		}
	}
	return []placed{after}
}

func TestPlacesAreLinearizable(t *testing.T) {
	t.Parallel()
	s := New(crowdedPool(t))
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'enterprise', 'test')`)
	lost := 0
	for seed := range deep.Times(25) {
		host := func(kind string) string { return fmt.Sprintf("%s-%d", kind, seed) }
		for kind, role := range map[string]prego.Role{"app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool} {
			exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, active_at)
				VALUES ($1, '', $2, 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', now())`, host(kind), role)
		}
		exec(t, s, `INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity) VALUES ($1, $1, 'eu', false, 100)`, host("db"))
		exec(t, s, `INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity) VALUES ($1, $1, 'eu', false, 100)`, host("redis"))
		id := func(n int) string { return fmt.Sprintf("t-%d-%d", seed, n) }
		for n := range 6 {
			exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by, generation)
				VALUES ($1, $1, 'acme', 'eu', 'starter', 10, 10, 'shared', '', 'provisioning', 'test', 1)`, id(n))
		}
		draw := func(r *rand.Rand, _, _ int) request {
			switch n := r.IntN(6); r.IntN(16) {
			case 0:
				return request{do: "cordon"}
			case 1, 2:
				return request{do: "uncordon"}
			case 3, 4:
				return request{do: "read"}
			case 5, 6, 7, 8:
				return request{do: "release", n: n}
			default:
				return request{do: "reserve", n: n}
			}
		}
		history := playHistory(uint64(seed), draw, func(ctx context.Context, a request) (answered, error) {
			switch a.do {
			case "reserve":
				got, err := s.Reserve(ctx, tenant.Reservation{
					TenantID: prego.TenantID(id(a.n)), Generation: 1, AppServerID: prego.ServerID(host("app")), DBShardID: prego.ShardID(host("db")), RedisPoolID: prego.RedisPoolID(host("redis")),
					SiteName: id(a.n) + ".sites", DatabaseName: id(a.n), Mode: tenant.ModeShared, Algorithm: "best_fit", AuditAs: "best_fit", MemoryPctMax: 70, MaxTenants: places,
					MeasuredLimits: tenant.MeasuredLimits{CPUPctMax: 90, DBDiskPctMax: 90, RedisMemoryPctMax: 90}, ReserveFor: time.Minute, Decision: []byte(`{}`), Policy: []byte(`{}`), Actor: "test",
				})
				return answered{said: string(got.Outcome)}, err
			case "release":
				return answered{}, s.FreePlace(ctx, prego.TenantID(id(a.n)), "test", "", tenant.SiteUntouched, nil)
			case "cordon":
				_, err := s.CordonServer(ctx, prego.ServerID(host("app")), "test", "a test")
				return answered{}, err
			case "uncordon":
				_, err := s.UncordonServer(ctx, prego.ServerID(host("app")), "test")
				return answered{}, err
			}
			n, err := value[int](ctx, s.pool, `SELECT tenant_count FROM servers WHERE server_id = $1`, host("app"))
			return answered{n: n}, err
		})
		for _, op := range history {
			if op.Output.(answered).said == "lost" {
				lost++
			}
		}
		linearizable(t, model(placed{}, placedModel), history)
	}
	require.Positive(t, lost, "there were fewer places than tenants")
}

// booting is a server whose bootstrap token has the nth key, 0 for none, or is over.
type booting struct {
	key  int
	over bool
}

// bootingModel: a token has one key, whichever caller asks, and none once it was revoked.
func bootingModel(s booting, a request, got answered) []booting {
	after := s
	switch a.do {
	case "consume":
		fits := !s.over && (s.key == 0 || s.key == a.n)
		after.key = a.n
		switch {
		case got.unknown && fits:
			return []booting{s, after}
		case got.unknown:
			return []booting{s}
		case (got.said == "") != fits, got.said == string(prego.CodeTokenSuperseded) && !s.over, got.said == string(prego.CodeTokenConsumed) && s.over:
			return nil
		case !fits:
			return []booting{s}
		}
	case "revoke":
		after.over = true
		if got.unknown {
			return []booting{s, after}
		}
	}
	return []booting{after}
}

func TestTokensAreLinearizable(t *testing.T) {
	t.Parallel()
	s := New(crowdedPool(t))
	for seed := range deep.Times(25) {
		id := fmt.Sprintf("srv-%d", seed)
		bootingServer(t, s, prego.ServerID(id), time.Hour)
		draw := func(r *rand.Rand, client, i int) request {
			if i > requests/2 && r.IntN(20) == 0 {
				return request{do: "revoke"}
			}
			return request{do: "consume", n: 1 + client%4}
		}
		history := playHistory(uint64(seed), draw, func(ctx context.Context, a request) (answered, error) {
			if a.do == "revoke" {
				return answered{}, s.BeginRelease(ctx, prego.ServerID(id), 1)
			}
			_, err := s.ConsumeToken(ctx, server.TokenClaim{TokenHash: hash("raw-" + id), Key: hash(fmt.Sprint(a.n)), ServerID: prego.ServerID(id), AgentVersion: "v1"})
			var refused *prego.Error
			if errors.As(err, &refused) {
				return answered{said: string(refused.Code)}, nil
			}
			return answered{}, err
		})
		linearizable(t, model(booting{}, bootingModel), history)
	}
}

// TestARaceIsFoundInAHistory: a client that looks and takes in two statements is detected.
func TestARaceIsFoundInAHistory(t *testing.T) {
	t.Parallel()
	s := New(crowdedPool(t))
	exec(t, s, `CREATE TABLE naive (org int, n int)`)
	m := model(limited{limit: 4}, limitedModel)
	for seed := range 50 {
		draw := func(_ *rand.Rand, client, i int) request {
			return request{do: "create", n: client*(64/clients) + i%(64/clients)}
		}
		history := playHistory(uint64(seed), draw, func(_ context.Context, a request) (answered, error) {
			ctx := t.Context()
			n, err := value[int](ctx, s.pool, `SELECT count(*) FROM naive WHERE org = $1 AND n <> $2`, seed, a.n)
			if err != nil || n >= 4 {
				return answered{said: "refused"}, err
			}
			_, err = s.pool.Exec(ctx, `INSERT INTO naive (org, n) VALUES ($1, $2)`, seed, a.n)
			return answered{said: "ok"}, err
		})
		if porcupine.CheckOperationsTimeout(m, history, time.Minute) == porcupine.Illegal {
			return
		}
	}
	t.Fatal("no history shows it")
}
