package prego

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
)

// RequestHash identifies a validated request: two with the same hash are the same request.
func RequestHash(request any) [sha256.Size]byte {
	b, err := json.Marshal(request)
	if err != nil {
		panic(fmt.Sprintf("prego: a %T always marshals: %v", request, err))
	}
	return sha256.Sum256(b)
}

// Assign sets what a request changes: a nil from changes nothing.
func Assign[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
