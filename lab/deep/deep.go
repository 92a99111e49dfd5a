// Package deep sets the effort of a randomized test: in `make test` enough to catch the mistakes that it was written
// for, in `make test-deep` PREGO_TEST_DEEP times as much.
package deep

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// Times is n, multiplied by PREGO_TEST_DEEP where that is set.
func Times(n int) int {
	if by, err := strconv.Atoi(os.Getenv("PREGO_TEST_DEEP")); err == nil && by > 1 { //nolint:forbidigo // a setting of tests
		return n * by
	}
	return n
}

// Some are n of the cases of a story that is expensive to play, in their order: all of them in
// `make test-deep`, else other ones each time, unless PREGO_TEST_DRAW is what it was. So a
// test that failed is run again with the cases it failed with.
func Some[T any](t testing.TB, n int, all []T) []T {
	t.Helper()
	if Times(1) > 1 || n >= len(all) {
		return all
	}
	at := draw(t.Name())(len(all))[:n]
	slices.Sort(at)
	some := make([]T, n)
	for i, k := range at {
		some[i] = all[k]
	}
	t.Logf("%d of %d cases: %v", n, len(all), some)
	return some
}

// draw is how a test shuffles.
func draw(test string) (perm func(int) []int) {
	by := os.Getenv("PREGO_TEST_DRAW") //nolint:forbidigo // a setting of tests
	if by == "" {
		return rand.Perm
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(by + " " + test))
	return rand.New(rand.NewPCG(h.Sum64(), 0)).Perm
}

// Check is rapid.Check for a property whose cases are expensive, because each asks a
// database or a process: it tries n of them, where rapid would try 100. More than
// -rapid.checks are never tried.
func Check(t *testing.T, n int, property func(*rapid.T)) {
	t.Helper()
	t.Logf("%d cases", check(n, property, func(p func(*rapid.T)) { t.Helper(); rapid.Check(t, p) }))
}

func check(n int, property func(*rapid.T), run func(func(*rapid.T))) (tried int) {
	unclear := false // a case failed, or was given up: rapid plays it again, and must find the same
	run(func(t *rapid.T) {
		if tried >= Times(n) && !unclear {
			return
		}
		tried++
		ended := false
		defer func() { unclear = unclear || !ended || t.Failed() }()
		property(t)
		ended = true
	})
	return tried
}
