package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

const selectAudit = `
SELECT e.entry_id, e.at, e.actor, e.actor_name, e.role, e.address, e.request_id, e.operation, e.kind, e.id, e.org_id, e.verb, e.old::text AS old, e.new::text AS new, c.seq, c.prev_hash, c.hash
FROM audit_entries e LEFT JOIN audit_chain c ON c.entry_id = e.entry_id`

const sqlGetAudit = selectAudit + ` WHERE e.entry_id = $1`

func noSuchEntry(id string) error {
	return prego.Errorf(prego.CodeAuditEntryNotFound, "there is no audit entry %s", id)
}

// GetAuditEntry reads an entry of the audit, or CodeAuditEntryNotFound.
func (s *Store) GetAuditEntry(ctx context.Context, id int64) (ops.AuditEntry, error) {
	return get[ops.AuditEntry](ctx, s.pool, noSuchEntry(strconv.FormatInt(id, 10)), sqlGetAudit, id)
}

// AuditEntries is the list of the audit.
var AuditEntries = Listing[ops.AuditEntry]{
	what: "audit", from: selectAudit,
	filters: map[string]string{
		"actor": "e.actor", "kind": "e.kind", "id": "e.id", "org_id": "e.org_id", "operation": "e.operation", "verb": "e.verb", "request_id": "e.request_id",
		"since": "e.at >= $each::timestamptz", "until": "e.at < $each::timestamptz",
	},
	sorts: map[string]string{"at": "e.at"}, order: "-at", id: "e.entry_id", table: "audit_entries e",
	dimensions: []dimension{{filter: "kind"}, {filter: "actor"}, {filter: "operation"}, {filter: "org_id"}},
	narrow:     []string{"id", "request_id"},
}

const sqlWriteRequestAudit = `SELECT write_request_audit($1, $2, $3, $4, $5)`

// NoteRequest writes an entry for the request of the context, unless it has one: the request changed no audited row.
// The context must have a caller, which the setting includes.
func (s *Store) NoteRequest(ctx context.Context, kind, id string, org prego.OrgID) error {
	_, err := s.pool.Pool.Exec(ctx, sqlWriteRequestAudit, requestSetting(ctx), kind, id, org, nil)
	return failed("audit request", err)
}

const sqlWriteRefusalAudit = `SELECT write_refusal_audit($1, $2, $3, jsonb_build_object('code', $4::text, 'count', $5::int, 'since', $6::timestamptz))`

// NoteRefusal writes an entry for refused requests. It belongs to the installation: an org does not learn who else
// tried to reach its objects.
func (s *Store) NoteRefusal(ctx context.Context, r ops.Refusal) error {
	asked := requestSetting(ops.WithAuditSource(ctx, r.Source))
	_, err := s.pool.Pool.Exec(ctx, sqlWriteRefusalAudit, asked, r.Kind, r.ID, r.Code, r.Count, r.Since)
	return failed("audit refusals", err)
}

const sqlSealAudit = `SELECT sealed, seq, hash FROM seal_audit($1)`

// SealAudit adds at most so many entries to the chain, and returns their number and the chain's end.
func (s *Store) SealAudit(ctx context.Context, most int) (sealed int, head ops.AuditHead, err error) {
	var hash []byte
	err = s.pool.QueryRow(ctx, sqlSealAudit, most).Scan(&sealed, &head.Seq, &hash)
	copy(head.Hash[:], hash)
	return sealed, head, failed("seal audit", err)
}

const sqlPruneAudit = `SELECT prune_audit($1, $2)`

const sqlAuditHead = `SELECT seq, hash FROM audit_end()`

// AuditHead returns the end of the chain.
func (s *Store) AuditHead(ctx context.Context) (ops.AuditHead, error) {
	head, err := auditHead(ctx, s.pool)
	return head, failed("audit head", err)
}

func auditHead(ctx context.Context, q querier) (head ops.AuditHead, err error) {
	var hash []byte
	err = q.QueryRow(ctx, sqlAuditHead).Scan(&head.Seq, &hash)
	copy(head.Hash[:], hash)
	return head, err
}

// unsealedFor is how long an entry may stay unsealed.
const unsealedFor = 5 * time.Minute

// maxAuditProblems bounds what one verification returns.
const maxAuditProblems = 100

const (
	sqlAuditCounts = `
SELECT (SELECT count(*) FROM audit_entries), (SELECT count(*) FROM audit_chain), (SELECT COALESCE(min(seq), 0) FROM audit_chain)`
	sqlAuditCheckpoint = `
SELECT p.seq, p.hash, EXISTS (SELECT FROM audit_entries e WHERE e.kind = 'audit_checkpoint' AND e.id = p.seq::text AND e.new ->> 'hash' = encode(p.hash, 'hex'))
FROM audit_checkpoints p ORDER BY p.seq DESC LIMIT 1`
	sqlAuditLinks = `
SELECT c.seq AS number, c.entry_id AS link, c.prev_hash AS before, c.hash AS sum, e.entry_id IS NULL AS gone,
    COALESCE(e.entry_id, 0) AS entry_id, COALESCE(e.at, 'epoch') AS at, COALESCE(e.actor, '') AS actor, COALESCE(e.actor_name, '') AS actor_name, COALESCE(e.role, '') AS role, COALESCE(e.address, '') AS address,
    COALESCE(e.request_id, '') AS request_id, COALESCE(e.operation, '') AS operation, COALESCE(e.kind, '') AS kind, COALESCE(e.id, '') AS id, COALESCE(e.org_id, '') AS org_id,
    COALESCE(e.verb, '') AS verb, e.old::text AS old, e.new::text AS new
FROM audit_chain c LEFT JOIN audit_entries e ON e.entry_id = c.entry_id WHERE c.seq >= $1 ORDER BY c.seq LIMIT $2`
	sqlAuditNoted    = `SELECT COALESCE((SELECT hash FROM audit_chain WHERE seq = $1), (SELECT hash FROM audit_checkpoints WHERE seq = $1))`
	sqlAuditLink     = `SELECT hash FROM audit_chain WHERE seq = $1`
	sqlAuditUnsealed = `
SELECT e.entry_id FROM audit_entries e WHERE e.at < now() - make_interval(secs => $1) AND NOT EXISTS (SELECT FROM audit_chain c WHERE c.entry_id = e.entry_id)
ORDER BY e.entry_id LIMIT $2`
)

// auditLink is a link of the chain beside its entry.
type auditLink struct {
	Number      int64
	Link        int64
	Before, Sum []byte
	Gone        bool
	EntryID     int64
	At          time.Time
	Actor       string
	ActorName   string
	Role        string
	Address     string
	RequestID   string
	Operation   string
	Kind        string
	ID          string
	OrgID       prego.OrgID
	Verb        ops.AuditVerb
	Old, New    *string
}

func (l auditLink) entry() ops.AuditEntry {
	return ops.AuditEntry{
		EntryID: l.EntryID, At: l.At, Actor: l.Actor, ActorName: l.ActorName, Role: l.Role, Address: l.Address, RequestID: l.RequestID, Operation: l.Operation, Kind: l.Kind, ID: l.ID,
		OrgID: l.OrgID, Verb: l.Verb, Old: l.Old, New: l.New,
	}
}

// VerifyAudit computes part of the chain again and compares. It reads everything as of one moment.
func (s *Store) VerifyAudit(ctx context.Context, c ops.AuditCheck) (ops.AuditVerification, error) {
	v := auditVerifier{check: c}
	err := s.inView(ctx, "verify audit", func(tx *txn) error {
		return v.run(ctx, tx)
	})
	return v.found, err
}

// auditVerifier walks along the chain.
type auditVerifier struct {
	check ops.AuditCheck
	found ops.AuditVerification
}

func (v *auditVerifier) notef(seq, entry int64, what ops.AuditDamage, format string, args ...any) {
	if len(v.found.Problems) < maxAuditProblems {
		v.found.Problems = append(v.found.Problems, ops.AuditProblem{Seq: seq, EntryID: entry, Problem: what, Message: fmt.Sprintf(format, args...)})
	}
}

func (v *auditVerifier) run(ctx context.Context, q querier) (err error) {
	f := &v.found
	if err := q.QueryRow(ctx, sqlAuditCounts).Scan(&f.Entries, &f.Sealed, &f.FirstSeq); err != nil {
		return err
	}
	if f.Head, err = auditHead(ctx, q); err != nil {
		return err
	}
	f.CheckedFrom = max(v.check.From, 1)
	at, err := v.begin(ctx, q)
	if err != nil {
		return err
	}
	links, err := many[auditLink](ctx, q, sqlAuditLinks, f.CheckedFrom, v.check.Limit+1)
	if err != nil {
		return err
	}
	if len(links) > v.check.Limit {
		links = links[:v.check.Limit]
		f.NextFrom = links[len(links)-1].Number + 1
	}
	for _, l := range links {
		v.link(&at, l)
	}
	f.CheckedThrough = at.Seq
	if err := v.compare(ctx, q); err != nil || f.NextFrom > 0 {
		return err
	}
	return v.unsealed(ctx, q)
}

// begin returns the head that the first link continues.
func (v *auditVerifier) begin(ctx context.Context, q querier) (at ops.AuditHead, err error) {
	f := &v.found
	if v.check.From > f.FirstSeq && f.FirstSeq > 0 {
		at.Seq = v.check.From - 1
		hash, err := value[[]byte](ctx, q, sqlAuditLink, at.Seq)
		if isNoRows(err) {
			v.notef(at.Seq, 0, ops.AuditLinkMissing, "number %d of the chain is missing", at.Seq)
			return at, nil
		}
		copy(at.Hash[:], hash)
		return at, err
	}
	var signed bool
	var hash []byte
	switch err := q.QueryRow(ctx, sqlAuditCheckpoint).Scan(&at.Seq, &hash, &signed); {
	case isNoRows(err):
		at = ops.AuditHead{}
	case err != nil:
		return at, err
	case !signed:
		v.notef(at.Seq, 0, ops.AuditCheckpointUnsigned, "the audit is pruned through number %d, and no entry records it", at.Seq)
	}
	copy(at.Hash[:], hash)
	f.CheckedFrom = at.Seq + 1
	if f.FirstSeq > at.Seq+1 {
		v.notef(f.FirstSeq, 0, ops.AuditBeginningMissing, "the chain begins with number %d instead of %d", f.FirstSeq, at.Seq+1)
		f.CheckedFrom, at.Seq = f.FirstSeq, f.FirstSeq-1
	}
	return at, nil
}

// link checks a link against its predecessor and advances to it.
func (v *auditVerifier) link(at *ops.AuditHead, l auditLink) {
	e := l.entry()
	whole := l.Number == at.Seq+1
	if !whole {
		v.notef(at.Seq+1, 0, ops.AuditLinkMissing, "numbers %d to %d of the chain are missing", at.Seq+1, l.Number-1)
	}
	var before, sum ops.AuditHash
	copy(before[:], l.Before)
	copy(sum[:], l.Sum)
	if whole && before != at.Hash && (at.Hash != ops.AuditHash{} || l.Number == 1) {
		v.notef(l.Number, l.Link, ops.AuditLinkBroken, "does not follow number %d", at.Seq)
	}
	switch {
	case l.Gone:
		v.notef(l.Number, l.Link, ops.AuditRemoved, "the entry is gone")
	case e.Sealed(before) != sum:
		v.notef(l.Number, l.Link, ops.AuditChanged, "the entry differs from the sealed one: its hash is %s", e.Sealed(before))
	}
	*at = ops.AuditHead{Seq: l.Number, Hash: sum}
}

// compare finds differences from a head that was kept elsewhere.
func (v *auditVerifier) compare(ctx context.Context, q querier) error {
	want, f := v.check.Head, &v.found
	if want == nil || want.Seq == 0 {
		return nil
	}
	if f.Head.Seq < want.Seq {
		v.notef(f.Head.Seq, 0, ops.AuditEndMissing, "the chain ends with number %d; there was a number %d", f.Head.Seq, want.Seq)
		return nil
	}
	hash, err := value[[]byte](ctx, q, sqlAuditNoted, want.Seq)
	if err != nil {
		return err
	}
	switch {
	case hash == nil && f.FirstSeq > want.Seq: // pruned since
	case hash == nil:
		v.notef(want.Seq, 0, ops.AuditLinkMissing, "number %d of the chain is missing", want.Seq)
	case !bytes.Equal(hash, want.Hash[:]):
		v.notef(want.Seq, 0, ops.AuditHeadDiffers, "the chain has the hash %s where it had %s: it was rewritten", hex.EncodeToString(hash), want.Hash)
	}
	return nil
}

// unsealed finds entries that have waited too long.
func (v *auditVerifier) unsealed(ctx context.Context, q querier) error {
	v.found.Unsealed = max(v.found.Entries-v.found.Sealed, 0)
	ids, err := values[int64](ctx, q, sqlAuditUnsealed, unsealedFor.Seconds(), maxAuditProblems)
	if err != nil {
		return err
	}
	for _, id := range ids {
		v.notef(0, id, ops.AuditUnsealed, "has been unsealed for more than %s", unsealedFor)
	}
	return nil
}
