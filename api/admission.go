package api

import (
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// admission bounds long requests: those of the process, and those of one caller. A part of the places is for operators
// only, so that viewers cannot keep an operator from running a command.
type admission struct {
	most, forOperators, each int
	code                     prego.Code
	what                     string

	mu  sync.Mutex
	all int
	of  map[string]int // by subject
}

// tryAgain is when a refused caller should ask again.
const tryAgain = 5 * time.Second

// enter takes a place for a caller; leave gives it back.
func (a *admission) enter(p access.Principal) (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	open := a.most
	if !p.Operator() {
		open -= a.forOperators
	}
	switch {
	case a.of[p.PrincipalID] >= a.each:
		return nil, &limitedError{after: tryAgain, refusal: prego.Errorf(a.code,
			"you have %d %s open, which is the limit of a caller; close some", a.each, a.what)}
	case a.all >= open:
		return nil, &limitedError{after: tryAgain, refusal: prego.Errorf(a.code,
			"too many %s are open here; try again later", a.what)}
	}
	a.all++
	a.of[p.PrincipalID]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all--
		if a.of[p.PrincipalID]--; a.of[p.PrincipalID] == 0 {
			delete(a.of, p.PrincipalID)
		}
	}, nil
}
