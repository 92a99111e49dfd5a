package api

import (
	"maps"
	"slices"

	"github.com/prego/prego"
)

// Codes are those that callers can meet.
func Codes() []prego.Code { return slices.Collect(maps.Keys(statuses)) }
