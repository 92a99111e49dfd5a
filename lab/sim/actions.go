package sim

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// act starts an action that ends after the profile's time, and then runs done with the
// lock held. An error of done fails the action.
func (s *Sim) act(command string, d time.Duration, done func() *schema.ActionError,
	refs ...schema.ActionResourceReference,
) schema.Action {
	a := &schema.Action{ID: s.st.id(), Status: "running", Command: command, Started: time.Now().UTC(), Resources: refs}
	s.st.Actions[a.ID] = a
	s.after(d, func() {
		now := time.Now().UTC()
		a.Finished, a.Progress, a.Status = &now, 100, "success"
		if done != nil {
			if e := done(); e != nil {
				a.Status, a.Error = "error", e
			}
		}
		s.changed()
	})
	return *a
}

func serverRef(id int64) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: id, Type: "server"}
}

func (s *Sim) listActions(r *http.Request) (int, any, error) {
	var items []item
	for _, v := range r.URL.Query()["id"] {
		id, _ := strconv.ParseInt(v, 10, 64)
		if a, ok := s.st.Actions[id]; ok {
			items = append(items, item{id: a.ID, name: a.Command, status: a.Status, created: a.Started, body: a})
		}
	}
	return list(r, "actions", items)
}

func (s *Sim) getAction(r *http.Request) (int, any, error) {
	a, ok := s.st.Actions[pathID(r)]
	if !ok {
		return 0, nil, notFound("action", pathID(r))
	}
	return 200, map[string]any{"action": a}, nil
}

func (s *Sim) resourceActions(kind string) endpoint {
	return func(r *http.Request) (int, any, error) {
		var items []item
		for _, a := range s.st.Actions {
			for _, ref := range a.Resources {
				if ref.Type == kind && ref.ID == pathID(r) {
					items = append(items, item{
						id: a.ID, name: a.Command, status: a.Status, created: a.Started,
						body: a,
					})
				}
			}
		}
		return list(r, "actions", items)
	}
}

func (s *Sim) resourceAction(kind string) endpoint {
	return func(r *http.Request) (int, any, error) {
		id, _ := strconv.ParseInt(r.PathValue("action"), 10, 64)
		a, ok := s.st.Actions[id]
		if !ok || !slices.Contains(a.Resources, schema.ActionResourceReference{ID: pathID(r), Type: kind}) {
			return 0, nil, notFound("action", id)
		}
		return 200, map[string]any{"action": a}, nil
	}
}
