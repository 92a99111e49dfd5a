package store

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/impact"
)

// limitedTo makes tokens, each narrowed from the one in front, and returns contexts of a change with the last one.
func limitedTo(t *testing.T, s *Store, prefix string, caveats ...access.Caveats) func(access.Act) context.Context {
	t.Helper()
	exec(t, s, `CREATE TABLE IF NOT EXISTS made (id text)`) // without triggers, whose locks would order transactions
	exec(t, s, `INSERT INTO principals (principal_id, kind, name, created_by) VALUES ('robot', 'service_account', 'robot', 'test') ON CONFLICT DO NOTHING`)
	parent := ""
	for i, c := range caveats {
		id := prefix + string(rune('a'+i))
		_, err := s.CreateCredential(t.Context(), Credential{
			CredentialID: id, Kind: access.Token, Hash: access.SecretHash(id), Prefix: id, PrincipalID: "robot", ParentID: parent, Name: id, Caveats: c,
			CreatedBy: "test", ExpiresAt: time.Now().Add(time.Hour),
		})
		require.NoError(t, err)
		parent = id
	}
	return func(a access.Act) context.Context {
		ctx := impact.With(t.Context(), &impact.Change{Bound: impact.Destroys, Policy: "test", At: time.Now(), DryRun: a.DryRun})
		return access.WithLimits(ctx, &access.Limits{Act: a, CredentialID: parent, Caveats: caveats})
	}
}

func spent(t *testing.T, s *Store, credential string) (out [2]int64) {
	t.Helper()
	err := s.pool.QueryRow(t.Context(), `SELECT COALESCE(max(monthly_cents), 0), COALESCE(max(seconds_down), 0)
		FROM credential_spending WHERE credential_id = $1`, credential).Scan(&out[0], &out[1])
	require.NoError(t, err)
	return out
}

// changeAt inserts a row, at a cost.
func changeAt(ctx context.Context, s *Store, id string, cents int64, seconds int) error {
	return s.inTx(ctx, "change", func(tx *txn) error {
		tx.run(ctx, `INSERT INTO made (id) VALUES ($1)`, id)
		i := impact.Impact{MonthlyCents: cents, Seconds: seconds}
		if seconds > 0 {
			i.Affected = []impact.Thing{{Kind: "tenant", ID: "t-1", Class: impact.Interrupts}}
		}
		tx.demand(ctx, id, i)
		return nil
	})
}

// TestParallelRequestsNeverExceedTheirBudget: two tokens are narrowed from one with a budget of 1000, and one of them has
// 500 of its own. What is refused changes nothing and is not counted.
func TestParallelRequestsNeverExceedTheirBudget(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	all := access.Caveats{MonthlyCents: new(int64(1000))}
	act := access.Act{Operation: "createVolume", Bound: impact.None, Spends: access.SpendsPrice}
	one := limitedTo(t, s, "one-", all, access.Caveats{MonthlyCents: new(int64(500))})
	_, err := s.CreateCredential(t.Context(), Credential{
		CredentialID: "two", Kind: access.Token, Hash: access.SecretHash("two"), Prefix: "two", PrincipalID: "robot", ParentID: "one-a", Name: "two",
		CreatedBy: "test", ExpiresAt: time.Now().Add(time.Hour),
	})
	require.NoError(t, err)
	two := func() context.Context {
		ctx := impact.With(t.Context(), &impact.Change{Bound: impact.None, At: time.Now()})
		return access.WithLimits(ctx, &access.Limits{Act: act, CredentialID: "two", Caveats: []access.Caveats{all}})
	}
	var made, refused atomic.Int64
	var requests sync.WaitGroup
	for n := range 100 {
		requests.Go(func() {
			ctx := two()
			if n%2 == 0 {
				ctx = one(act)
			}
			switch err := changeAt(ctx, s, strconv.Itoa(n), 30, 0); {
			case err == nil:
				made.Add(1)
			case prego.CodeOf(err) == prego.CodeCaveat:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	requests.Wait()
	require.Equal(t, int64(33), made.Load(), "33 × 30 are 990")
	require.Equal(t, int64(67), refused.Load())
	require.Equal(t, [2]int64{990, 0}, spent(t, s, "one-a"))
	require.LessOrEqual(t, spent(t, s, "one-b")[0], int64(500))
	require.Equal(t, int64(990), spent(t, s, "one-b")[0]+spent(t, s, "two")[0])
	rows, err := value[int64](t.Context(), s.pool, `SELECT count(*) FROM made`)
	require.NoError(t, err)
	require.Equal(t, int64(33), rows)
}

// TestBudgetsAreOfATokensLife: savings give nothing back, a dry run spends nothing, and a refusal names the figures.
func TestBudgetsAreOfATokensLife(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	act := access.Act{Operation: "resizeServer", Bound: impact.Interrupts, Spends: access.SpendsPrice}
	token := limitedTo(t, s, "t-", access.Caveats{MonthlyCents: new(int64(1000)), SecondsDown: new(int64(60))}, access.Caveats{})
	require.NoError(t, changeAt(token(act), s, "a", 600, 40))
	require.NoError(t, changeAt(token(act), s, "b", -900, 0))
	require.Equal(t, [2]int64{600, 40}, spent(t, s, "t-a"))
	err := changeAt(token(act), s, "c", 500, 0)
	require.EqualError(t, errors.Unwrap(err), "caveat: the token's caveat monthly_cents: this costs 5.00 a month, and 4.00 of 10.00 are left")
	require.Equal(t, prego.CodeCaveat, prego.CodeOf(changeAt(token(act), s, "c", 1, 21)))
	require.Equal(t, [2]int64{600, 40}, spent(t, s, "t-b"), "its own, without a budget")

	dry := act
	dry.DryRun = true
	for _, seconds := range []int{20, 21} {
		ctx := token(dry)
		require.NoError(t, s.Try(ctx, func(ctx context.Context) error { return changeAt(ctx, s, "c", 1, seconds) }))
		require.Equal(t, seconds == 21, access.LimitsOf(ctx).Refused != nil)
	}
	require.Equal(t, [2]int64{600, 40}, spent(t, s, "t-a"))
	require.NoError(t, changeAt(token(act), s, "c", 400, 20))
	require.Equal(t, [2]int64{1000, 60}, spent(t, s, "t-a"))
}

// TestAChangeWithoutAnImpactIsRefusedByItsBound, before it is committed. One that states that it changes nothing is not.
func TestAChangeWithoutAnImpactIsRefusedByItsBound(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	token := limitedTo(t, s, "t-", access.Caveats{DestroysNothing: true})
	act := access.Act{Operation: "deleteThing", Bound: impact.Destroys, Spends: access.SpendsNothing}
	change := func(ctx context.Context, states bool) error {
		return s.inTx(ctx, "change", func(tx *txn) error {
			tx.run(ctx, `INSERT INTO orgs (org_id, created_by) VALUES ('acme', 'test')`)
			if states {
				tx.harmless(ctx)
			}
			return nil
		})
	}
	require.Equal(t, prego.CodeCaveat, prego.CodeOf(change(token(act), false)))
	require.NoError(t, change(token(act), true))
}
