package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

func hash(s string) []byte { h := sha256.Sum256([]byte(s)); return h[:] }

// bootingServer is a server at attempt 1 with a token "raw-<id>".
func bootingServer(t testing.TB, s *Store, id prego.ServerID, ttl time.Duration) {
	t.Helper()
	ctx := context.Background()
	insertServer(t, s, string(id), "provisioning")
	_, err := s.pool.Exec(ctx, `UPDATE servers SET attempt = 1, host = '192.0.2.1' WHERE server_id = $1`, id)
	require.NoError(t, err)
	_, err = s.IssueToken(ctx, server.TokenIssue{TokenID: string("tok-" + id), ServerID: id, Attempt: 1, Hash: hash(string("raw-" + id)), Purpose: server.PurposeAgentBootstrap, TTL: ttl})
	require.NoError(t, err)
}

func consume(s *Store, id, key, source string) (server.TokenConsumed, error) {
	return s.ConsumeToken(context.Background(), server.TokenClaim{TokenHash: hash("raw-" + id), Key: hash(key), ServerID: prego.ServerID(id), Source: source, AgentVersion: "v1"})
}

func exec(t testing.TB, s *Store, sql string, args ...any) {
	t.Helper()
	_, err := s.pool.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

func TestConsumeTokenOutcomes(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	for name, tc := range map[string]struct {
		ttl     time.Duration
		arrange func(t *testing.T, id prego.ServerID)
		key     string
		source  string
		server  string
		code    prego.Code // "" for success
	}{
		"fresh":        {},
		"right source": {source: "192.0.2.1"},
		"wrong source": {source: "192.0.2.9", code: prego.CodeSourceMismatch},
		"source inside the subnet": {source: "2001:db8::5", arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET ipv6 = '2001:db8::/64' WHERE server_id = $1`, id)
		}},
		"source outside the subnet": {source: "2001:db9::5", code: prego.CodeSourceMismatch, arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET ipv6 = '2001:db8::/64' WHERE server_id = $1`, id)
		}},
		"source not known yet": {source: "192.0.2.1", code: prego.CodeNotReady, arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET host = '' WHERE server_id = $1`, id)
		}},
		"expired": {ttl: -time.Second, code: prego.CodeBootstrapExpired},
		"expired, again": {ttl: -time.Second, code: prego.CodeBootstrapExpired, arrange: func(t *testing.T, id prego.ServerID) {
			_, err := consume(s, string(id), "key-a", "")
			require.Equal(t, prego.CodeBootstrapExpired, prego.CodeOf(err))
			require.Equal(t, 1, count(t, s, fmt.Sprintf(`server_bootstrap_tokens WHERE server_id = '%s' AND superseded_at IS NOT NULL`, id)), "the first try revokes it")
		}},
		"expired, from a wrong source": {ttl: -time.Second, source: "192.0.2.9", code: prego.CodeBootstrapExpired},
		"expired, source not known yet": {ttl: -time.Second, source: "192.0.2.1", code: prego.CodeBootstrapExpired, arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET host = '' WHERE server_id = $1`, id)
		}},
		"expired, and released": {ttl: -time.Second, code: prego.CodeBootstrapExpired, arrange: func(t *testing.T, id prego.ServerID) { require.NoError(t, s.BeginRelease(context.Background(), id, 1)) }},
		"expired, older attempt": {ttl: -time.Second, code: prego.CodeBootstrapExpired, arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET attempt = 2 WHERE server_id = $1`, id)
		}},
		"expired, second key": {key: "key-b", code: prego.CodeTokenConsumed, arrange: func(t *testing.T, id prego.ServerID) {
			_, err := consume(s, string(id), "key-a", "")
			require.NoError(t, err)
			exec(t, s, `UPDATE server_bootstrap_tokens SET expires_at = now() WHERE server_id = $1`, id)
		}},
		"unknown": {server: "someone-else", code: prego.CodeTokenUnknown},
		"revoked": {code: prego.CodeTokenSuperseded, arrange: func(t *testing.T, id prego.ServerID) { require.NoError(t, s.BeginRelease(context.Background(), id, 1)) }},
		"older attempt": {code: prego.CodeTokenSuperseded, arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET attempt = 2 WHERE server_id = $1`, id)
		}},
		"server failed": {code: prego.CodeTokenSuperseded, arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET status = 'failed' WHERE server_id = $1`, id)
		}},
		"same key again": {arrange: func(t *testing.T, id prego.ServerID) {
			_, err := consume(s, string(id), "key-a", "")
			require.NoError(t, err)
		}},
		"same key again, inside the subnet": {source: "2001:db8::5", arrange: func(t *testing.T, id prego.ServerID) {
			exec(t, s, `UPDATE servers SET ipv6 = '2001:db8::/64' WHERE server_id = $1`, id)
			_, err := consume(s, string(id), "key-a", "2001:db8::5")
			require.NoError(t, err)
		}},
		"same key much later": {code: prego.CodeTokenConsumed, arrange: func(t *testing.T, id prego.ServerID) {
			_, err := consume(s, string(id), "key-a", "")
			require.NoError(t, err)
			exec(t, s, `UPDATE server_bootstrap_tokens SET consumed_at = now() - interval '61 s' WHERE server_id = $1`, id)
		}},
		"second key": {key: "key-b", code: prego.CodeTokenConsumed, arrange: func(t *testing.T, id prego.ServerID) {
			_, err := consume(s, string(id), "key-a", "")
			require.NoError(t, err)
		}},
		"second key from elsewhere": {key: "key-b", source: "192.0.2.9", code: prego.CodeSourceMismatch, arrange: func(t *testing.T, id prego.ServerID) {
			_, err := consume(s, string(id), "key-a", "")
			require.NoError(t, err)
		}},
		"expired, but the same key": {arrange: func(t *testing.T, id prego.ServerID) {
			_, err := consume(s, string(id), "key-a", "")
			require.NoError(t, err)
			exec(t, s, `UPDATE server_bootstrap_tokens SET expires_at = now() WHERE server_id = $1`, id)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := "s-" + fmt.Sprintf("%x", hash(name))[:12]
			if tc.ttl == 0 {
				tc.ttl = time.Minute
			}
			if tc.key == "" {
				tc.key = "key-a"
			}
			bootingServer(t, s, prego.ServerID(id), tc.ttl)
			if tc.arrange != nil {
				tc.arrange(t, prego.ServerID(id))
			}
			claimed := id
			if tc.server != "" {
				claimed = tc.server
			}
			got, err := s.ConsumeToken(context.Background(), server.TokenClaim{TokenHash: hash("raw-" + id), Key: hash(tc.key), ServerID: prego.ServerID(claimed), Source: tc.source})
			if tc.code == "" {
				require.NoError(t, err)
				require.Equal(t, id, string(got.ServerID))
				require.Equal(t, 1, count(t, s, fmt.Sprintf(`servers WHERE server_id = '%s' AND agent_key_sha256 = decode('%x', 'hex')`, id, hash(tc.key))), "the key is bound")
				return
			}
			require.Equal(t, tc.code, prego.CodeOf(err), "%v", err)
			// A refusal burns nothing: the right key from the right place still gets in, if the state allows any key.
			if tc.code == prego.CodeSourceMismatch && tc.key == "key-a" {
				_, err := consume(s, id, "key-a", "192.0.2.1")
				require.NoError(t, err)
			}
		})
	}
}

// TestExpiredTokenIsRevokedAlone: other servers' tokens stay, and so does what has become of the token since it was
// read: a key that consumed it meanwhile may repeat that.
func TestExpiredTokenIsRevokedAlone(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	bootingServer(t, s, "app-1", -time.Second)
	bootingServer(t, s, "app-2", time.Minute)
	for meanwhile, want := range map[string]string{
		`consumed_at = now(), consumed_key = '\x01'`: `superseded_at IS NULL`,
		`superseded_at = '2026-01-01Z'`:              `superseded_at = '2026-01-01Z'`,
		`superseded_at = NULL`:                       `superseded_at > '2026-01-01Z'`,
	} {
		exec(t, s, `UPDATE server_bootstrap_tokens SET consumed_at = NULL, consumed_key = NULL, superseded_at = NULL`)
		exec(t, s, `UPDATE server_bootstrap_tokens SET `+meanwhile+` WHERE server_id = 'app-1'`)
		exec(t, s, sqlRevokeExpired, "tok-app-1")
		require.Equal(t, 1, count(t, s, `server_bootstrap_tokens WHERE server_id = 'app-1' AND `+want), meanwhile)
	}
	_, err := consume(s, "app-2", "key-b", "")
	require.NoError(t, err)
}

func TestSecondKeyEndsTheBootstrapOnlyWhileProvisioning(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	bootingServer(t, s, "app-1", time.Minute)
	_, err := consume(s, "app-1", "key-a", "")
	require.NoError(t, err)
	var second *server.SecondKeyError
	_, err = consume(s, "app-1", "key-b", "")
	require.ErrorAs(t, err, &second)
	require.Equal(t, 1, second.Attempt)
	st, err := s.ProvisionState(ctx, "app-1")
	require.NoError(t, err)
	require.True(t, st.BootstrapRefused)

	bootingServer(t, s, "app-2", time.Minute)
	_, err = consume(s, "app-2", "key-a", "")
	require.NoError(t, err)
	exec(t, s, `UPDATE servers SET status = 'active' WHERE server_id = 'app-2'`)
	_, err = consume(s, "app-2", "key-b", "")
	require.Equal(t, prego.CodeTokenConsumed, prego.CodeOf(err))
	require.False(t, errors.As(err, new(*server.SecondKeyError)), "reading an active server's user_data does not suffice to end it")

	var rows int
	require.NoError(t, s.pool.QueryRow(ctx, `SELECT count(*) FROM agent_command_audit WHERE command_kind = 'bootstrap' AND server_id = 'app-1'`).Scan(&rows))
	require.Equal(t, 3, rows, "issue, consume and refusal are audited")
	require.Equal(t, 3, count(t, s, `agent_command_audit WHERE server_id = 'app-1' AND args_redacted LIKE '% token_id=tok-app-1 %'`), "the token's id joins the three")
}

// consumeNaively is the mutant that the race test must catch: it reads, decides, and then writes.
func consumeNaively(ctx context.Context, s *Store, tokenHash, key []byte) bool {
	var consumed bool
	if err := s.pool.QueryRow(ctx, `SELECT consumed_at IS NOT NULL FROM server_bootstrap_tokens WHERE token_hash = $1`, tokenHash).Scan(&consumed); err != nil || consumed {
		return false
	}
	_, err := s.pool.Exec(ctx, `UPDATE server_bootstrap_tokens SET consumed_at = now(), consumed_key = $2 WHERE token_hash = $1`, tokenHash, key)
	return err == nil
}

// race lets 16 keys compete for each of n tokens, and counts the tokens that more than one got.
func race(n int, claim func(token, racer int) bool) (doubly int) {
	const racers = 16
	for token := range n {
		var won atomic.Int32
		var wg sync.WaitGroup
		gate := make(chan struct{})
		for racer := range racers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				<-gate
				if claim(token, racer) {
					won.Add(1)
				}
			}()
		}
		close(gate)
		wg.Wait()
		if won.Load() != 1 {
			doubly++
		}
	}
	return doubly
}

func TestTokenIsConsumedOnceByOneOf16Racers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	tokens := deep.Times(100)
	exec(t, s, `
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, attempt)
SELECT 's-' || n, '\x00', 'app', 'eu', 'hetzner', '{}', 'provisioning', 'server-provision/s-' || n, 'test', 1 FROM generate_series(0, $1::int - 1) n`, tokens)
	exec(t, s, `
INSERT INTO server_bootstrap_tokens (token_id, server_id, attempt, token_hash, purpose, expires_at)
SELECT 'tok-' || n, 's-' || n, 1, sha256(convert_to('raw-s-' || n, 'UTF8')), 'agent_bootstrap', now() + interval '15 min' FROM generate_series(0, $1::int - 1) n`, tokens)

	doubly := race(tokens, func(token, racer int) bool {
		_, err := consume(s, fmt.Sprintf("s-%d", token), fmt.Sprintf("key-%d", racer), "")
		return err == nil
	})
	require.Zero(t, doubly, "tokens not consumed exactly once")

	exec(t, s, `UPDATE server_bootstrap_tokens SET consumed_at = NULL, consumed_key = NULL WHERE attempt = 1`)
	caught := race(20, func(token, racer int) bool {
		return consumeNaively(ctx, s, hash(fmt.Sprintf("raw-s-%d", token)), hash(fmt.Sprint(racer)))
	})
	require.Positive(t, caught, "the race does not catch the mutant that reads before it writes")
}

// TestConsumeLosesToNewerAttempt holds the server's row while a handshake is between its two updates: the host of
// an abandoned attempt must not be bound to the next one.
func TestConsumeLosesToNewerAttempt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, move := range map[string]string{
		"a later attempt": `UPDATE servers SET attempt = 2 WHERE server_id = 'app-1'`,
		"a failure":       `UPDATE servers SET status = 'failed' WHERE server_id = 'app-1'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New(pgtest.Pool(t))
			bootingServer(t, s, "app-1", time.Minute)
			bootingServer(t, s, "app-2", time.Minute)
			_, err := consume(s, "app-2", "key-b", "")
			require.NoError(t, err)
			tx, err := s.pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }()
			_, err = tx.Exec(ctx, move)
			require.NoError(t, err)
			refused := make(chan error, 1)
			go func() {
				_, err := consume(s, "app-1", "key-a", "")
				refused <- err
			}()
			require.Eventually(t, func() bool {
				var waiting bool
				err := s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
				return err == nil && waiting
			}, 10*time.Second, 5*time.Millisecond, "the handshake never waited for the row: the race was not hit")
			require.NoError(t, tx.Commit(ctx))
			require.Equal(t, prego.CodeTokenSuperseded, prego.CodeOf(<-refused))
			var untouched bool
			require.NoError(t, s.pool.QueryRow(ctx, `
SELECT agent_key_sha256 IS NULL AND agent_first_seen_at IS NULL AND (SELECT consumed_at IS NULL FROM server_bootstrap_tokens WHERE server_id = 'app-1')
FROM servers WHERE server_id = 'app-1'`).Scan(&untouched))
			require.True(t, untouched)
			require.Equal(t, 1, count(t, s, `server_bootstrap_tokens WHERE server_id = 'app-2' AND consumed_at IS NOT NULL`))
		})
	}
}

// TestEarlyHandshakeIsRetried: the address of a server is recorded while its first handshake is refused for lack of it.
// A host gives up its token when told that its bootstrap is over.
func TestEarlyHandshakeIsRetried(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	bootingServer(t, s, "app-1", time.Minute)
	exec(t, s, `UPDATE servers SET host = ''`)
	refused, committed := played(t, s, `UPDATE servers SET host = '192.0.2.1'`, func(_ context.Context, s *Store) error {
		_, err := consume(s, "app-1", "key-a", "192.0.2.1")
		return err
	})
	require.NoError(t, committed)
	require.Equal(t, prego.CodeNotReady, prego.CodeOf(refused))
	_, err := consume(s, "app-1", "key-a", "192.0.2.1")
	require.NoError(t, err)
}

// TestATokenIsOfOneServer: what else is presented consumes no token.
func TestATokenIsOfOneServer(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	bootingServer(t, s, "app-1", time.Minute)
	bootingServer(t, s, "app-2", time.Minute)
	for token, of := range map[string]prego.ServerID{"raw-guessed": "app-1", "raw-app-1": "app-2", "raw-app-2": "app-1", "": "app-2"} {
		_, err := s.ConsumeToken(t.Context(), server.TokenClaim{TokenHash: hash(token), Key: hash("k"), ServerID: of})
		require.Equal(t, prego.CodeTokenUnknown, prego.CodeOf(err), "%s for %s", token, of)
	}
	require.Zero(t, count(t, s, "server_bootstrap_tokens WHERE consumed_at IS NOT NULL OR superseded_at IS NOT NULL"))
	require.Zero(t, count(t, s, "servers WHERE agent_key_sha256 IS NOT NULL"))
	for _, id := range []string{"app-1", "app-2"} {
		_, err := consume(s, id, "k", "")
		require.NoError(t, err)
	}
}

// TestConsumingATokenComparesTags: an agent with other tags than its server's is let in, and noted.
func TestConsumingATokenComparesTags(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	for id, tc := range map[string]struct {
		tags   []string
		differ int
	}{"app-1": {[]string{"eu", "blue"}, 0}, "app-2": {[]string{"blue"}, 1}, "app-3": {[]string{"blue", "eu", "red"}, 1}, "app-4": {nil, 1}} {
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, attempt, tags, workflow_id, created_by)
			VALUES ($1, '\x00', 'app', 'eu', 'hetzner', '{}', 'provisioning', 1, '{blue,eu}', 'server-provision/' || $1, 'test')`, id)
		_, err := s.IssueToken(t.Context(), server.TokenIssue{TokenID: "tok-" + id, ServerID: prego.ServerID(id), Attempt: 1, Hash: hash("raw-" + id), Purpose: server.PurposeAgentBootstrap, TTL: time.Minute})
		require.NoError(t, err)
		_, err = s.ConsumeToken(t.Context(), server.TokenClaim{TokenHash: hash("raw-" + id), Key: hash("k"), ServerID: prego.ServerID(id), Tags: tc.tags})
		require.NoError(t, err)
		require.Equal(t, tc.differ, count(t, s, fmt.Sprintf(`events WHERE kind = 'server' AND id = '%s' AND step = 'agent_tags_differ'`, id)), "%v", tc.tags)
	}
}

// TestConsumingATokenRevokesItsServersOthers: no earlier attempt's token is valid afterwards; other servers' stay.
func TestConsumingATokenRevokesItsServersOthers(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	bootingServer(t, s, "app-1", time.Minute)
	bootingServer(t, s, "app-2", time.Minute)
	exec(t, s, `UPDATE servers SET attempt = 2 WHERE server_id = 'app-1'`)
	_, err := s.IssueToken(t.Context(), server.TokenIssue{
		TokenID: "tok-2", ServerID: "app-1", Attempt: 2, Hash: hash("raw-2"), Purpose: server.PurposeAgentBootstrap,
		TTL: time.Minute,
	})
	require.NoError(t, err)
	_, err = s.ConsumeToken(t.Context(), server.TokenClaim{TokenHash: hash("raw-2"), Key: hash("k"), ServerID: "app-1"})
	require.NoError(t, err)
	const revoked = `server_bootstrap_tokens WHERE superseded_at IS NOT NULL`
	require.Equal(t, 1, count(t, s, revoked))
	require.Equal(t, 1, count(t, s, revoked+` AND token_id = 'tok-app-1'`))
}
