package world

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// turn is something that can happen next: an actor that waits at a yield point, or an event.
type turn struct {
	actor, point string
	seq          int
	life         *Life
	until        time.Time // not before
	goOn         chan struct{}
	do           func()
}

func (t *turn) String() string { return t.actor + ": " + t.point }

// Scheduler runs one actor at a time. Once all other goroutines of the bubble wait, it picks a waiting actor at random,
// by its seed.
type Scheduler struct {
	bridge *bridge
	rng    *rand.Rand
	began  time.Time
	// stay is the probability that the last actor runs again, and slow the probability that a picked actor waits a
	// while instead.
	stay, slow float64
	// before is asked when a turn has been picked; false means that it does not happen.
	before func(*turn) bool

	mu      sync.Mutex
	turns   []*turn
	seq     int
	news    chan struct{}
	locked  map[*conn]chan struct{}
	release bool // a lock may be free
	fresh   bool // a statement waits for a lock since the last pause
	free    bool // no actor waits any more
	// awayUntil is until when Postgres takes no connection.
	awayUntil time.Time
	last      string

	Steps int
	Locks int // waits for locks
	trace []string
	sum   uint64
	keep  bool
}

func newScheduler(b *bridge, seed uint64) *Scheduler {
	return &Scheduler{
		bridge: b, rng: rand.New(rand.NewPCG(seed, 1)), began: time.Now(), news: make(chan struct{}, 1),
		locked: map[*conn]chan struct{}{},
	}
}

func (s *Scheduler) add(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	t.seq = s.seq
	s.turns = append(s.turns, t)
	s.tell()
}

func (s *Scheduler) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// yield waits until it is the actor's turn.
func (s *Scheduler) yield(l *Life, actor, point string) {
	s.mu.Lock()
	free := s.free
	s.mu.Unlock()
	if free {
		return
	}
	t := &turn{actor: actor, point: point, life: l, goOn: make(chan struct{})}
	s.add(t)
	<-t.goOn
}

// ready has an event happen at some time.
func (s *Scheduler) ready(name string, do func()) {
	s.mu.Lock()
	free := s.free
	s.mu.Unlock()
	if free {
		go do()
		return
	}
	s.add(&turn{actor: name, point: "event", do: do})
}

// onLock is called by a connection of the bubble whose statement waits for a lock.
func (s *Scheduler) onLock(c *conn) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	wake := make(chan struct{})
	if !c.waited {
		c.waited = true
		s.Locks++
		s.fresh = true
	}
	if s.free {
		close(wake)
		return wake
	}
	s.locked[c] = wake
	return wake
}

// mayRelease notes that a statement ended a transaction.
func (s *Scheduler) mayRelease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release = true
}

// recheck lets statements that wait for locks look again.
func (s *Scheduler) recheck() {
	s.mu.Lock()
	waiting := len(s.locked)
	for c, wake := range s.locked {
		close(wake)
		delete(s.locked, c)
	}
	s.release = false
	s.mu.Unlock()
	if waiting > 0 {
		synctest.Wait()
	}
}

// Run lets actors run until done, which it calls between steps, or the time is over; it reports which.
func (s *Scheduler) Run(done func() bool, until time.Time) bool {
	for {
		synctest.Wait()
		s.mu.Lock()
		release := s.release && len(s.locked) > 0
		s.mu.Unlock()
		if release {
			s.recheck()
		}
		if done() {
			return true
		}
		if !time.Now().Before(until) {
			return false
		}
		t, wait := s.pick()
		if t == nil {
			s.rest(min(wait, time.Until(until)))
			continue
		}
		if s.before != nil && !s.before(t) {
			continue
		}
		s.note(t)
		if t.do != nil {
			t.do()
		} else {
			close(t.goOn)
		}
	}
}

// rest lets the clock advance until something can happen.
func (s *Scheduler) rest(most time.Duration) {
	s.mu.Lock()
	stuck := len(s.locked) > 0 && s.fresh
	s.fresh = false
	s.mu.Unlock()
	if stuck { // Postgres resolves a deadlock
		s.bridge.pause(50 * time.Millisecond)
		s.recheck()
		s.mu.Lock()
		moved := len(s.turns) > 0
		s.mu.Unlock()
		if moved {
			return
		}
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-s.news:
	case <-timer.C:
	}
}

const never = 24 * time.Hour

// pick takes a turn; without one, it returns the time of the next.
func (s *Scheduler) pick() (*turn, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	wait := never
	var can []*turn
	for _, t := range s.turns {
		if t.until.After(now) {
			wait = min(wait, t.until.Sub(now))
			continue
		}
		can = append(can, t)
	}
	select {
	case <-s.news:
	default:
	}
	if len(can) == 0 {
		return nil, wait
	}
	slices.SortFunc(can, func(a, b *turn) int {
		return cmp.Or(cmp.Compare(a.actor, b.actor), cmp.Compare(a.point, b.point), cmp.Compare(a.seq, b.seq))
	})
	t := can[s.rng.IntN(len(can))]
	if s.rng.Float64() < s.stay {
		for _, other := range can {
			if other.actor == s.last {
				t = other
				break
			}
		}
	}
	if s.rng.Float64() < s.slow {
		t.until = now.Add(time.Duration(s.rng.ExpFloat64() * float64(5*time.Second)))
		return nil, s.nextTurn(now)
	}
	s.turns = slices.DeleteFunc(s.turns, func(other *turn) bool { return other == t })
	s.last = t.actor
	return t, 0
}

// nextTurn is how long it takes until there is a turn.
func (s *Scheduler) nextTurn(now time.Time) time.Duration {
	wait := never
	for _, t := range s.turns {
		wait = min(wait, max(t.until.Sub(now), 0))
	}
	return wait
}

func (s *Scheduler) note(t *turn) {
	s.Steps++
	s.bridge.steps.Add(1)
	s.Sayf("%s", t)
}

// Sayf adds a line to the timeline.
func (s *Scheduler) Sayf(format string, args ...any) {
	line := fmt.Sprintf("%9.3f %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
	s.mu.Lock()
	defer s.mu.Unlock()
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%x %s", s.sum, line)
	s.sum = h.Sum64()
	if s.keep {
		s.trace = append(s.trace, line)
	}
}

func (s *Scheduler) postgresAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.free && time.Now().Before(s.awayUntil)
}

// Free lets all actors run from now on: the test is over.
func (s *Scheduler) Free() {
	s.mu.Lock()
	s.free = true
	turns := s.turns
	s.turns = nil
	for c, wake := range s.locked {
		close(wake)
		delete(s.locked, c)
	}
	s.mu.Unlock()
	for _, t := range turns {
		if t.do != nil {
			go t.do()
		} else {
			close(t.goOn)
		}
	}
}
