package placer

import "sync"

// gate is a lock that is held while a database is asked. Unlike a mutex, who waits for it
// waits for a channel: in the seeded world, the clock and the others go on meanwhile.
type gate struct {
	once sync.Once
	in   chan struct{}
}

// Lock waits until nobody is in.
func (g *gate) Lock() {
	g.once.Do(func() { g.in = make(chan struct{}, 1) })
	g.in <- struct{}{}
}

// Unlock lets the next one in.
func (g *gate) Unlock() { <-g.in }
