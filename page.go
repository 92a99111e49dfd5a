package prego

// ListQuery selects a page of a list. Fields are named as in the API.
type ListQuery struct {
	Filters map[string][]string // by field; matches any of its values
	All     bool                // include ended ones
	Sort    string              // a field, -field for descending, "" for the list's own order
	Cursor  string              // of the previous page, "" for the first
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

// Replaceable is a kind of objects that a PUT replaces as a whole.
type Replaceable string

// The kinds that can be replaced, with what identifies one.
const (
	ReplaceableOrg            Replaceable = "org"              // its id
	ReplaceableQuota          Replaceable = "quota"            // the org's id, and the dimension
	ReplaceablePlacementPool  Replaceable = "placement_pool"   // its name
	ReplaceablePolicy         Replaceable = "policy"           // its id
	ReplaceableRegistry       Replaceable = "registry"         // its org, "" for the installation, and host
	ReplaceableSitePoolPolicy Replaceable = "site_pool_policy" // the plan
	ReplaceableWarmPool       Replaceable = "warm_pool"        // region and plan
)

// KeptAnswer is the stored answer to a request with an Idempotency-Key.
type KeptAnswer struct {
	Status int
	Body   []byte // JSON; nil if it is not repeated
}
