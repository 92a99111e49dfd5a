package placer

import "sync"

// gate is a lock for the time of a database query. Unlike a mutex it waits on a channel, so the seeded world's clock
// and other goroutines continue meanwhile.
type gate struct {
	once sync.Once
	in   chan struct{}
}

// Lock waits until the gate is free.
func (g *gate) Lock() {
	g.once.Do(func() { g.in = make(chan struct{}, 1) })
	g.in <- struct{}{}
}

// Unlock lets the next one in.
func (g *gate) Unlock() { <-g.in }
