package store

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
)

func TestUnavailableRecognizesErrors(t *testing.T) {
	t.Parallel()
	_, refused := (&net.Dialer{Timeout: time.Second}).Dial("tcp", "127.0.0.1:1")
	for _, err := range []error{
		&pgconn.PgError{Code: "25006"}, &pgconn.PgError{Code: "57P01"}, &pgconn.PgError{Code: "57P02"}, &pgconn.PgError{Code: "57P03"},
		&pgconn.PgError{Code: "08006"}, &pgconn.PgError{Code: "53300"}, &pgconn.PgError{Code: "58030"}, &pgconn.ConnectError{}, refused, io.ErrUnexpectedEOF,
	} {
		require.True(t, Unavailable(fmt.Errorf("read: %w", err)), "%v", err)
	}
	for _, err := range []error{
		nil, &pgconn.PgError{Code: "23505"}, &pgconn.PgError{Code: "40001"}, &pgconn.PgError{Code: "42P01"}, pgx.ErrNoRows, prego.Errorf(prego.CodeNotFound, "x"), context.Canceled,
	} {
		require.False(t, Unavailable(err), "%v", err)
	}
}

// TestAPoolLeavesAHostThatTurnsReadOnly relies on Postgres reporting a changed
// setting unasked, and refusing a write.
func TestAPoolLeavesAHostThatTurnsReadOnly(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool, err := Open(ctx, pgtest.URL(t), 1, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	backend := func() (pid int) {
		require.NoError(t, pool.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid))
		return pid
	}
	before := backend()
	require.Equal(t, before, backend(), "a connection is used again")

	_, err = pool.Exec(ctx, `SET default_transaction_read_only = on`)
	require.NoError(t, err)
	after := backend()
	require.NotEqual(t, before, after, "it is closed when it is known to be read-only")

	_, err = pool.Exec(ctx, `BEGIN READ ONLY; UPDATE looks SET error = ''`)
	require.True(t, Unavailable(err), "%v", err)
	require.NotEqual(t, after, backend(), "it is closed when it refuses a write")
}

// TestOfSeveralHostsTheWritableOneIsUsed names an address without a listener first.
func TestOfSeveralHostsTheWritableOneIsUsed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	u, err := url.Parse(pgtest.URL(t))
	require.NoError(t, err)
	alone := u.String()
	u.Host = "127.0.0.1:1," + u.Host
	pool, err := Open(ctx, u.String(), 1, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	require.NoError(t, s.Writable(ctx))

	// A host that is read-only from the start, as a standby is.
	_, err = pool.Exec(ctx, `ALTER DATABASE `+pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize()+` SET default_transaction_read_only = on`)
	require.NoError(t, err)
	_, err = Open(ctx, alone, 1, nil)
	require.ErrorIs(t, err, pgconn.ErrReadOnlyConnection)
	require.True(t, Unavailable(err))
	pool.Reset()
	err = s.Writable(ctx)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(err))
	require.ErrorContains(t, err, "no writable primary")
}

// TestAnyRoleCanAskWhetherTheDatabaseTakesWrites asks as one without any rights.
func TestAnyRoleCanAskWhetherTheDatabaseTakesWrites(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool, err := Open(ctx, pgtest.URL(t), 1, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	role := fmt.Sprintf("nobody_%d", time.Now().UnixNano())
	_, err = pool.Exec(ctx, `CREATE ROLE `+role)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), `RESET ROLE; DROP ROLE `+role) })
	_, err = pool.Exec(ctx, `SET ROLE `+role)
	require.NoError(t, err)
	require.NoError(t, New(pool).Writable(ctx))
}

// TestACursorFromAnotherServerReadsEverything: a standby that was promoted, or a restored database, may give numbers of
// transactions again.
func TestACursorFromAnotherServerReadsEverything(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	for name, read := range map[string]func(since string) (next string, full bool, err error){
		"placement": func(since string) (string, bool, error) {
			c, err := s.PlacementChanges(t.Context(), since, nil)
			return c.Since, c.Full, err
		},
		"edges": func(since string) (string, bool, error) {
			c, err := s.EdgeChanges(t.Context(), since)
			return c.Since, c.Full, err
		},
		"peers": func(since string) (string, bool, error) {
			c, err := s.PeersVersions(t.Context(), since)
			return c.Since, c.Full, err
		},
	} {
		first, full, err := read("")
		require.NoError(t, err, name)
		require.True(t, full, name)
		_, full, err = read(first)
		require.NoError(t, err, name)
		require.False(t, full, name)
		xid, _, _ := strings.Cut(first, "@")
		_, full, err = read(xid + "@2001-01-01 00:00:00+00")
		require.NoError(t, err, name)
		require.True(t, full, name)
	}
}
