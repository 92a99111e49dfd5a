package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// repeatWindow is how long the key that consumed a token may consume it again, in case the answer was lost.
const repeatWindow = 60 * time.Second

const sqlIssueToken = `
INSERT INTO server_bootstrap_tokens (token_id, server_id, attempt, token_hash, purpose, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))
ON CONFLICT (server_id, attempt) DO NOTHING`

const sqlTokenOfAttempt = `
SELECT token_id, issued_at, expires_at FROM server_bootstrap_tokens WHERE server_id = $1 AND attempt = $2`

// IssueToken creates the bootstrap token of an attempt; repeating the call returns the
// existing one. An attempt that creates its server issues it with BeginCreate.
func (s *Store) IssueToken(ctx context.Context, t server.TokenIssue) (server.TokenIssued, error) {
	var out server.TokenIssued
	err := s.inTx(ctx, string("issue token for "+t.ServerID), func(tx *txn) error {
		issued := tx.run(ctx, sqlIssueToken, t.TokenID, t.ServerID, t.Attempt, t.Hash, t.Purpose, t.TTL.Seconds())
		if out = oneIn[server.TokenIssued](ctx, tx, sqlTokenOfAttempt, t.ServerID, t.Attempt); !issued {
			return nil
		}
		tx.check(auditBootstrap(ctx, tx, t.ServerID, issueArgs(t), prego.ActorWorkflow, 0))
		return addEvent(ctx, tx, server.Event{ServerID: t.ServerID, Step: server.StepTokenIssued, Attempt: t.Attempt},
			attemptKey(server.StepTokenIssued, t.Attempt))
	})
	return out, err
}

// issueArgs returns the arguments of an issue for the audit. The redactor would mask the id, which is no secret and
// joins the issue with the use of the token.
func issueArgs(t server.TokenIssue) string {
	return "issue token_id=" + t.TokenID + " purpose=" + string(t.Purpose)
}

const sqlConsumeToken = `
SELECT attempt, host, ipv6, status, (SELECT role FROM servers WHERE server_id = $3) FROM consume_bootstrap_token($1, $2, $3, $4, $5, $6, $7, $8, $9)`

const sqlWhyNotConsumed = `
SELECT t.token_id, t.server_id, t.attempt, t.consumed_at IS NOT NULL AS consumed, COALESCE(t.consumed_key = $2, false) AS same_key,
       COALESCE(now() - t.consumed_at <= make_interval(secs => $3), false) AS recent, t.superseded_at IS NOT NULL AS superseded, t.expires_at <= now() AS expired,
       s.status, s.role, s.attempt AS row_attempt, s.host, s.ipv6,
       ($4 = '' OR s.host = $4 OR (s.ipv6 <> '' AND $4::inet <<= s.ipv6::inet)) AS source_ok
FROM server_bootstrap_tokens t JOIN servers s USING (server_id)
WHERE t.token_hash = $1`

const sqlRevokeExpired = `
UPDATE server_bootstrap_tokens SET superseded_at = now() WHERE token_id = $1 AND consumed_at IS NULL AND superseded_at IS NULL`

// ConsumeToken exchanges a bootstrap token, once, and binds the server to the
// key (direct-provisioning §4). Refusals are coded: CodeTokenUnknown,
// CodeTokenSuperseded, CodeBootstrapExpired, CodeTokenConsumed (as a
// *server.SecondKeyError when it ends the bootstrap), CodeSourceMismatch and
// CodeNotReady. None of them burns the token.
func (s *Store) ConsumeToken(ctx context.Context, p server.TokenClaim) (server.TokenConsumed, error) {
	out, err := s.consume(ctx, p)
	var refusal error
	if errors.Is(err, errNotConsumable) {
		err = s.inTx(ctx, "consume token", func(tx *txn) (err error) {
			out, refusal, err = whyNotConsumed(ctx, tx, p)
			return err
		})
	}
	if err != nil {
		return server.TokenConsumed{}, err
	}
	return out, refusal
}

var errNotConsumable = errors.New("the token can't be consumed")

func (s *Store) consume(ctx context.Context, p server.TokenClaim) (out server.TokenConsumed, err error) {
	out.ServerID = p.ServerID
	err = s.pool.QueryRow(ctx, sqlConsumeToken, p.TokenHash, p.Key, p.ServerID, p.Source, p.AgentVersion, p.BootID, filled(p.Tags),
		uuid.NewString(), shortKey(p.Key)).Scan(&out.Attempt, &out.Host, &out.IPv6, &out.Status, &out.Role)
	return out, failed("consume token", ifNoRows(err, errNotConsumable))
}

// whyNotConsumed finds out why the UPDATE matched no row. What it writes (a revocation, an
// audit row) is committed along with the rejection.
func whyNotConsumed(ctx context.Context, tx *txn, p server.TokenClaim) (out server.TokenConsumed, refusal, err error) {
	type token struct {
		server.TokenConsumed
		TokenID                                                  string
		RowAttempt                                               int
		Consumed, SameKey, Recent, Superseded, Expired, SourceOK bool
	}
	t := findIn[token](ctx, tx, sqlWhyNotConsumed, p.TokenHash, p.Key, repeatWindow.Seconds(), p.Source)
	if t == nil || t.ServerID != p.ServerID {
		return out, prego.Errorf(prego.CodeTokenUnknown, "the bootstrap token is not known"), nil
	}
	out = t.TokenConsumed
	booting := t.Status == server.Provisioning && t.RowAttempt == t.Attempt
	superseded := t.Superseded || t.RowAttempt != t.Attempt
	expired := prego.Errorf(prego.CodeBootstrapExpired, "the bootstrap token has expired")
	switch {
	case t.Expired && !t.Consumed && !superseded:
		tx.run(ctx, sqlRevokeExpired, t.TokenID)
		event := server.Event{
			ServerID: t.ServerID, Step: server.StepHandshakeRefused, Attempt: t.Attempt, Actor: prego.ActorSystem,
			Message: "an expired bootstrap token was presented",
		}
		return out, expired, addEvent(ctx, tx, event, fmt.Sprintf("%s/%d/expired", server.StepHandshakeRefused, t.Attempt))
	case t.Expired && superseded: // by its own revocation, for example
		return out, expired, nil
	case superseded:
		return out, prego.Errorf(prego.CodeTokenSuperseded, "the bootstrap token was superseded or revoked"), nil
	case p.Source != "" && t.Host == "":
		return out, prego.Errorf(prego.CodeNotReady, "the server is not recorded yet; try again"), nil
	case !t.SourceOK:
		return out, prego.Errorf(prego.CodeSourceMismatch, "the handshake comes from %s, which is not the server's address", p.Source), nil
	case t.Consumed && t.SameKey && t.Recent && (booting || t.Status == server.Active):
		return out, nil, nil
	case t.Consumed:
		refused := prego.Errorf(prego.CodeTokenConsumed, "the bootstrap token was consumed already")
		tx.check(auditBootstrap(ctx, tx, t.ServerID, "refuse consumed token_id="+t.TokenID+" key="+shortKey(p.Key), prego.ActorSystem, 1))
		event := server.Event{
			ServerID: t.ServerID, Step: server.StepHandshakeRefused, Attempt: t.Attempt, Actor: prego.ActorSystem,
			Message: "a consumed bootstrap token was presented again",
		}
		if t.SameKey || !booting {
			return out, refused, addEvent(ctx, tx, event, fmt.Sprintf("%s/%d/late", server.StepHandshakeRefused, t.Attempt))
		}
		event.Reason, event.Message = prego.ReasonFailedBootstrap, "the bootstrap token was presented by a second key"
		return out, &server.SecondKeyError{Refusal: refused, ServerID: t.ServerID, Attempt: t.Attempt},
			addEvent(ctx, tx, event, attemptKey(server.StepHandshakeRefused, t.Attempt))
	case booting:
		// Its address was recorded after the UPDATE had checked. A host gives up on any other answer.
		return out, prego.Errorf(prego.CodeNotReady, "the server has just been recorded; try again"), nil
	}
	return out, prego.Errorf(prego.CodeTokenSuperseded, "the server is %s: its bootstrap is over", t.Status), nil
}

// shortKey returns enough of a key's hash to distinguish two keys.
func shortKey(key []byte) string { return hex.EncodeToString(key[:min(6, len(key))]) }

const sqlBootIdentity = `
SELECT t.server_id, t.attempt, t.expires_at <= now() AS expired FROM server_bootstrap_tokens t JOIN servers s USING (server_id)
WHERE t.token_hash = $1 AND (t.expires_at <= now() OR t.superseded_at IS NULL AND s.attempt = t.attempt AND s.status = 'provisioning')`

// BootIdentity checks a bootstrap token without consuming it. Its refusals are CodeTokenUnknown and
// CodeBootstrapExpired.
func (s *Store) BootIdentity(ctx context.Context, tokenHash []byte) (server.BootIdentity, error) {
	type identity struct {
		server.BootIdentity
		Expired bool
	}
	is, err := get[identity](ctx, s.pool, prego.Errorf(prego.CodeTokenUnknown, "the bootstrap token is unknown or was revoked"), sqlBootIdentity, tokenHash)
	if err == nil && is.Expired {
		return server.BootIdentity{}, prego.Errorf(prego.CodeBootstrapExpired, "the bootstrap token has expired")
	}
	return is.BootIdentity, err
}

// AddBootStage adds a boot milestone to the timeline, once per attempt. Retries of a step
// are recorded at most once a minute.
func (s *Store) AddBootStage(ctx context.Context, b server.BootIdentity, stage, detail string) error {
	event := server.Event{ServerID: b.ServerID, Step: server.StepBootStage, Attempt: b.Attempt, Message: stage, Actor: prego.ActorSystem}
	if detail != "" {
		event.Message += ": " + prego.Redact(detail)
	}
	if stage == server.BootStageFailed {
		event.Reason = prego.ReasonFailedBoot
		if strings.Contains(detail, string(prego.ReasonClockSkew)+":") {
			event.Reason = prego.ReasonClockSkew
		}
	}
	key := fmt.Sprintf("%s/%d/%s", server.StepBootStage, b.Attempt, stage)
	if stage == server.BootStageRetrying {
		key += time.Now().UTC().Format("/2006-01-02T15:04")
	}
	return s.AddEvent(ctx, event, key)
}
