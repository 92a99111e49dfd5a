package prego

// ListQuery selects a page of a list. Fields are named as in the API.
type ListQuery struct {
	Filters map[string][]string // by field; each takes any of its values
	All     bool                // also what has ended
	Sort    string              // a field, -field for descending, "" for the list's own order
	Cursor  string              // of the page before, "" for the first
	Limit   int                 // items
}

// Of is the query of what belongs to one thing.
func (q ListQuery) Of(field, id string) ListQuery {
	filters := map[string][]string{field: {id}}
	for name, values := range q.Filters {
		if name != field {
			filters[name] = values
		}
	}
	q.Filters = filters
	return q
}

// Replaceable is a kind of things that a PUT replaces as a whole.
type Replaceable string

// What can be replaced, with what names one of it.
const (
	ReplaceableOrg            Replaceable = "org"              // its id
	ReplaceableQuota          Replaceable = "quota"            // the org's id, and the dimension
	ReplaceablePlacementPool  Replaceable = "placement_pool"   // its name
	ReplaceablePolicy         Replaceable = "policy"           // its id
	ReplaceableRegistry       Replaceable = "registry"         // its host
	ReplaceableSitePoolPolicy Replaceable = "site_pool_policy" // the plan
	ReplaceableWarmPool       Replaceable = "warm_pool"        // region and plan
)

// KeptAnswer is what a request with an Idempotency-Key was answered.
type KeptAnswer struct {
	Status int
	Body   []byte // JSON; nil where it is not told twice
}
