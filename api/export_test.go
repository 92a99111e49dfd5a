package api

import (
	"maps"
	"slices"

	"github.com/prego/prego"
)

// Status is the one that a code is answered with.
func Status(code prego.Code) int { return statuses[code] }

// Codes are those that callers can meet.
func Codes() []prego.Code { return slices.Collect(maps.Keys(statuses)) }
