package store

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/pgtest"
)

func TestRegistries(t *testing.T) {
	t.Parallel()
	s, ctx := New(pgtest.Pool(t)), context.Background()
	_, err := s.GetRegistry(ctx, "r.example.com")
	require.Equal(t, prego.CodeRegistryNotFound, prego.CodeOf(err))
	sealed := func(user, secret, key string) prego.SealedRegistry {
		return prego.SealedRegistry{Registry: prego.Registry{Host: "r.example.com", Username: user, KeyID: key}, Sealed: []byte(secret)}
	}
	r, err := s.PutRegistry(ctx, sealed("ann", "x1", "k1"), "op")
	require.NoError(t, err)
	require.Equal(t, "ann", r.Username)
	r, err = s.PutRegistry(ctx, sealed("bob", "x2", "k1"), "op2")
	require.NoError(t, err)
	require.Equal(t, []string{"bob", "op", "op2"}, []string{r.Username, r.CreatedBy, r.UpdatedBy})

	was, err := s.SealedRegistry(ctx, "r.example.com")
	require.NoError(t, err)
	require.Equal(t, "x2", string(was.Sealed))
	require.NoError(t, s.ResealRegistry(ctx, sealed("bob", "x1", "k1"), sealed("bob", "late", "k2")))
	now, err := s.SealedRegistry(ctx, "r.example.com")
	require.NoError(t, err)
	require.Equal(t, was, now, "a password that was changed meanwhile is not undone")
	require.NoError(t, s.ResealRegistry(ctx, was, sealed("bob", "x3", "k2")))
	now, err = s.SealedRegistry(ctx, "r.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"x3", "k2"}, []string{string(now.Sealed), now.KeyID})

	all, err := s.ListRegistries(ctx)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.NoError(t, s.DeleteRegistry(ctx, "r.example.com"))
	require.Equal(t, prego.CodeRegistryNotFound, prego.CodeOf(s.DeleteRegistry(ctx, "r.example.com")))
}

// TestOneDigestHolds: of many that resolve a tag at once all use one digest.
func TestOneDigestHolds(t *testing.T) {
	t.Parallel()
	s, ctx := New(pgtest.Pool(t)), context.Background()
	_, ok, err := s.ImageDigest(ctx, "frappe/erpnext:v15")
	require.NoError(t, err)
	require.False(t, ok)
	got := make([]string, 16)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			d, err := s.PutImageDigest(ctx, "frappe/erpnext:v15", "sha256:"+strings.Repeat(string("0123456789abcdef"[i]), 64))
			if err == nil {
				got[i] = d
			}
		})
	}
	wg.Wait()
	kept, ok, err := s.ImageDigest(ctx, "frappe/erpnext:v15")
	require.NoError(t, err)
	require.True(t, ok)
	for _, d := range got {
		require.Equal(t, kept, d)
	}
	_, err = s.PutImageDigest(ctx, "frappe/erpnext:v15", "latest")
	require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err))
	require.NoError(t, s.DeleteImageDigest(ctx, "frappe/erpnext:v15"))
	require.Equal(t, prego.CodeImageNotFound, prego.CodeOf(s.DeleteImageDigest(ctx, "frappe/erpnext:v15")))
}
