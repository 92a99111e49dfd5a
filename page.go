package prego

// ListFilter selects a page of what an org or an app has.
type ListFilter struct {
	ID     string // the owner's; "" for all
	Cursor string
	Limit  int
}
