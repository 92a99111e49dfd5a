package sim

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"time"
)

// dockerWatch is a request for events that is being answered.
type dockerWatch struct {
	filters map[string]map[string]bool
	events  chan map[string]any
}

// wants reports whether a container's event passes the filters, as the engine reads them:
// all labels, and any of the events.
func (w *dockerWatch) wants(c *container, action string) bool {
	if types := w.filters["type"]; len(types) > 0 && !types["container"] {
		return false
	}
	if events := w.filters["event"]; len(events) > 0 && !events[action] {
		return false
	}
	labels, _ := c.Config["Labels"].(map[string]any)
	for f := range w.filters["label"] {
		k, v, exact := strings.Cut(f, "=")
		if got, there := labels[k]; !there || exact && got != v {
			return false
		}
	}
	return true
}

// tell sends an event to all watchers. Call it with the lock held.
func (d *docker) tell(c *container, action string) {
	for w := range d.watching {
		if !w.wants(c, action) {
			continue
		}
		attributes := map[string]any{"image": c.Image, "name": c.Name}
		labels, _ := c.Config["Labels"].(map[string]any)
		maps.Copy(attributes, labels)
		now := time.Now()
		select {
		case w.events <- map[string]any{
			"Type": "container", "Action": action, "Actor": map[string]any{"ID": c.ID, "Attributes": attributes},
			"scope": "local", "time": now.Unix(), "timeNano": now.UnixNano(),
		}:
		default: // it does not read: its stream ends, and it asks again
			delete(d.watching, w)
			close(w.events)
		}
	}
}

// events streams what happens to containers from now on.
func (d *docker) events(w http.ResponseWriter, r *http.Request) {
	watch := &dockerWatch{events: make(chan map[string]any, 1024)}
	if text := r.URL.Query().Get("filters"); text != "" {
		if err := json.Unmarshal([]byte(text), &watch.filters); err != nil {
			refuseDockerf(w, 400, "invalid filter")
			return
		}
	}
	d.mu.Lock()
	d.watching[watch] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watching, watch)
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	control, out := http.NewResponseController(w), json.NewEncoder(w)
	for {
		_ = control.Flush()
		select {
		case e, ok := <-watch.events:
			if !ok || out.Encode(e) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
