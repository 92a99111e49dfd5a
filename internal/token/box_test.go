package token

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBox(t *testing.T) {
	t.Parallel()
	first, second := strings.Repeat("1a", 32), strings.Repeat("2b", 32)
	b, err := NewBox(first)
	require.NoError(t, err)
	sealed := b.Seal([]byte("hunter2"), "registry/a")
	require.False(t, bytes.Contains(sealed, []byte("hunter2")))
	require.NotEqual(t, sealed, b.Seal([]byte("hunter2"), "registry/a"), "equal secrets don't show as such")
	got, err := b.Open(sealed, b.KeyID(), "registry/a")
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(got))

	for name, open := range map[string]func() ([]byte, error){
		"of another":  func() ([]byte, error) { return b.Open(sealed, b.KeyID(), "registry/b") },
		"other key":   func() ([]byte, error) { return b.Open(sealed, "00000000", "registry/a") },
		"cut off":     func() ([]byte, error) { return b.Open(sealed[:5], b.KeyID(), "registry/a") },
		"changed":     func() ([]byte, error) { return b.Open(append([]byte{1}, sealed[1:]...), b.KeyID(), "registry/a") },
		"nothing":     func() ([]byte, error) { return b.Open(nil, b.KeyID(), "registry/a") },
		"a byte more": func() ([]byte, error) { return b.Open(append(bytes.Clone(sealed), 0), b.KeyID(), "registry/a") },
	} {
		_, err := open()
		require.ErrorIs(t, err, ErrSealed, name)
	}

	after, err := NewBox(second, first)
	require.NoError(t, err)
	require.NotEqual(t, b.KeyID(), after.KeyID())
	got, err = after.Open(sealed, b.KeyID(), "registry/a")
	require.NoError(t, err, "what the earlier key sealed opens")
	anew := after.Seal(got, "registry/a")
	alone, err := NewBox(second)
	require.NoError(t, err)
	got, err = alone.Open(anew, after.KeyID(), "registry/a")
	require.NoError(t, err, "and needs the new key alone once it is sealed anew")
	require.Equal(t, "hunter2", string(got))
	_, err = alone.Open(sealed, b.KeyID(), "registry/a")
	require.ErrorIs(t, err, ErrSealed)

	_, err = NewBox("short")
	require.ErrorContains(t, err, "PREGO_MASTER_KEY ")
	_, err = NewBox(first, "short")
	require.ErrorContains(t, err, "PREGO_MASTER_KEY_EARLIER")
}
