package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Fault is an injected failure. A fault of kind "http" answers matching API calls, one
// of kind "bench" affects commands on hosts, one of kind "container" affects containers
// started from an image; the others affect servers with a matching name.
type Fault struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// Method and Path (a pattern as in path.Match, for example "/v1/servers") select
	// API calls, Server (also a pattern) selects servers by name; "" matches all.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Server string `json:"server,omitempty"`
	// Skip lets so many matches pass first; Times is how often it happens then, 0 for
	// without end.
	Skip  int `json:"skip,omitempty"`
	Times int `json:"times,omitempty"`
	// Action of an "http" fault: respond, commit_then_respond, commit_then_reset,
	// reset or delay.
	Action  string `json:"action,omitempty"`
	Status  int    `json:"status,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	DelayMS int    `json:"delay_ms,omitempty"`
	// Verb is the command of a "bench" fault, for example "new-site"; "" matches all.
	// Its Action is fail, fail_after or hang.
	Verb string `json:"verb,omitempty"`
	// Image (a pattern) selects the images of a "container" fault; "" matches all. Its Action is unhealthy, without
	// end, or die, immediately.
	Image string `json:"image,omitempty"`

	// Record (a pattern) selects the names of a "publish" fault: the action that brings a
	// record set to the name servers fails; "" matches all.
	Record string `json:"record,omitempty"`

	Matched int `json:"matched"` // how often it was considered
	Hits    int `json:"hits"`    // how often it happened

	dir string // of a "bench" fault, where the hosts find it
}

func (f *Fault) code(otherwise string) string {
	if f.Code != "" {
		return f.Code
	}
	return otherwise
}

// hostKinds are the faults of servers and hosts.
var hostKinds = map[string]string{
	"slow_boot":            "the start takes delay_ms",
	"never_boot":           "the server never becomes running",
	"create_action_fails":  "the create action ends with code",
	"land_late":            "create answers 504 immediately and happens delay_ms later",
	"boot_without_agent":   "cloud-init runs, the agent is never installed",
	"no_cloud_init":        "the server runs, and cloud-init never starts",
	"stop_heartbeats":      "the agent bootstraps and then never runs",
	"duplicate_bootstrap":  "another client presents the token first, with another key",
	"image_build_fails":    "a builder of an image stays on, since something in it failed",
	"create_image_fails":   "the action that takes a snapshot of the server fails",
	"container_start_fail": "the host's dockerd fails to start containers",
}

func (f *Fault) check() error {
	if f.Kind == "bench" {
		if err := f.checkBench(); err != nil {
			return err
		}
	} else if f.Kind == "container" {
		if f.Action != "unhealthy" && f.Action != "die" {
			return fmt.Errorf("action must be unhealthy or die")
		}
	} else if f.Kind == "publish" {
		if f.Action != "" && f.Action != "fail" {
			return fmt.Errorf("action must be fail")
		}
	} else if f.Kind == "mirror" || f.Kind == "dns" {
		if err := f.checkMachine(); err != nil {
			return err
		}
	} else if f.Kind == "http" {
		switch f.Action {
		case "respond", "commit_then_respond":
			if f.Status < 400 || f.Status > 599 {
				return fmt.Errorf("status must be 400 to 599 for action %s", f.Action)
			}
		case "commit_then_reset", "reset", "delay":
		default:
			return fmt.Errorf("action must be respond, commit_then_respond, commit_then_reset, reset or delay")
		}
	} else if _, ok := hostKinds[f.Kind]; !ok {
		return fmt.Errorf("unknown kind %q", f.Kind)
	}
	if f.Skip < 0 || f.Times < 0 || f.DelayMS < 0 {
		return fmt.Errorf("skip, times and delay_ms must not be negative")
	}
	for _, p := range []string{f.Path, f.Server, f.Image, f.Record} {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("bad pattern %q", p)
		}
	}
	return nil
}

// checkMachine checks a fault of machines' network services.
func (f *Fault) checkMachine() error {
	actions := []string{"drop", "fail", "delay"}
	if f.Kind == "mirror" {
		actions = []string{"respond", "reset", "truncate", "delay"}
	}
	if !slices.Contains(actions, f.Action) {
		return fmt.Errorf("action of a fault of kind %s must be one of %s", f.Kind, strings.Join(actions, ", "))
	}
	if f.Action == "respond" && (f.Status < 400 || f.Status > 599) {
		return fmt.Errorf("status must be 400 to 599 for action respond")
	}
	return nil
}

// suits rejects faults that can't happen with this cloud's kind of hosts.
func (s *Sim) suits(f Fault) error {
	onMachines := f.Kind == "mirror"
	onProcesses := slices.Contains([]string{
		"boot_without_agent", "stop_heartbeats", "duplicate_bootstrap",
		"container_start_fail", "bench", "container",
	}, f.Kind)
	switch {
	case onMachines && s.cfg.Machines == "":
		return fmt.Errorf("a fault of kind %s happens to machines only (--hosts machine)", f.Kind)
	case onProcesses && s.cfg.Machines != "":
		return fmt.Errorf("a fault of kind %s happens to process hosts only", f.Kind)
	}
	return nil
}

func (f *Fault) fires() bool {
	f.Matched++
	if f.Matched <= f.Skip || (f.Times > 0 && f.Hits >= f.Times) {
		return false
	}
	f.Hits++
	return true
}

// Inject adds a fault.
func (s *Sim) Inject(f Fault) (string, error) {
	if err := f.check(); err != nil {
		return "", err
	}
	if err := s.suits(f); err != nil {
		return "", err
	}
	f.ID, f.Hits, f.Matched = uuid.NewString()[:8], 0, 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Kind == "bench" {
		if err := s.publish(&f); err != nil {
			return "", err
		}
	}
	s.faults = append(s.faults, &f)
	return f.ID, nil
}

// Withdraw removes a fault; it reports whether there was one. Its effects stay.
func (s *Sim) Withdraw(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.faults)
	s.faults = slices.DeleteFunc(s.faults, func(f *Fault) bool { return f.ID == id && f.Kind != "bench" })
	return len(s.faults) < n
}

// Faults lists the faults with how often they were hit.
func (s *Sim) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Fault, 0, len(s.faults))
	for _, f := range s.faults {
		if f.Kind == "bench" {
			f.count()
		}
		out = append(out, *f)
	}
	return out
}

// hostFault finds the fault that happens to a server now. Call it with the lock held.
func (s *Sim) hostFault(kind, name string) (*Fault, bool) {
	for _, f := range s.faults {
		if ok, _ := path.Match(f.Server, name); f.Kind == kind && (f.Server == "" || ok) && f.fires() {
			return f, true
		}
	}
	return nil, false
}

// containerFault is the fault of a container started now, "" for none.
func (s *Sim) containerFault(server, image string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		onServer, _ := path.Match(f.Server, server)
		ofImage, _ := path.Match(f.Image, image)
		if f.Kind == "container" && (f.Server == "" || onServer) && (f.Image == "" || ofImage) && f.fires() {
			return f.Action
		}
	}
	return ""
}

// faulty applies "http" faults.
func (s *Sim) faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		var hit *Fault
		for _, f := range s.faults {
			if ok, _ := path.Match(f.Path, r.URL.Path); f.Kind == "http" && (f.Method == "" || f.Method == r.Method) &&
				(f.Path == "" || ok) && f.fires() {
				hit = f
				break
			}
		}
		s.mu.Unlock()
		if hit == nil {
			next.ServeHTTP(w, r)
			return
		}
		if hit.DelayMS > 0 {
			time.Sleep(time.Duration(hit.DelayMS) * time.Millisecond)
		}
		switch hit.Action {
		case "delay":
			next.ServeHTTP(w, r)
			return
		case "commit_then_respond", "commit_then_reset":
			next.ServeHTTP(httptest.NewRecorder(), r)
		}
		if hit.Action == "commit_then_reset" || hit.Action == "reset" {
			panic(http.ErrAbortHandler) // cuts the connection
		}
		message := hit.Message
		if message == "" {
			message = "injected fault"
		}
		if hit.Status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", strconv.Itoa(1))
		}
		(&apiError{status: hit.Status, code: hit.code("server_error"), message: message}).write(w)
	})
}

// controlRoutes are for tests and people, and not part of the provider's API.
func (s *Sim) controlRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /_sim/ledger", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, 200, map[string]any{"entries": s.Ledger(r.URL.Query().Get("open") == "true")})
	})
	mux.HandleFunc("GET /_sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]any{"faults": s.Faults()})
	})
	mux.HandleFunc("POST /_sim/faults", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
		dec.DisallowUnknownFields()
		err := dec.Decode(&f)
		if err == nil {
			f.ID, err = s.Inject(f)
		}
		if err != nil {
			writeJSON(w, 400, map[string]string{"error": err.Error()})
			return
		}
		writeJSON(w, 201, map[string]string{"id": f.ID})
	})
	mux.HandleFunc("DELETE /_sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		s.faults = nil
		err := s.withdraw()
		s.mu.Unlock()
		if err != nil {
			writeJSON(w, 500, map[string]string{"error": err.Error()})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("PUT /_sim/stock/{type}/{location}/{state}", func(w http.ResponseWriter, r *http.Request) {
		state := r.PathValue("state")
		if state != "out" && state != "in" {
			writeJSON(w, 400, map[string]string{"error": "state must be out or in"})
			return
		}
		s.SetStock(r.PathValue("type"), r.PathValue("location"), state == "in")
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("PUT /_sim/retire/{type}/{location}/{date}", func(w http.ResponseWriter, r *http.Request) {
		after, err := time.Parse(time.DateOnly, r.PathValue("date"))
		if err != nil {
			writeJSON(w, 400, map[string]string{"error": "the date must be like 2026-01-31"})
			return
		}
		s.Retire(r.PathValue("type"), r.PathValue("location"), after)
		w.WriteHeader(http.StatusNoContent)
	})
	for what, set := range map[string]func(n int){"servers": s.SetServerLimit, "dedicated-cores": s.SetDedicatedCoreLimit} {
		mux.HandleFunc("PUT /_sim/limits/"+what+"/{n}", func(w http.ResponseWriter, r *http.Request) {
			n, err := strconv.Atoi(r.PathValue("n"))
			if err != nil || n < 0 {
				writeJSON(w, 400, map[string]string{"error": "the limit must be a number"})
				return
			}
			set(n)
			w.WriteHeader(http.StatusNoContent)
		})
	}
	mux.HandleFunc("GET /_sim/hosts",
		func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, map[string]any{"hosts": s.Hosts()}) })
	mux.HandleFunc("GET /_sim/network", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, s.Network()) })
	mux.HandleFunc("GET /_sim/hosts/{id}/console", func(w http.ResponseWriter, r *http.Request) {
		b, err := s.Console(pathID(r))
		if err != nil {
			writeJSON(w, 404, map[string]string{"error": err.Error()})
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(b)
	})
	mux.HandleFunc("PUT /_sim/roots/{server}/{root}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.SetRoot(r.PathValue("server"), r.PathValue("root")); err != nil {
			writeJSON(w, 400, map[string]string{"error": err.Error()})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("DELETE /_sim/faults/{id}", func(w http.ResponseWriter, r *http.Request) {
		if !s.Withdraw(r.PathValue("id")) {
			writeJSON(w, 404, map[string]string{"error": "no such fault"})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /_sim/hosts/{id}/{verb}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.HostAction(pathID(r), r.PathValue("verb")); err != nil {
			writeJSON(w, 400, map[string]string{"error": err.Error()})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("/_sim/", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 404, map[string]string{"error": "no such control: see contributing/simulator.md"})
	})
}

// SetStock takes a machine type out of stock at a location, or puts it back; "*" means
// any.
func (s *Sim) SetStock(typ, location string, in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in {
		delete(s.st.StockOut, typ+"/"+location)
	} else {
		s.st.StockOut[typ+"/"+location] = true
	}
	s.changed()
}

// SetServerLimit sets how many servers the account may have.
func (s *Sim) SetServerLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Limits.Servers = n
}

// SetDedicatedCoreLimit sets how many dedicated cores the account may have.
func (s *Sim) SetDedicatedCoreLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Limits.DedicatedCores = n
}

// Ledger lists all billed items or, with open, the current ones.
func (s *Sim) Ledger(open bool) []LedgerEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []LedgerEntry{}
	for _, e := range s.st.Ledger {
		if !open || e.Closed == nil {
			out = append(out, *e)
		}
	}
	return out
}
