package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// The write does not wait for the disk: the commit of the reservation that follows does, and it is behind this one in
// the log.
const sqlKeepInputs = `
WITH lazy AS (SELECT set_config('synchronous_commit', 'off', true) AS off)
INSERT INTO decision_inputs (journal, first, events, body)
SELECT i.journal, i.first, i.events, i.body FROM unnest($1::text[], $2::bigint[], $3::integer[], $4::bytea[]) AS i (journal, first, events, body) CROSS JOIN lazy
WHERE lazy.off = 'off' ON CONFLICT DO NOTHING`

// Compressors for bodies; both may be used concurrently. They are created with the program, because their state must
// not belong to a test's bubble.
var (
	bodyEncoder = newEncoder()
	bodyDecoder = newDecoder()
)

func newEncoder() *zstd.Encoder {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // of the options
	}
	enc.EncodeAll([]byte{0}, nil) // its first use makes its channel
	return enc
}

func newDecoder() *zstd.Decoder {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		panic(err) // of the options
	}
	return dec
}

// KeepInputs stores the inputs of decisions.
func (s *Store) KeepInputs(ctx context.Context, rows []tenant.KeptInput) error {
	n := len(rows)
	journals, first, events, bodies := make([]string, n), make([]int64, n), make([]int, n), make([][]byte, n)
	for i, r := range rows {
		raw, err := json.Marshal(r.Events)
		if err != nil {
			return fmt.Errorf("keep inputs of decisions: %w", err)
		}
		journals[i], first[i], events[i], bodies[i] = r.Journal, r.First, len(r.Events), bodyEncoder.EncodeAll(raw, nil)
	}
	return s.exec(ctx, "keep inputs of decisions", sqlKeepInputs, journals, first, events, bodies)
}

const sqlDecisionInput = `SELECT first, events, body FROM decision_inputs WHERE journal = $1 AND first <= $2 ORDER BY first`

// DecisionInput reads the journal of an input up to its event: the state and the events, the last of
// which is the decision. It is CodeInputNotKept if anything of it is missing.
func (s *Store) DecisionInput(ctx context.Context, input string) (state json.RawMessage, events []json.RawMessage, err error) {
	none := prego.Errorf(prego.CodeInputNotKept, "the input of this decision is not kept: it is a move, was made before inputs were kept, or its input was pruned or lost")
	journal, at, ok := strings.Cut(input, "/")
	number, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return nil, nil, none
	}
	rows, err := collect[struct {
		First  int64
		Events int
		Body   []byte
	}](ctx, s, "input "+input, sqlDecisionInput, journal, number)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		if r.First != int64(len(events)) { // with the state in front
			return nil, nil, none
		}
		raw, err := bodyDecoder.DecodeAll(r.Body, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("input %s: %w", input, err)
		}
		var some []json.RawMessage
		if err := json.Unmarshal(raw, &some); err != nil {
			return nil, nil, fmt.Errorf("input %s: %w", input, err)
		}
		events = append(events, some...)
	}
	if number < 1 || int64(len(events)) <= number {
		return nil, nil, none
	}
	return events[0], events[1 : number+1], nil
}

const fromDecisions = `allocation_snapshots d JOIN tenants t ON t.tenant_id = d.tenant_id`

const selectDecisions = `
SELECT d.snapshot_id, d.tenant_id, d.allocation_id, d.outcome, d.code, d.algorithm, d.decision_log AS decision, d.policy_json AS policy, d.actor, d.created_at, t.org_id, t.region
FROM ` + fromDecisions

const sqlGetDecision = selectDecisions + ` WHERE d.snapshot_id = $1`

func noSuchDecision(id string) error {
	return prego.Errorf(prego.CodeDecisionNotFound, "there is no decision %s", id)
}

// GetDecision reads a decision, or CodeDecisionNotFound.
func (s *Store) GetDecision(ctx context.Context, id int64) (tenant.Decision, error) {
	return get[tenant.Decision](ctx, s.pool, noSuchDecision(strconv.FormatInt(id, 10)), sqlGetDecision, id)
}

// Decisions is the list of the decisions on all tenants.
var Decisions = Listing[tenant.Decision]{
	what: "decisions", from: selectDecisions, order: "-id",
	filters: map[string]string{"tenant_id": "d.tenant_id", "org_id": "t.org_id", "region": "t.region", "outcome": "d.outcome", "code": "d.code"},
	sorts:   map[string]string{"id": "d.snapshot_id"},
	id:      "d.snapshot_id",
	table:   fromDecisions, dimensions: []dimension{{filter: "outcome"}, {filter: "code"}}, narrow: []string{"tenant_id", "org_id"},
}
