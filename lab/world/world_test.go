package world

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bare is a world without processes.
func bare(t *testing.T, do func(w *World)) {
	t.Helper()
	at := takePlace(t)
	t.Cleanup(at.giveBack)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(Epoch))
		w := &World{t: t, database: at.url, bridge: at.bridge, lives: map[string]int{}, counters: map[string]int{}, Schedule: newScheduler(at.bridge, 1)}
		w.Schedule.keep = true
		w.Faults = newFaults(1, w.Schedule.Sayf)
		w.Faults.stop()
		do(w)
	})
}

// TestTimeInSQLIsThePlays: defaults of columns and functions of the schema included, and
// a transaction keeps the time of its beginning.
func TestTimeInSQLIsThePlays(t *testing.T) {
	bare(t, func(w *World) {
		l := quietLife(t, w)
		defer l.Pool.Close()
		ctx := context.Background()
		var at, began, now time.Time
		w.Schedule.Free()
		_, err := l.Pool.Exec(ctx, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'free', 'test')`)
		require.NoError(t, err)
		require.NoError(t, l.Pool.QueryRow(ctx, `SELECT created_at FROM orgs`).Scan(&at))
		require.Equal(t, Epoch, at.UTC())
		tx, err := l.Pool.Begin(ctx)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.NoError(t, tx.QueryRow(ctx, `SELECT now(), clock_timestamp()`).Scan(&began, &now))
		require.NoError(t, tx.Rollback(ctx))
		require.Equal(t, Epoch, began.UTC())
		require.Equal(t, Epoch.Add(time.Hour), now.UTC())
		require.NoError(t, l.Pool.QueryRow(ctx, `SELECT now()`).Scan(&now))
		require.Equal(t, Epoch.Add(time.Hour), now.UTC())
	})
}

func quietLife(t *testing.T, w *World) *Life {
	t.Helper()
	l, err := w.bornWithout("test")
	require.NoError(t, err)
	return l
}

// TestLockWaitersAreParked: the other actor continues, and so does the clock, and a deadlock ends.
func TestLockWaitersAreParked(t *testing.T) {
	bare(t, func(w *World) {
		l := quietLife(t, w)
		ctx := context.Background()
		_, err := func() (any, error) {
			w.Schedule.free = true
			defer func() { w.Schedule.free = false }()
			return l.Pool.Exec(ctx, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('a', 'free', 'test'), ('b', 'free', 'test')`)
		}()
		require.NoError(t, err)
		ended := make(chan error, 2)
		for i, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			go func() {
				ctx := As(ctx, fmt.Sprint("actor ", i))
				ended <- pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error {
					for _, org := range order {
						if _, err := tx.Exec(ctx, `UPDATE orgs SET tier = 'paid' WHERE org_id = $1`, org); err != nil {
							return err
						}
						time.Sleep(time.Minute)
					}
					return nil
				})
			}()
		}
		require.True(t, w.Schedule.Run(func() bool { return len(ended) == 2 }, time.Now().Add(time.Hour)))
		first, second := <-ended, <-ended
		require.ErrorContains(t, first, "deadlock detected")
		require.NoError(t, second)
		require.Positive(t, w.Schedule.Locks)
		w.Schedule.Free()
		l.Pool.Close()
	})
}

// TestDeadProcessesHaveNoEffect: uncommitted work is lost, and later work fails.
func TestDeadProcessesHaveNoEffect(t *testing.T) {
	bare(t, func(w *World) {
		l := quietLife(t, w)
		ctx := context.Background()
		w.Schedule.Free()
		tx, err := l.Pool.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('a', 'free', 'test')`)
		require.NoError(t, err)
		l.dead.Store(true)
		for c := range l.conns {
			c.cutFor(errDead)
		}
		require.Error(t, tx.Commit(ctx))
		_, err = l.Pool.Exec(ctx, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('b', 'free', 'test')`)
		require.Error(t, err)
		l.Pool.Close()
		watch, err := w.open()
		require.NoError(t, err)
		defer watch.Close()
		found, err := w.rows(watch, `SELECT org_id FROM orgs`)
		require.NoError(t, err)
		require.Empty(t, found)
	})
}

func TestShrink(t *testing.T) {
	var all []Fault
	for i := range 40 {
		all = append(all, Fault{Kind: "k", N: i})
	}
	plays := 0
	got := Shrink(all, 100, func(only map[string]bool) bool {
		plays++
		return only["k 7"] && only["k 31"]
	})
	require.Equal(t, []Fault{all[7], all[31]}, got)
	require.Less(t, plays, 60)
	require.Empty(t, Shrink(all, 100, func(map[string]bool) bool { return true }), "the order alone")
}

// TestARunMustHaveMetEnough: fewer than chance explains is reported, and a short run need not meet rare events.
func TestARunMustHaveMetEnough(t *testing.T) {
	met := map[string]int{}
	for _, s := range slices.Concat(sometimes, sometimesNamed) {
		require.True(t, 0 < s.percent && s.percent < 100, s.what)
		met[s.what] = s.percent
	}
	require.Empty(t, NotMet(met, 100, true))
	met["worker died"] = 1
	require.Len(t, NotMet(met, 100, true), 1)
	require.Contains(t, NotMet(met, 100, true)[0], "worker died: in 1 of 100 seeds, at least ")
	require.Empty(t, NotMet(nil, 1, true))
	require.Len(t, NotMet(nil, 2000, true), len(sometimes)+len(sometimesNamed), "a long run must have met everything")
	require.Len(t, NotMet(nil, 2000, false), len(sometimes), "one without names met no names")
}

// TestHowOftenSomethingMustBeMet: fewer than the bound is too rare, and one more would not be,
// by the binomial coefficients themselves.
func TestHowOftenSomethingMustBeMet(t *testing.T) {
	require.Equal(t, 0, leastOf(20, 0.5))
	require.Equal(t, 1, leastOf(20, 0.56))
	require.Equal(t, 28, leastOf(100, 0.54))
	require.Equal(t, 0, leastOf(0, 0.5))
	rapid.Check(t, func(t *rapid.T) {
		n, p := rapid.IntRange(1, 300).Draw(t, "n"), float64(rapid.IntRange(1, 99).Draw(t, "percent"))/100
		fewer := func(k int) (sum float64) {
			for i := range int64(k) {
				ways, _ := new(big.Float).SetInt(new(big.Int).Binomial(int64(n), i)).Float64()
				sum += ways * math.Pow(p, float64(i)) * math.Pow(1-p, float64(int64(n)-i))
			}
			return sum
		}
		k := leastOf(n, p)
		require.LessOrEqual(t, fewer(k), tooRare*1.001)
		if k < n {
			require.Greater(t, fewer(k+1), tooRare*0.999)
		}
	})
}

// requireTest requires that a package has a test.
func requireTest(t *testing.T, dir, name string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return
		}
	}
	t.Errorf("%s has no %s", dir, name)
}

// TestPlantedBugsApply: each still applies to today's code, and sleeps until it is named.
func TestPlantedBugsApply(t *testing.T) {
	bugs, err := filepath.Glob("testdata/bugs/*.patch")
	require.NoError(t, err)
	require.NotEmpty(t, bugs)
	for _, bug := range bugs {
		text, err := os.ReadFile(bug)
		require.NoError(t, err)
		where := strings.Fields(strings.Split(string(text), "\n")[1])
		require.Equal(t, "Elsewhere:", where[0], "%s names the other test that catches it (tools/planted-elsewhere.sh)", bug)
		if len(where) == 3 {
			requireTest(t, filepath.Join("../..", where[1]), where[2])
		} else {
			require.Equal(t, "none", where[1], bug)
		}
	}
	out, err := exec.CommandContext(t.Context(), "../../tools/planted.sh", t.TempDir()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, json.Valid(out))
}
