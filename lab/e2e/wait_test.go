package e2e

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const patience = 90 * time.Second

// asked polls until the answer is yes, for a while, and reports whether it was. The pauses grow from the first to three
// times as much: polling takes time from the polled processes.
func asked(ok func() bool, wait, first time.Duration) bool {
	deadline := time.Now().Add(wait)
	for pause := first; ; pause = min(pause+pause/8, 3*first) {
		late := time.Now().After(deadline)
		if ok() {
			return true
		}
		if late {
			return false
		}
		time.Sleep(pause)
	}
}

// eventually fails a test unless ok returns true in time. It waits before it polls: a new request may not have started.
// The condition runs on the test's own goroutine, so it may fail the test.
func eventually(t testing.TB, ok func() bool, wait, first time.Duration, msgAndArgs ...any) {
	t.Helper()
	time.Sleep(first)
	if !asked(ok, wait, first) {
		require.Fail(t, "Condition never satisfied", msgAndArgs...)
	}
}

// await polls something until it satisfies ok, and returns it.
func await[T any](t testing.TB, what string, look func() T, ok func(T) bool) (got T) {
	t.Helper()
	if !asked(func() bool { got = look(); return ok(got) }, patience, 50*time.Millisecond) {
		b, _ := json.MarshalIndent(got, "", " ")
		t.Fatalf("%s:\n%s", what, b)
	}
	return got
}
