package token

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBox(t *testing.T) {
	t.Parallel()
	ctx, first, second := context.Background(), strings.Repeat("1a", 32), strings.Repeat("2b", 32)
	seal := func(b *Box, secret string) ([]byte, string) {
		sealed, keyID, err := b.Seal(ctx, "registry/a", []byte(secret))
		require.NoError(t, err)
		return sealed, keyID
	}
	b, err := NewBox(first)
	require.NoError(t, err)
	sealed, key := seal(b, "hunter2")
	require.False(t, bytes.Contains(sealed, []byte("hunter2")))
	again, _ := seal(b, "hunter2")
	require.NotEqual(t, sealed, again, "equal secrets don't show as such")
	got, err := b.Open("registry/a", key, sealed)
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(got))

	for name, open := range map[string]func() ([]byte, error){
		"of another":  func() ([]byte, error) { return b.Open("registry/b", key, sealed) },
		"other key":   func() ([]byte, error) { return b.Open("registry/a", "00000000", sealed) },
		"cut off":     func() ([]byte, error) { return b.Open("registry/a", key, sealed[:5]) },
		"changed":     func() ([]byte, error) { return b.Open("registry/a", key, append([]byte{sealed[0] + 1}, sealed[1:]...)) },
		"nothing":     func() ([]byte, error) { return b.Open("registry/a", key, nil) },
		"a byte more": func() ([]byte, error) { return b.Open("registry/a", key, append(bytes.Clone(sealed), 0)) },
	} {
		_, err := open()
		require.ErrorIs(t, err, ErrSealed, name)
	}

	after, err := NewBox(second, first)
	require.NoError(t, err)
	got, err = after.Open("registry/a", key, sealed)
	require.NoError(t, err, "what the earlier key sealed opens")
	require.Equal(t, "hunter2", string(got))
	anew, newKey, err := after.Reseal(ctx, "registry/a", key, sealed)
	require.NoError(t, err)
	require.NotEqual(t, key, newKey)
	alone, err := NewBox(second)
	require.NoError(t, err)
	got, err = alone.Open("registry/a", newKey, anew)
	require.NoError(t, err, "and needs the new key alone once it is sealed anew")
	require.Equal(t, "hunter2", string(got))
	_, err = alone.Open("registry/a", key, sealed)
	require.ErrorIs(t, err, ErrSealed)
	_, _, err = alone.Reseal(ctx, "registry/a", key, sealed)
	require.ErrorIs(t, err, ErrSealed)

	_, err = NewBox("short")
	require.ErrorContains(t, err, "PREGO_MASTER_KEY ")
	_, err = NewBox(first, "short")
	require.ErrorContains(t, err, "PREGO_MASTER_KEY_EARLIER")
}
