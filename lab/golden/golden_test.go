package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// failing is a test that may fail.
type failing struct {
	*testing.T
	failed bool
}

func (f *failing) Errorf(string, ...any) {}
func (f *failing) FailNow() {
	f.failed = true
	panic(f)
}

func fails(t *testing.T, do func(testing.TB)) bool {
	t.Helper()
	f := &failing{T: t}
	func() {
		defer func() { _ = recover() }()
		do(f)
	}()
	return f.failed
}

// TestADifferenceFails: in a line, in length, and of a beginning.
func TestADifferenceFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("a\nb\n"), 0o600))
	Equal(t, file, "a\nb\n")
	Begins(t, file, "a\nb")
	for _, got := range []string{"", "a\n", "a\nb", "a\nb\nc\n", "a\nc\n", "b\nb\n"} {
		require.True(t, fails(t, func(tb testing.TB) { Equal(tb, file, got) }), "%q", got)
	}
	for _, got := range []string{"a\nc", "a\nb\nc"} {
		require.True(t, fails(t, func(tb testing.TB) { Begins(tb, file, got) }), "%q", got)
	}
	require.True(t, fails(t, func(tb testing.TB) { Equal(tb, file+"-absent", "") }))
}
