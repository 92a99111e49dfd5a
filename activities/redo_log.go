package activities

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// RedoLog keeps the redo log in the storage of backups, sealed like them. Without a storage there is none, and a
// restored database can't be told from another.
type RedoLog struct {
	Store       *store.Store
	Objects     ObjectStorage // nil: none
	Vault       BackupVault
	Environment string
	Now         func() time.Time
}

const (
	// redoKept is how long entries stay: for a base backup that is older the log is of no use.
	redoKept = 35 * 24 * time.Hour
	// redoMostBytes is the size of the largest object that is read.
	redoMostBytes = 256 << 20
	redoPage      = 1000
	redoReads     = 16 // concurrently, while a database is completed
)

// folder is beside those of backups, whose objects are compared with rows.
func (l *RedoLog) folder() string { return "redo/" + l.Environment + "/" }

func (l *RedoLog) key(number int64) string { return fmt.Sprintf("%s%012d", l.folder(), number) }

// redoObject is an entry as it is stored.
type redoObject struct {
	KeyID  string `json:"key_id"`
	Sealed []byte `json:"sealed"` // of the gzipped entry
	MAC    []byte `json:"mac"`    // of its key and what is sealed: write access to the storage is not enough to make one
}

func (l *RedoLog) mac(number int64, o redoObject) ([]byte, error) {
	return l.Vault.MAC(o.KeyID, append([]byte(l.key(number)+"\x00"), o.Sealed...))
}

// newest is the number of the newest entry after one, which itself is the answer if there is none.
func (l *RedoLog) newest(ctx context.Context, after int64) (int64, error) {
	newest := after
	for {
		page, err := l.Objects.List(ctx, l.folder(), l.key(newest), redoPage)
		if err != nil {
			return 0, err
		}
		for _, o := range page {
			n, err := strconv.ParseInt(strings.TrimPrefix(o.Key, l.folder()), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s is no entry of the redo log", o.Key)
			}
			newest = n
		}
		if len(page) < redoPage {
			return newest, nil
		}
	}
}

// Verify compares the database with the storage, unless it is the one that was compared last. It returns why nothing
// may be changed by it, "" if all may. If the storage does not answer, that is an error and a reason: what is not
// compared is not trusted.
func (l *RedoLog) Verify(ctx context.Context, anyway bool) (why string, err error) {
	s, err := l.Store.RedoTrust(ctx)
	if err != nil || s.RecoveringSince != nil || !anyway && s.Verified == s.Lineage {
		return s.Recovering, err
	}
	if l.Objects != nil {
		newest, err := l.newest(ctx, s.Number)
		if err != nil {
			return s.Unverified(), fmt.Errorf("compare the database with its redo log: %w", err)
		}
		if newest > s.Number {
			why = fmt.Sprintf("the database was restored to an earlier moment: it ends with entry %d of its redo log, "+
				"which has %d. Nothing is changed until prego restore apply completes it", s.Number, newest)
			return why, l.Store.Recovering(ctx, why)
		}
	}
	return "", l.Store.RedoVerified(ctx, s.Number)
}

// Save makes the next entry and saves it, if anything has changed; n is 0 if not.
func (l *RedoLog) Save(ctx context.Context) (n int64, err error) {
	if l.Objects == nil {
		return 0, l.Store.DropRedo(ctx)
	}
	s, err := l.Store.RedoState(ctx)
	if err != nil || !s.Due || s.Unverified() != "" {
		return 0, err
	}
	// A restored database that nobody has noticed yet must not overwrite what it lacks.
	if _, there, err := l.Objects.Head(ctx, l.key(s.Number+1)); err != nil || there {
		if there {
			_, err = l.Verify(ctx, true)
		}
		return 0, err
	}
	n, body, err := l.Store.NextRedo(ctx, l.seal)
	if err != nil || body == nil {
		return 0, err
	}
	if err := l.Objects.Put(ctx, l.key(n), body); err != nil {
		return 0, err
	}
	return n, l.Store.RedoSaved(ctx, n)
}

func (l *RedoLog) seal(e ops.RedoEntry) ([]byte, error) {
	number := e.Number
	e.At = l.Now().UTC()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if err := json.NewEncoder(z).Encode(e); err != nil {
		return nil, fmt.Errorf("entry %d of the redo log: %w", number, err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("entry %d of the redo log: %w", number, err)
	}
	sealed, keyID, err := l.Vault.Seal(l.key(number), packed.Bytes())
	if err != nil {
		return nil, err
	}
	o := redoObject{KeyID: keyID, Sealed: sealed}
	if o.MAC, err = l.mac(number, o); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}

// Missing reads the entries that the database lacks, in order, and the number of the newest.
func (l *RedoLog) Missing(ctx context.Context) (entries []ops.RedoEntry, newest int64, err error) {
	s, err := l.Store.RedoState(ctx)
	if err != nil || l.Objects == nil {
		return nil, s.Number, err
	}
	if newest, err = l.newest(ctx, s.Number); err != nil {
		return nil, 0, err
	}
	entries = make([]ops.RedoEntry, newest-s.Number)
	g, reading := errgroup.WithContext(ctx)
	g.SetLimit(redoReads)
	for i := range entries {
		n := s.Number + 1 + int64(i)
		g.Go(func() (err error) {
			if entries[i], err = l.read(reading, n); err != nil {
				err = fmt.Errorf("entry %d of the redo log; the database lacks %d to %d: %w", n, s.Number+1, newest, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, newest, err
	}
	return entries, newest, nil
}

// Reject has the entries that the database lacks count for nothing, in this restore and in later ones, and returns the
// number of the newest entry then.
func (l *RedoLog) Reject(ctx context.Context, from, newest int64) (int64, error) {
	if l.Objects == nil || newest == from {
		return newest, nil
	}
	e := ops.RedoEntry{Number: newest + 1, Void: from + 1}
	body, err := l.seal(e)
	if err == nil {
		err = l.Objects.Put(ctx, l.key(e.Number), body)
	}
	return e.Number, err
}

// A Restore is what a restored database lacks.
type Restore struct {
	State   ops.RedoState
	Newest  int64 // entry of the redo log in the storage
	Entries []ops.RedoEntry
	Changes []ops.RedoChange
	Ended   int // runs, by the restore
}

// Lacks is whether the database is not completed yet.
func (r Restore) Lacks() bool { return r.State.RecoveringSince != nil || r.Newest > r.State.Number }

// Plan finds what the entries that the database lacks would change. It changes nothing.
func (l *RedoLog) Plan(ctx context.Context) (r Restore, err error) {
	if r.State, err = l.Store.RedoState(ctx); err != nil {
		return r, err
	}
	if r.Entries, r.Newest, err = l.Missing(ctx); err == nil && r.Newest > r.State.Number {
		r.Changes, err = l.Store.Redo(ctx, r.State.Number, r.Newest, r.Entries, true)
	}
	return r, err
}

// Apply completes the database, or leaves it as it is, and ends the open runs: the rows decide what continues.
func (l *RedoLog) Apply(
	ctx context.Context, endRuns func(ctx context.Context, why string) (int, error), asIs bool,
) (r Restore, err error) {
	if r.State, err = l.Store.RedoState(ctx); err != nil {
		return r, err
	}
	if r.Entries, r.Newest, err = l.Missing(ctx); err != nil && (!asIs || r.Newest == 0) {
		return r, err
	}
	if !r.Lacks() {
		return r, prego.Errorf(prego.CodeInvalidTransition, "the database lacks nothing of its redo log")
	}
	if err := l.Store.Recovering(ctx, "the database is being completed from its redo log"); err != nil {
		return r, err
	}
	if asIs {
		r.Entries = nil
		if r.Newest, err = l.Reject(ctx, r.State.Number, r.Newest); err != nil {
			return r, err
		}
	}
	// A run may not continue by rows that are about to change.
	if r.Ended, err = endRuns(ctx, "the database was restored"); err != nil {
		return r, err
	}
	r.Changes, err = l.Store.Redo(ctx, r.State.Number, r.Newest, r.Entries, false)
	return r, err
}

func (l *RedoLog) read(ctx context.Context, number int64) (e ops.RedoEntry, err error) {
	body, err := l.Objects.Get(ctx, l.key(number), redoMostBytes)
	if err != nil {
		return e, err
	}
	var o redoObject
	if err := json.Unmarshal(body, &o); err != nil {
		return e, err
	}
	mac, err := l.mac(number, o)
	if err != nil {
		return e, err
	}
	if !hmac.Equal(mac, o.MAC) {
		return e, errors.New("it was not made by this installation")
	}
	packed, err := l.Vault.Open(l.key(number), o.KeyID, o.Sealed)
	if err != nil {
		return e, err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return e, err
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(plain, &e)
}

// Prune deletes entries that no base backup needs.
func (l *RedoLog) Prune(ctx context.Context) (n int, err error) {
	if l.Objects == nil {
		return 0, nil
	}
	for {
		page, err := l.Objects.List(ctx, l.folder(), "", redoPage)
		if err != nil {
			return n, err
		}
		for _, o := range page {
			if l.Now().Sub(o.Modified) < redoKept {
				return n, nil
			}
			if err := l.Objects.Delete(ctx, o.Key); err != nil {
				return n, err
			}
			n++
		}
		if len(page) == 0 {
			return n, nil
		}
	}
}
