package sim

import (
	"net/http"
	"strconv"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// kind defines how the resources of one kind are found, shown and changed over the API. Each kind has a file with its
// special rules; paths, lists, names, labels and protection are the same for all.
type kind[T any] struct {
	sim       *Sim
	one, many string // in paths and bodies: "volume", "volumes"
	title     string // in messages: "volume"
	all       map[int64]*T
	fixed     []T // the provider's own: shown, and never changed
	show      func(v *T) item

	name      func(v *T) *string            // nil: has none that can be changed
	labels    func(v *T) *map[string]string // nil: has none
	protected func(v *T) *bool              // whether deleting it is refused; nil: it can't be protected

	create  func(r *http.Request) (any, error) // nil: they are not created over the API
	update  func(v *T, c changes) error        // what a PUT does besides names and labels; nil: nothing
	remove  func(v *T) (any, error)            // an answer of nil has no body; nil: they are not deleted over the API
	actions map[string]action[T]
}

// action answers a request for an action of a resource.
type action[T any] func(r *http.Request, v *T) (any, error)

// changes is the body of a PUT, of any kind. Missing fields stay.
type changes struct {
	Name                  *string            `json:"name"`
	Labels                *map[string]string `json:"labels"`
	Description           *string            `json:"description"`
	Type                  *string            `json:"type"`
	AutoDelete            *bool              `json:"auto_delete"`
	ExposeRoutesToVSwitch *bool              `json:"expose_routes_to_vswitch"`
}

// register adds the kind's routes.
func (k *kind[T]) register(handle func(pattern string, e endpoint)) {
	all, one := "/v1/"+k.many, "/v1/"+k.many+"/{id}"
	handle("GET "+all, k.list)
	handle("GET "+one, k.get)
	if k.create != nil {
		handle("POST "+all, func(r *http.Request) (int, any, error) {
			body, err := k.create(r)
			return http.StatusCreated, body, err
		})
	}
	if k.labels != nil {
		handle("PUT "+one, k.put)
	}
	if k.remove != nil {
		handle("DELETE "+one, k.drop)
	}
	if k.actions != nil || k.protected != nil {
		handle("GET "+one+"/actions", k.sim.resourceActions(k.one))
		handle("GET "+one+"/actions/{action}", k.sim.resourceAction(k.one))
		handle("POST "+one+"/actions/{verb}", k.act)
	}
}

func (k *kind[T]) find(r *http.Request) (*T, error) {
	v, ok := k.all[pathID(r)]
	if !ok {
		return nil, notFound(k.one, pathID(r))
	}
	return v, nil
}

func (k *kind[T]) list(r *http.Request) (int, any, error) {
	items := make([]item, 0, len(k.all))
	for _, v := range k.all {
		items = append(items, k.show(v))
	}
	for i := range k.fixed {
		items = append(items, k.show(&k.fixed[i]))
	}
	return list(r, k.many, items)
}

func (k *kind[T]) get(r *http.Request) (int, any, error) {
	for i := range k.fixed {
		if it := k.show(&k.fixed[i]); it.id == pathID(r) {
			return http.StatusOK, map[string]any{k.one: it.body}, nil
		}
	}
	v, err := k.find(r)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, map[string]any{k.one: k.show(v).body}, nil
}

// free refuses a name that is empty, or that another resource of the kind has.
func (k *kind[T]) free(name string, self int64) error {
	if name == "" {
		return invalid("name is required", "name")
	}
	for id, v := range k.all {
		if id != self && *k.name(v) == name {
			return unique(k.title)
		}
	}
	return nil
}

// put changes everything that is asked for, or nothing.
func (k *kind[T]) put(r *http.Request) (int, any, error) {
	v, err := k.find(r)
	if err != nil {
		return 0, nil, err
	}
	var c changes
	if err := decode(r, &c); err != nil {
		return 0, nil, err
	}
	if c.Labels != nil {
		if err := checkLabels(*c.Labels); err != nil {
			return 0, nil, err
		}
	}
	if c.Name != nil && k.name != nil {
		if err := k.free(*c.Name, pathID(r)); err != nil {
			return 0, nil, err
		}
	}
	if k.update != nil {
		if err := k.update(v, c); err != nil {
			return 0, nil, err
		}
	}
	if c.Name != nil && k.name != nil {
		*k.name(v) = *c.Name
		k.sim.st.rename(k.one, pathID(r), *c.Name)
	}
	replace(k.labels(v), c.Labels)
	return http.StatusOK, map[string]any{k.one: k.show(v).body}, nil
}

func (k *kind[T]) drop(r *http.Request) (int, any, error) {
	v, err := k.find(r)
	if err != nil {
		return 0, nil, err
	}
	if k.protected != nil && *k.protected(v) {
		return 0, nil, &apiError{
			status: http.StatusLocked, code: "protected",
			message: k.title + " deletion is protected",
		}
	}
	body, err := k.remove(v)
	if err != nil {
		return 0, nil, err
	}
	if body == nil {
		return http.StatusNoContent, nil, nil
	}
	return http.StatusOK, body, nil
}

func (k *kind[T]) act(r *http.Request) (int, any, error) {
	v, err := k.find(r)
	if err != nil {
		return 0, nil, err
	}
	verb := r.PathValue("verb")
	do, ok := k.actions[verb]
	if !ok && verb == "change_protection" && k.protected != nil {
		do, ok = k.protect, true
	}
	if !ok {
		return 0, nil, noRoute()
	}
	body, err := do(r, v)
	return http.StatusCreated, body, err
}

// protect is change_protection of the kinds that can only be protected from deletion.
func (k *kind[T]) protect(r *http.Request, v *T) (any, error) {
	var req struct {
		Delete *bool `json:"delete"`
	}
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	replace(k.protected(v), req.Delete)
	return k.sim.did("change_protection", nil, schema.ActionResourceReference{ID: pathID(r), Type: k.one}), nil
}

// did is the answer of a short action.
func (s *Sim) did(command string, done func() *schema.ActionError,
	refs ...schema.ActionResourceReference,
) map[string]any {
	return map[string]any{"action": s.act(command, s.cfg.Profile.Action/4, done, refs...)}
}

func noRoute() *apiError {
	return &apiError{status: http.StatusNotFound, code: "not_found", message: "api route not found"}
}

func refused(code, message string) error {
	return &apiError{status: http.StatusUnprocessableEntity, code: code, message: message}
}

func labelsOf(l *map[string]string) (map[string]string, error) {
	if l == nil {
		return map[string]string{}, nil
	}
	return *l, checkLabels(*l)
}

func number(id int64) string { return strconv.FormatInt(id, 10) }
