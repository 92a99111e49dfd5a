package sim

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func refuseDockerf(w http.ResponseWriter, status int, format string, args ...any) {
	writeJSON(w, status, map[string]string{"message": fmt.Sprintf(format, args...)})
}

func newDockerID() string {
	var id [32]byte
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

func pingDocker(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Ostype", "linux")
	_, _ = w.Write([]byte("OK"))
}

func (d *docker) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_ping", pingDocker)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]string{
			"Version": "20.10.24-sim", "ApiVersion": "1.41", "MinAPIVersion": "1.12",
			"Os": "linux", "Arch": "amd64",
		})
	})
	mux.HandleFunc("POST /images/create", d.pull)
	mux.HandleFunc("GET /images/{name...}", d.image)
	mux.HandleFunc("GET /distribution/{name...}", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]any{"Descriptor": map[string]any{}, "Platforms": []any{}})
	})
	mux.HandleFunc("POST /networks/create", d.createNetwork)
	mux.HandleFunc("GET /networks/{name}", d.network)
	mux.HandleFunc("DELETE /networks/{name}", d.removeNetwork)
	mux.HandleFunc("POST /containers/create", d.create)
	mux.HandleFunc("GET /containers/json", d.list)
	mux.HandleFunc("GET /containers/{ref}/json", d.each(d.inspect))
	mux.HandleFunc("POST /containers/{ref}/start", d.each(d.start))
	mux.HandleFunc("POST /containers/{ref}/stop", d.each(d.stop))
	mux.HandleFunc("POST /containers/{ref}/kill", d.each(d.kill))
	mux.HandleFunc("GET /events", d.events)
	mux.HandleFunc("DELETE /containers/{ref}", d.each(func(w http.ResponseWriter, _ *http.Request, c *container) {
		d.end(c, 137)
		delete(d.containers, c.Name)
		d.tell(c, "destroy")
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("GET /containers/{ref}/stats", d.each(stats))
	mux.HandleFunc("GET /containers/{ref}/logs", d.logs)
	mux.HandleFunc("POST /containers/{ref}/exec", d.each(d.exec))
	mux.HandleFunc("POST /exec/{id}/start", d.execStart)
	mux.HandleFunc("GET /exec/{id}/json", d.execInspect)
	// Clients put the version that they negotiated in front.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := strings.CutPrefix(r.URL.Path, "/v1."); ok {
			if i := strings.IndexByte(p, '/'); i > 0 {
				r.URL.Path = p[i:]
			}
		}
		if r.Method == http.MethodHead && r.URL.Path == "/_ping" {
			pingDocker(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (d *docker) hasImage(name string) bool {
	if !strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") && !strings.Contains(name, "@") {
		name += ":latest" // as engines read it
	}
	return d.images[name] || d.images["docker.io/"+name] || d.images["docker.io/library/"+name]
}

func (d *docker) pull(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	name := q.Get("fromImage")
	if tag := q.Get("tag"); tag != "" {
		name += ":" + tag
	}
	d.mu.Lock()
	d.images[name] = true
	d.mu.Unlock()
	writeJSON(w, 200, map[string]string{"status": "Status: Downloaded newer image for " + name})
}

func (d *docker) image(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimSuffix(r.PathValue("name"), "/json")
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hasImage(name) {
		refuseDockerf(w, 404, "No such image: %s", name)
		return
	}
	writeJSON(w, 200, map[string]any{"Id": "sha256:" + name, "RepoTags": []string{name}})
}

func (d *docker) createNetwork(w http.ResponseWriter, r *http.Request) {
	var in struct{ Name string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil || in.Name == "" {
		refuseDockerf(w, 400, "invalid JSON")
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.networks[in.Name] = true
	writeJSON(w, 201, map[string]string{"Id": newDockerID(), "Warning": ""})
}

func (d *docker) network(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.networks[name] {
		refuseDockerf(w, 404, "network %s not found", name)
		return
	}
	writeJSON(w, 200, map[string]any{"Name": name, "Id": "net-" + name, "Driver": "bridge", "Scope": "local"})
}

func (d *docker) removeNetwork(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.networks[name] {
		refuseDockerf(w, 404, "network %s not found", name)
		return
	}
	for _, c := range d.containers {
		if c.Status == "running" && c.Host["NetworkMode"] == name {
			refuseDockerf(w, 403, "error while removing network: network %s has active endpoints", name)
			return
		}
	}
	delete(d.networks, name)
	w.WriteHeader(http.StatusNoContent)
}

func (d *docker) create(w http.ResponseWriter, r *http.Request) {
	var in map[string]any
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil {
		refuseDockerf(w, 400, "invalid JSON")
		return
	}
	name := r.URL.Query().Get("name")
	image, _ := in["Image"].(string)
	host, _ := in["HostConfig"].(map[string]any)
	delete(in, "HostConfig")
	delete(in, "NetworkingConfig")
	if missing := d.missingMount(host); missing != "" {
		refuseDockerf(w, 400, "invalid mount config for type \"bind\": bind source path does not exist: %s", missing)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.containers[name]; ok {
		refuseDockerf(w, 409, "Conflict. The container name %q is already in use by container %q.", "/"+name, c.ID)
		return
	}
	if !d.hasImage(image) {
		refuseDockerf(w, 404, "No such image: %s", image)
		return
	}
	env, _ := in["Env"].([]any)
	in["Env"] = append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") // as images have it
	c := &container{
		ID: newDockerID(), Name: name, Image: image, Config: in, Host: host, Status: "created",
		Created: time.Now().UTC(),
	}
	d.containers[name] = c
	d.save()
	writeJSON(w, 201, map[string]any{"Id": c.ID, "Warnings": []string{}})
}

// missingMount is the source of a mount that the host does not have, "" for none: an engine
// makes the source of a bind, and not of a mount.
func (d *docker) missingMount(host map[string]any) string {
	mounts, _ := host["Mounts"].([]any)
	for _, m := range mounts {
		m, _ := m.(map[string]any)
		source, _ := m["Source"].(string)
		if _, err := os.Stat(filepath.Join(d.host.root(), source)); m["Type"] == "bind" && err != nil {
			return source
		}
	}
	return ""
}

func (d *docker) list(w http.ResponseWriter, r *http.Request) {
	var filters struct {
		Label map[string]bool `json:"label"`
	}
	_ = json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filters)
	all := r.URL.Query().Get("all") == "1" || r.URL.Query().Get("all") == "true"
	d.mu.Lock()
	defer d.mu.Unlock()
	out := []any{}
	for _, c := range d.containers {
		labels, _ := c.Config["Labels"].(map[string]any)
		wanted := all || c.Status == "running"
		for f := range filters.Label {
			k, v, exact := strings.Cut(f, "=")
			got, there := labels[k]
			wanted = wanted && there && (!exact || got == v)
		}
		if wanted {
			out = append(out, map[string]any{
				"Id": c.ID, "Names": []string{"/" + c.Name}, "Image": c.Image,
				"Labels": labels, "State": c.Status, "Created": c.Created.Unix(),
			})
		}
	}
	writeJSON(w, 200, out)
}

func (d *docker) find(ref string) *container {
	for _, c := range d.containers {
		if ref == c.ID || ref == c.Name || len(ref) >= 12 && strings.HasPrefix(c.ID, ref) {
			return c
		}
	}
	return nil
}

func (d *docker) each(f func(w http.ResponseWriter, r *http.Request, c *container)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		c := d.find(r.PathValue("ref"))
		if c == nil {
			refuseDockerf(w, 404, "No such container: %s", r.PathValue("ref"))
			return
		}
		f(w, r, c)
		d.save()
	}
}

func (d *docker) inspect(w http.ResponseWriter, _ *http.Request, c *container) {
	state := map[string]any{
		"Status": c.Status, "Running": c.Status == "running", "ExitCode": c.Exit, "Pid": 4242,
		"StartedAt": c.Started.Format(time.RFC3339Nano),
	}
	if c.Config["Healthcheck"] != nil && c.Status == "running" {
		state["Health"] = map[string]any{"Status": "healthy", "FailingStreak": 0, "Log": []any{}}
		if c.Fault == "unhealthy" {
			state["Health"] = map[string]any{
				"Status": "unhealthy", "FailingStreak": 3,
				"Log": []any{map[string]any{"ExitCode": 1, "Output": "injected: not healthy"}},
			}
		}
	}
	addr := c.addr
	if addr == "" {
		addr = d.host.addr
	}
	writeJSON(w, 200, map[string]any{
		"Id": c.ID, "Name": "/" + c.Name, "Created": c.Created, "Image": "sha256:" + c.Image, "RestartCount": 0,
		"Config": c.Config, "HostConfig": c.Host, "State": state,
		"NetworkSettings": map[string]any{"Networks": map[string]any{"bridge": map[string]any{"IPAddress": addr}}},
	})
}

func (d *docker) start(w http.ResponseWriter, _ *http.Request, c *container) {
	switch {
	case d.host.plan.containersFail:
		c.Status, c.Exit = "exited", 1
		refuseDockerf(w, 500, "driver failed programming external connectivity")
	case c.Status == "running":
		w.WriteHeader(http.StatusNotModified)
	case d.missingMount(c.Host) != "":
		refuseDockerf(w, 400, "invalid mount config for type \"bind\": bind source path does not exist: %s",
			d.missingMount(c.Host))
	default:
		c.Status, c.Exit, c.Started = "running", 0, time.Now().UTC()
		c.Fault = d.host.sim.containerFault(d.host.name, c.Image)
		switch labels, _ := c.Config["Labels"].(map[string]any); {
		case c.Fault == "die":
			d.tell(c, "start")
			d.end(c, 1)
		case labels["prego.once"] == "true": // it ends immediately
			d.tell(c, "start")
			d.end(c, 0)
		default:
			d.listen(c)
			d.run(c)
			d.tell(c, "start")
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func (d *docker) stop(w http.ResponseWriter, _ *http.Request, c *container) {
	if c.Status != "running" {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	d.end(c, 0)
	w.WriteHeader(http.StatusNoContent)
}

func (d *docker) kill(w http.ResponseWriter, _ *http.Request, c *container) {
	if c.Status != "running" {
		refuseDockerf(w, 409, "Container %s is not running", c.ID)
		return
	}
	d.end(c, 137)
	w.WriteHeader(http.StatusNoContent)
}

// end ends a running container. Call it with the lock held.
func (d *docker) end(c *container, status int) {
	if c.Status == "running" {
		c.Status, c.Exit = "exited", status
		c.silence()
		d.tell(c, "die")
	}
}

func stats(w http.ResponseWriter, _ *http.Request, c *container) {
	now := time.Now().UTC()
	writeJSON(w, 200, map[string]any{
		"read": now, "id": c.ID, "name": "/" + c.Name, "pids_stats": map[string]any{"current": 3},
		"cpu_stats":    map[string]any{"cpu_usage": map[string]any{"total_usage": now.Sub(c.Started).Nanoseconds() / 50}},
		"memory_stats": map[string]any{"usage": 64 << 20, "limit": c.Host["Memory"]},
	})
}

// logs writes a line, and with follow another one each second.
func (d *docker) logs(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	c := d.find(r.PathValue("ref"))
	var line string
	if c != nil {
		line = "container " + c.Name + " is " + c.Status + "\n"
		if c.Fault != "" {
			line += "injected fault: " + c.Fault + "\n"
		}
	}
	d.mu.Unlock()
	if c == nil {
		refuseDockerf(w, 404, "No such container: %s", r.PathValue("ref"))
		return
	}
	w.Header().Set("Content-Type", "application/vnd.docker.raw-stream")
	frame(w, line)
	if f := r.URL.Query().Get("follow"); f != "1" && f != "true" {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		d.mu.Lock()
		running := d.find(c.ID) != nil && c.Status == "running"
		d.mu.Unlock()
		if !running {
			return
		}
		frame(w, fmt.Sprintf("still running, line %d\n", n))
	}
}

// frame writes a piece of standard output as the engine multiplexes it.
func frame(w io.Writer, text string) {
	head := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[4:], uint32(len(text)))
	_, _ = w.Write(append(head, text...))
}

func (d *docker) exec(w http.ResponseWriter, _ *http.Request, c *container) {
	if c.Status != "running" {
		refuseDockerf(w, 409, "Container %s is not running", c.ID)
		return
	}
	id := newDockerID()
	d.execs[id] = c.ID
	writeJSON(w, 201, map[string]string{"Id": id})
}

func (d *docker) execStart(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.execs[r.PathValue("id")]; !ok {
		refuseDockerf(w, 404, "No such exec instance: %s", r.PathValue("id"))
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (d *docker) execInspect(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := r.PathValue("id")
	c, ok := d.execs[id]
	if !ok {
		refuseDockerf(w, 404, "No such exec instance: %s", id)
		return
	}
	writeJSON(w, 200, map[string]any{"ID": id, "ContainerID": c, "Running": false, "ExitCode": 0})
}
