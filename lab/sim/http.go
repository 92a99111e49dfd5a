package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// apiError is an error in the provider's format.
type apiError struct {
	status  int
	code    string
	message string
	fields  []string // of an invalid_input
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func (e *apiError) write(w http.ResponseWriter) {
	body := map[string]any{"code": e.code, "message": e.message, "details": nil}
	if e.code == "invalid_input" {
		fields := []any{}
		for _, f := range e.fields {
			fields = append(fields, map[string]any{"name": f, "messages": []string{e.message}})
		}
		body["details"] = map[string]any{"fields": fields}
	}
	// As in OpenRouterLabs/spawn#2902: "Primary IP limit exceeded" is of the limit primary_ip_limit.
	if what, ok := strings.CutSuffix(strings.ToLower(e.message), " limit exceeded"); ok && e.code == "resource_limit_exceeded" {
		body["details"] = map[string]any{"limits": []any{map[string]any{"name": strings.ReplaceAll(what, " ", "_") + "_limit"}}}
	}
	writeJSON(w, e.status, map[string]any{"error": body})
}

func notFound(kind string, id int64) error {
	return &apiError{status: 404, code: "not_found", message: fmt.Sprintf("%s with ID '%d' not found", kind, id)}
}

func invalid(message string, fields ...string) error {
	return &apiError{status: 422, code: "invalid_input", message: message, fields: fields}
}

func unique(kind string) error {
	return &apiError{status: 409, code: "uniqueness_error", message: kind + " name is already used"}
}

// endpoint answers one route with the lock held.
type endpoint func(r *http.Request) (status int, body any, err error)

func (s *Sim) routes() http.Handler {
	api := http.NewServeMux()
	handle := func(pattern string, e endpoint) { api.Handle(pattern, s.locked(e)) }
	for _, k := range []interface {
		register(handle func(pattern string, e endpoint))
	}{
		s.servers(), s.volumes(), s.firewalls(), s.groups(), s.primaryIPs(), s.floatingIPs(), s.networks(),
		s.imageKind(), s.isos(),
	} {
		k.register(handle)
	}
	for pattern, e := range map[string]endpoint{
		"GET /v1/actions": s.listActions, "GET /v1/actions/{id}": s.getAction,

		"GET /v1/zones": s.listZones, "POST /v1/zones": s.createZone,
		"GET /v1/zones/{zone}": s.getZone, "PUT /v1/zones/{zone}": s.updateZone,
		"DELETE /v1/zones/{zone}": s.deleteZone, "GET /v1/zones/{zone}/actions": s.zoneActions,
		"POST /v1/zones/{zone}/actions/{verb}": s.zoneAction, "GET /v1/zones/{zone}/zonefile": s.exportZone,
		"GET /v1/zones/{zone}/rrsets": s.listRecordSets, "POST /v1/zones/{zone}/rrsets": s.createRecordSet,
		"GET /v1/zones/{zone}/rrsets/{name}/{type}":                 s.getRecordSet,
		"PUT /v1/zones/{zone}/rrsets/{name}/{type}":                 s.updateRecordSet,
		"DELETE /v1/zones/{zone}/rrsets/{name}/{type}":              s.deleteRecordSet,
		"POST /v1/zones/{zone}/rrsets/{name}/{type}/actions/{verb}": s.recordSetAction,

		"GET /v1/locations":         s.catalogList("locations", func() []any { return anys(locations) }),
		"GET /v1/locations/{id}":    s.catalogGet("location", func() []any { return anys(locations) }),
		"GET /v1/server_types":      s.catalogList("server_types", func() []any { return anys(s.serverTypes()) }),
		"GET /v1/server_types/{id}": s.catalogGet("server_type", func() []any { return anys(s.serverTypes()) }),
		"GET /v1/pricing": func(*http.Request) (int, any, error) {
			return 200, map[string]any{"pricing": s.pricing()}, nil
		},
		"GET /v1/datacenters": noDatacenters, "GET /v1/datacenters/{id}": noDatacenters,
	} {
		handle(pattern, e)
	}
	api.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		noRoute().write(w)
	})
	root := http.NewServeMux()
	root.Handle("/v1/", s.limited(s.faulty(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Every kind's actions are the same actions: /servers/actions is /actions.
		if m := kindActions.FindStringSubmatch(r.URL.Path); m != nil {
			r.URL.Path = "/v1/actions" + m[1]
		}
		api.ServeHTTP(w, r)
	}))))
	s.controlRoutes(root)
	return root
}

var kindActions = regexp.MustCompile(`^/v1/(?:servers|volumes|firewalls|primary_ips|floating_ips|networks|images|zones)/actions(/\d+)?$`)

func noDatacenters(*http.Request) (int, any, error) {
	return 0, nil, &apiError{
		status: 410, code: "deprecated_api_endpoint",
		message: "datacenters were removed; use locations",
	}
}

func (s *Sim) locked(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.calls[r.Pattern]++
		status, body, err := e(r)
		var b []byte
		if err == nil && body != nil {
			b, err = json.Marshal(body) // under the lock: it refers to the state
		}
		if r.Method != http.MethodGet {
			s.changed()
		}
		s.mu.Unlock()
		if err != nil {
			ae, ok := err.(*apiError) //nolint:errorlint // returned bare
			if !ok {
				ae = &apiError{status: 500, code: "server_error", message: err.Error()}
			}
			ae.write(w)
			return
		}
		if b == nil {
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(b)
	})
}

// Calls is how often each route of the API was called.
func (s *Sim) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// bucket is the project's rate limit.
type bucket struct {
	capacity, tokens float64
	at               time.Time
}

func (b *bucket) take() (remaining int, ok bool) {
	now := time.Now()
	b.tokens = min(b.capacity, b.tokens+now.Sub(b.at).Seconds()*b.capacity/3600)
	b.at = now
	if b.tokens < 1 {
		return 0, false
	}
	b.tokens--
	return int(b.tokens), true
}

// limited authenticates each request and applies the project's rate limit.
func (s *Sim) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		remaining, ok := s.rate.take()
		capacity, tokens := s.rate.capacity, s.rate.tokens
		s.mu.Unlock()
		w.Header().Set("RateLimit-Limit", strconv.Itoa(int(capacity)))
		w.Header().Set("RateLimit-Remaining", strconv.Itoa(remaining))
		w.Header().Set("RateLimit-Reset",
			strconv.FormatInt(time.Now().Add(time.Duration((capacity-tokens)*3600/capacity*float64(time.Second))).Unix(), 10))
		switch {
		case r.Header.Get("Authorization") != "Bearer "+s.cfg.Token:
			(&apiError{status: 401, code: "unauthorized", message: "the token you have provided is invalid"}).write(w)
		case !ok:
			(&apiError{
				status: 429, code: "rate_limit_exceeded",
				message: "limit of " + strconv.Itoa(int(capacity)) + " requests per hour reached for token " +
					s.cfg.Token,
			}).write(w)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func pathID(r *http.Request) int64 {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	return id
}

func decode(r *http.Request, into any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return &apiError{status: 400, code: "json_error", message: "body could not be read"}
	}
	if len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, into); err != nil {
		return &apiError{status: 400, code: "json_error", message: "invalid JSON"}
	}
	return nil
}

func anys[T any](in []T) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = v
	}
	return out
}

// item is what lists filter by.
type item struct {
	id      int64
	name    string
	status  string
	labels  map[string]string
	created time.Time
	filters map[string]string // what else lists of the kind can be filtered by
	body    any
}

// list filters by label_selector, name and status, sorts and pages.
func list(r *http.Request, key string, items []item) (int, any, error) {
	q := r.URL.Query()
	match, err := parseSelector(q.Get("label_selector"))
	if err != nil {
		return 0, nil, invalid(err.Error(), "label_selector")
	}
	passes := func(it item) bool {
		for filter, v := range it.filters {
			if q.Has(filter) && !slices.Contains(q[filter], v) {
				return false
			}
		}
		return true
	}
	kept := items[:0:0]
	for _, it := range items {
		if (q.Get("name") == "" || it.name == q.Get("name")) && passes(it) &&
			(len(q["status"]) == 0 || slices.Contains(q["status"], it.status)) && match(it.labels) {
			kept = append(kept, it)
		}
	}
	desc := strings.HasSuffix(q.Get("sort"), ":desc")
	slices.SortFunc(kept, func(a, b item) int {
		c := cmp.Compare(a.id, b.id)
		switch strings.Split(q.Get("sort"), ":")[0] {
		case "name":
			c = strings.Compare(a.name, b.name)
		case "created":
			c = a.created.Compare(b.created)
		}
		if desc {
			return -c
		}
		return c
	})
	page, perPage, most := 1, 25, 50
	if key == "rrsets" {
		most = 100 // the specification, GET /zones/{id_or_name}/rrsets
	}
	if v := q.Get("page"); v != "" {
		if page, err = strconv.Atoi(v); err != nil || page < 1 {
			return 0, nil, invalid("page must be at least 1", "page")
		}
	}
	if v := q.Get("per_page"); v != "" {
		if perPage, err = strconv.Atoi(v); err != nil || perPage < 1 {
			return 0, nil, invalid("per_page must be at least 1", "per_page")
		}
		perPage = min(perPage, most)
	}
	total := len(kept)
	last := max(1, (total+perPage-1)/perPage)
	from := min((page-1)*perPage, total)
	bodies := make([]any, 0, perPage)
	for _, it := range kept[from:min(from+perPage, total)] {
		bodies = append(bodies, it.body)
	}
	paging := map[string]any{
		"page": page, "per_page": perPage, "previous_page": nil, "next_page": nil,
		"last_page": last, "total_entries": total,
	}
	if page > 1 {
		paging["previous_page"] = page - 1
	}
	if page < last {
		paging["next_page"] = page + 1
	}
	return 200, map[string]any{key: bodies, "meta": map[string]any{"pagination": paging}}, nil
}

func (s *Sim) catalogList(key string, all func() []any) endpoint {
	return func(r *http.Request) (int, any, error) {
		var items []item
		for _, v := range all() {
			items = append(items, catalogItem(v))
		}
		return list(r, key, items)
	}
}

func (s *Sim) catalogGet(key string, all func() []any) endpoint {
	return func(r *http.Request) (int, any, error) {
		for _, v := range all() {
			if it := catalogItem(v); it.id == pathID(r) {
				return 200, map[string]any{key: v}, nil
			}
		}
		return 0, nil, notFound(key, pathID(r))
	}
}

func catalogItem(v any) item {
	switch t := v.(type) {
	case schema.Location:
		return item{id: t.ID, name: t.Name, body: v}
	case schema.ServerType:
		return item{id: t.ID, name: t.Name, body: v}
	}
	return item{body: v}
}

// relabel replaces all labels, unless none are given.
func relabel(labels *map[string]string, to *map[string]string) error {
	if to == nil {
		return nil
	}
	if err := checkLabels(*to); err != nil {
		return err
	}
	*labels = *to
	return nil
}

// replace sets the given fields.
func replace[T any](v, to *T) {
	if to != nil {
		*v = *to
	}
}
