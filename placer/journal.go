package placer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// journal records what happens to the placer's snapshot, so that every decision can be replayed from storage: the
// initial snapshot, then all changes and decisions. Each event is stored before its decision is carried out. The
// placer's lock guards it.
type journal struct {
	id      string
	began   time.Time
	state   *placement.KeptState // nil once taken for writing
	pending []any
	owed    bool  // a decision is pending
	next    int64 // number of the next event
	room    int64 // bytes of events left before the next journal starts
	most    int64 // number of events before the next journal starts
}

const (
	// journalFor is how long a journal is continued: reading a decision reads its journal up to it.
	journalFor = time.Hour
	// journalEvents is the least number of events before the next journal starts. A large fleet allows more, because
	// its initial snapshot is large.
	journalEvents = 512
	journalBytes  = 1 << 20
	// unkeptMost limits the unwritten rows of ended journals. They belong to decisions without a record.
	unkeptMost = 8
)

// randomID is unique among all processes.
func randomID() string {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // it never fails
	return hex.EncodeToString(id)
}

func newJournal(id string, f *placement.Snapshot, version string) *journal {
	state := f.Keep(version)
	n := int64(len(state.Data.Servers))
	return &journal{id: id, began: time.Now(), state: &state, next: 1, room: journalBytes + 128*n, most: max(journalEvents, n/4)}
}

// over reports whether a new journal must start.
func (j *journal) over() bool {
	return j.room < 0 || j.next > j.most || time.Since(j.began) > journalFor
}

func (j *journal) add(e placement.KeptEvent) error {
	raw, err := json.Marshal(e) // now, since what it holds changes
	if err != nil {
		return err
	}
	j.pending = append(j.pending, json.RawMessage(raw))
	j.next++
	j.owed = j.owed || e.Decided != nil
	j.room -= int64(len(raw))
	return nil
}

// take takes the unwritten rows.
func (j *journal) take() (out []tenant.KeptInput) {
	if j.state != nil {
		out = append(out, tenant.KeptInput{Journal: j.id, Events: []any{j.state}})
		j.state = nil
	}
	if n := int64(len(j.pending)); n > 0 {
		out = append(out, tenant.KeptInput{Journal: j.id, First: j.next - n, Events: j.pending})
		j.pending, j.owed = nil, false
	}
	return out
}

// changed records a change of the snapshot. The lock must be held.
func (p *Placer) changed(c placement.Change) {
	switch {
	case p.journal == nil:
	case c.Full:
		p.endJournal()
	default:
		if err := p.journal.add(placement.KeptEvent{Change: &c}); err != nil || p.journal.room < 0 {
			p.endJournal()
		}
	}
}

// endJournal lets the next decision start a new journal. Unwritten rows are kept for the next write, because
// decisions may be among them. The lock must be held.
func (p *Placer) endJournal() {
	if p.journal != nil && p.journal.owed {
		p.unkept = append(p.unkept, p.journal.take()...)
		p.unkept = p.unkept[max(0, len(p.unkept)-unkeptMost):] // recorded decisions were written immediately
	}
	p.journal = nil
}

// decide decides on requests in order, counts them in the snapshot and records them. The lock must be held.
func (p *Placer) decide(requests []placement.Request) []placement.Decision {
	if p.journal == nil || p.journal.over() {
		p.endJournal()
		newID := p.NewJournalID
		if newID == nil {
			newID = randomID
		}
		p.journal = newJournal(newID(), p.fleet, p.Version)
	}
	all := make([]placement.Decision, len(requests))
	for i, r := range requests {
		d := p.fleet.Decide(r)
		if p.journal != nil {
			d.Input = fmt.Sprintf("%s/%d", p.journal.id, p.journal.next)
			kept := placement.KeptDecision{Request: r, Place: d.KeptPlace}
			if p.journal.add(placement.KeptEvent{Decided: &kept}) != nil {
				p.journal, d.Input = nil, "" // the following decisions have no input
			}
		}
		p.fleet.Apply(r, d)
		all[i] = d
	}
	return all
}

// keep writes the unwritten rows of the journal. A decision does not fail if its input can't be stored.
func (p *Placer) keep(ctx context.Context) {
	p.mu.Lock()
	rows := p.unkept
	p.unkept = nil
	if p.journal != nil {
		rows = append(rows, p.journal.take()...)
	}
	p.mu.Unlock()
	if len(rows) == 0 {
		return
	}
	if err := p.Store.KeepInputs(ctx, rows); err != nil {
		p.Metrics.Inputs.WithLabelValues("lost").Add(float64(len(rows)))
		p.mu.Lock()
		p.journal = nil // it has a gap
		p.mu.Unlock()
		return
	}
	p.Metrics.Inputs.WithLabelValues("kept").Add(float64(len(rows)))
}
