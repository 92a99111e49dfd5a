package api

import (
	"maps"
	"slices"

	"github.com/prego/prego"
)

// DecodeStrict lets tests reach the decoder.
var DecodeStrict = decodeStrict

// Codes are those that callers can meet.
func Codes() []prego.Code { return slices.Collect(maps.Keys(statuses)) }
