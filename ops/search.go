package ops

import "github.com/prego/prego"

// SearchQuery is a search.
type SearchQuery struct {
	Text  string
	Kinds []string // empty for all
	Limit int
}

// Found is an object that a search has found.
type Found struct {
	Kind   string
	ID     string
	Name   string // its id if it has none
	Field  string // what matched
	Value  string // of that field
	Status string // "" if it has none
	Gone   bool   // it has ended
	OrgID  prego.OrgID
	Within string // the id of what it is shown within, if it is not shown by itself
	Rank   int    // 0 for an exact match, 1 for a beginning, 2 for a part
}
