package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// errNoDatabase keeps processes from starting while the database is away.
var errNoDatabase = errors.New("the database is being restored")

// loses has a play lose its database: at one random moment it is backed up, at a later one it is lost with all
// processes, restored to the first, and completed. Everything else is as it was at the second.
func (w *World) loses() {
	rng := rand.New(rand.NewPCG(w.Seed, 6))
	moments := []time.Duration{
		time.Duration(1+rng.IntN(500)) * time.Second, time.Duration(1+rng.IntN(500)) * time.Second,
	}
	w.ending.Add(1)
	go func() {
		defer w.ending.Done()
		for i, do := range []func() error{w.backUp, w.loseDatabase} {
			time.Sleep(moments[i])
			if w.over() {
				return
			}
			w.Schedule.yield(nil, "disaster", []string{"the database is backed up", "the database is lost"}[i])
			if w.over() {
				return
			}
			if err := do(); err != nil {
				w.violationf("the database is not restored: %v", err)
				return
			}
		}
	}()
}

// onDatabase runs a statement that sees one moment, however many tables it reads.
func (w *World) onDatabase(sql string) error {
	pool, err := w.open()
	if err != nil {
		return err
	}
	defer pool.Close()
	moment := pgx.TxOptions{IsoLevel: pgx.RepeatableRead}
	return pgx.BeginTxFunc(context.Background(), pool, moment, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), sql)
		return err
	})
}

func (w *World) backUp() error { return w.onDatabase(`SELECT world_kept.back_up()`) }

func (w *World) loseDatabase() error {
	w.lost.Store(true)
	w.mu.Lock()
	all := append([]*Life(nil), w.processes...)
	w.mu.Unlock()
	for _, l := range all {
		w.dies(l)
	}
	l, err := w.born("restore")
	if err != nil {
		return err
	}
	defer l.kill()
	restored := false
	for {
		err := w.system.Restore(l, func() error {
			if restored {
				return nil
			}
			restored = true
			w.Schedule.Sayf("--- the database is restored")
			return w.onDatabase(`SELECT world_kept.restore()`)
		})
		switch {
		case w.over():
			return nil
		case err == nil:
			w.Met("a restored database was completed")
			w.lost.Store(false)
			for _, kind := range []string{"api", "gateway", "worker"} {
				w.restart(kind)
			}
			return nil
		case l.dead.Load():
			return fmt.Errorf("the restore died: %w", err)
		}
		w.Schedule.Sayf("the restore is repeated: %v", err)
		time.Sleep(3 * time.Second)
	}
}

// dies ends a process, and what it was about to do.
func (w *World) dies(l *Life) {
	if l.dead.Load() {
		return
	}
	w.Schedule.mu.Lock()
	var mine []*turn
	rest := w.Schedule.turns[:0:0]
	for _, other := range w.Schedule.turns {
		if other.life == l {
			mine = append(mine, other)
		} else {
			rest = append(rest, other)
		}
	}
	w.Schedule.turns = rest
	w.Schedule.mu.Unlock()
	l.kill()
	for _, t := range mine {
		close(t.goOn)
	}
}
