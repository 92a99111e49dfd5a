package ops

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego"
)

// AuditVerb is an action on a thing.
type AuditVerb string

// The verbs of the audit.
const (
	AuditCreate  AuditVerb = "create"
	AuditUpdate  AuditVerb = "update"
	AuditDelete  AuditVerb = "delete"
	AuditRequest AuditVerb = "request" // a request that changed no row that is audited
	AuditRefuse  AuditVerb = "refuse"  // requests that were refused because of who sent them
)

// AuditSource is who changes something, from where and by what.
type AuditSource struct {
	Actor     string `json:"actor"` // the id of the principal
	ActorName string `json:"actor_name"`
	Role      string `json:"role"` // the access roles that allowed it
	From      string `json:"from"` // an address
	RequestID string `json:"request_id"`
	Operation string `json:"operation"` // operationId, or the command
}

// Refusal is requests of a principal for an operation that were refused: the first one, and how many there were.
type Refusal struct {
	Source   AuditSource
	Kind, ID string // what the first one was about
	Code     prego.Code
	Count    int
	Since    time.Time // of the first one
}

type auditSourceKey struct{}

// WithAuditSource returns a context with the source of its changes for the audit.
func WithAuditSource(ctx context.Context, s AuditSource) context.Context {
	return context.WithValue(ctx, auditSourceKey{}, s)
}

// AuditSourceOf is who changes something in a context, false for a workflow.
func AuditSourceOf(ctx context.Context) (AuditSource, bool) {
	s, ok := ctx.Value(auditSourceKey{}).(AuditSource)
	return s, ok
}

// AuditHash is a SHA-256 of the chain.
type AuditHash [sha256.Size]byte

func (h AuditHash) String() string { return hex.EncodeToString(h[:]) }

// AuditEntry is a row that a request changed, or a request.
type AuditEntry struct {
	EntryID   int64
	At        time.Time // to the microsecond
	Actor     string
	ActorName string
	Role      string
	Address   string `json:"from"`
	RequestID string
	Operation string
	Kind      string
	ID        string
	OrgID     prego.OrgID
	Verb      AuditVerb
	Old, New  *string // JSON objects, as Postgres prints them
	Seq       *int64  // in the chain; nil until it is sealed
	PrevHash  []byte
	Hash      []byte
}

// Encoding is the text of an entry that is hashed. Each field is its bytes behind their
// number, so that no two entries have one encoding. The SQL function audit_encoding makes the same.
func (e AuditEntry) Encoding() string {
	var b strings.Builder
	for _, f := range []string{
		strconv.FormatInt(e.EntryID, 10), e.At.UTC().Format("2006-01-02T15:04:05.000000Z"), e.Actor, e.ActorName, e.Role, e.Address, e.RequestID, e.Operation, e.Kind, e.ID, string(e.OrgID), string(e.Verb),
	} {
		writeAuditField(&b, &f)
	}
	writeAuditField(&b, e.Old)
	writeAuditField(&b, e.New)
	return b.String()
}

func writeAuditField(b *strings.Builder, f *string) {
	if f == nil {
		b.WriteString("-,")
		return
	}
	b.WriteString(strconv.Itoa(len(*f)) + ":" + *f + ",")
}

// Sealed is the hash of an entry behind the previous entry.
func (e AuditEntry) Sealed(before AuditHash) AuditHash {
	return sha256.Sum256(append(before[:], e.Encoding()...))
}

// AuditHead is the end of the chain: the number of the last sealed entry, and its hash.
type AuditHead struct {
	Seq  int64
	Hash AuditHash
}

func (h AuditHead) String() string { return strconv.FormatInt(h.Seq, 10) + ":" + h.Hash.String() }

// ParseAuditHead reads what String wrote.
func ParseAuditHead(s string) (h AuditHead, err error) {
	seq, sum, _ := strings.Cut(s, ":")
	h.Seq, err = strconv.ParseInt(seq, 10, 64)
	b, bad := hex.DecodeString(sum)
	if err != nil || h.Seq < 0 || bad != nil || len(b) != len(h.Hash) {
		return AuditHead{}, prego.Invalid("head", "must be a number in the chain, a colon and the hash in 64 hexadecimal digits")
	}
	copy(h.Hash[:], b)
	return h, nil
}

// AuditDamage is what verification finds.
type AuditDamage string

// What may be wrong with the audit.
const (
	AuditChanged            AuditDamage = "changed"             // an entry differs from the sealed one
	AuditRemoved            AuditDamage = "removed"             // a sealed entry is gone
	AuditLinkMissing        AuditDamage = "link_missing"        // a number of the chain is gone
	AuditLinkBroken         AuditDamage = "link_broken"         // a link does not continue the previous one
	AuditBeginningMissing   AuditDamage = "beginning_missing"   // the first link continues neither a link nor a checkpoint
	AuditCheckpointUnsigned AuditDamage = "checkpoint_unsigned" // a checkpoint has no entry
	AuditHeadDiffers        AuditDamage = "head_differs"        // the head noted elsewhere has another hash
	AuditEndMissing         AuditDamage = "end_missing"         // the chain ends before the head noted elsewhere
	AuditUnsealed           AuditDamage = "unsealed"            // an entry waits for too long
)

// AuditProblem is one thing that is wrong.
type AuditProblem struct {
	Seq     int64 // 0 if it is nowhere in the chain
	EntryID int64 // 0 if it is not known
	Problem AuditDamage
	Message string
}

// AuditCheck is the part of the chain to verify.
type AuditCheck struct {
	From  int64 // 0 for the first that is kept
	Limit int
	Head  *AuditHead // that was noted elsewhere
}

// AuditVerification is the result.
type AuditVerification struct {
	Entries, Sealed, Unsealed int64
	FirstSeq                  int64 // 0 if nothing is sealed
	CheckedFrom               int64
	CheckedThrough            int64
	NextFrom                  int64 // 0 at the end
	Head                      AuditHead
	Problems                  []AuditProblem
}
