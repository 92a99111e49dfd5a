package sim

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/wire"
)

// docker answers a subset of the Docker Engine API, version 1.41, over mTLS with
// the certificates that the agent got for dockerd: enough to create, start,
// inspect and remove containers, which then exist in name only.
type docker struct {
	host   *host
	server *http.Server

	mu         sync.Mutex
	images     map[string]bool
	containers map[string]*container
}

type container struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Image   string            `json:"image"`
	Labels  map[string]string `json:"labels"`
	Env     []string          `json:"env"`
	Status  string            `json:"status"`
	Created time.Time         `json:"created"`
	Exit    int               `json:"exit"`
}

func (h *host) startDocker() error {
	d := &docker{host: h, images: make(map[string]bool), containers: make(map[string]*container)}
	if b, err := os.ReadFile(d.statePath()); err == nil {
		if err := json.Unmarshal(b, &d.containers); err != nil {
			return fmt.Errorf("docker state: %w", err)
		}
		for _, c := range d.containers {
			d.images[c.Image] = true
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(h.addr, fmt.Sprint(h.sim.cfg.DockerPort))) //nolint:noctx // ends with close
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	d.server = &http.Server{Handler: d.routes(), ReadHeaderTimeout: 5 * time.Second, TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return d.tls() },
	}, ErrorLog: nil}
	h.docker = d
	go func() { _ = d.server.ServeTLS(l, "", "") }()
	return nil
}

// tls reads the certificates at each connection, since the agent renews them.
func (d *docker) tls() (*tls.Config, error) {
	dir := filepath.Join(d.host.root(), wire.DockerTLSDir)
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("ca.pem holds no certificate")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}, nil
}

func (d *docker) close() { _ = d.server.Close() }

func (d *docker) statePath() string { return filepath.Join(d.host.dir, "docker.json") }

func (d *docker) save() {
	if b, err := json.Marshal(d.containers); err == nil {
		_ = os.WriteFile(d.statePath(), b, 0o600)
	}
}

func (d *docker) routes() http.Handler {
	mux := http.NewServeMux()
	refuse := func(w http.ResponseWriter, status int, message string) {
		writeJSON(w, status, map[string]string{"message": message})
	}
	ping := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Ostype", "linux")
		_, _ = w.Write([]byte("OK"))
	}
	mux.HandleFunc("GET /_ping", ping)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]string{"Version": "20.10.24-sim", "ApiVersion": "1.41", "MinAPIVersion": "1.12", "Os": "linux", "Arch": "amd64"})
	})
	mux.HandleFunc("POST /images/create", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		name := q.Get("fromImage")
		if tag := q.Get("tag"); tag != "" {
			name += ":" + tag
		}
		d.mu.Lock()
		d.images[name] = true
		d.mu.Unlock()
		writeJSON(w, 200, map[string]string{"status": "Status: Downloaded newer image for " + name})
	})
	mux.HandleFunc("GET /images/{name...}", func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimSuffix(r.PathValue("name"), "/json")
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.images[name] && !d.images["docker.io/"+name] && !d.images["docker.io/library/"+name] {
			refuse(w, 404, "No such image: "+name)
			return
		}
		writeJSON(w, 200, map[string]any{"Id": "sha256:" + name, "RepoTags": []string{name}})
	})
	mux.HandleFunc("POST /containers/create", d.create(refuse))
	mux.HandleFunc("GET /containers/json", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		out := []any{}
		for _, c := range d.containers {
			out = append(out, map[string]any{"Id": c.ID, "Names": []string{"/" + c.Name}, "Image": c.Image, "Labels": c.Labels, "State": c.Status, "Created": c.Created.Unix()})
		}
		writeJSON(w, 200, out)
	})
	each := func(f func(w http.ResponseWriter, r *http.Request, c *container)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, c := range d.containers {
				if ref := r.PathValue("ref"); ref == c.ID || ref == c.Name || strings.HasPrefix(c.ID, ref) {
					f(w, r, c)
					d.save()
					return
				}
			}
			refuse(w, 404, "No such container: "+r.PathValue("ref"))
		}
	}
	mux.HandleFunc("GET /containers/{ref}/json", each(func(w http.ResponseWriter, _ *http.Request, c *container) {
		writeJSON(w, 200, map[string]any{
			"Id": c.ID, "Name": "/" + c.Name, "Created": c.Created, "Image": "sha256:" + c.Image,
			"Config": map[string]any{"Image": c.Image, "Labels": c.Labels, "Env": c.Env},
			"State":  map[string]any{"Status": c.Status, "Running": c.Status == "running", "ExitCode": c.Exit, "Pid": 4242},
		})
	}))
	mux.HandleFunc("POST /containers/{ref}/start", each(func(w http.ResponseWriter, _ *http.Request, c *container) {
		if d.host.plan.containersFail {
			c.Status, c.Exit = "exited", 1
			refuse(w, 500, "driver failed programming external connectivity")
			return
		}
		c.Status = "running"
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("POST /containers/{ref}/stop", each(func(w http.ResponseWriter, _ *http.Request, c *container) {
		c.Status = "exited"
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("GET /containers/{ref}/logs", each(func(w http.ResponseWriter, _ *http.Request, c *container) {
		line := "container " + c.Name + " is " + c.Status + "\n"
		n := len(line)
		w.Header().Set("Content-Type", "application/vnd.docker.raw-stream")
		_, _ = w.Write(append([]byte{1, 0, 0, 0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, line...))
	}))
	mux.HandleFunc("DELETE /containers/{ref}", each(func(w http.ResponseWriter, _ *http.Request, c *container) {
		delete(d.containers, c.Name)
		w.WriteHeader(http.StatusNoContent)
	}))
	// Clients put the version that they negotiated in front.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := strings.CutPrefix(r.URL.Path, "/v1."); ok {
			if i := strings.IndexByte(p, '/'); i > 0 {
				r.URL.Path = p[i:]
			}
		}
		if r.Method == http.MethodHead && r.URL.Path == "/_ping" {
			ping(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (d *docker) create(refuse func(http.ResponseWriter, int, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Image  string
			Labels map[string]string
			Env    []string
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil {
			refuse(w, 400, "invalid JSON")
			return
		}
		name := r.URL.Query().Get("name")
		d.mu.Lock()
		defer d.mu.Unlock()
		if c, ok := d.containers[name]; ok {
			refuse(w, 409, fmt.Sprintf("Conflict. The container name %q is already in use by container %q.", "/"+name, c.ID))
			return
		}
		if !d.images[in.Image] && !d.images["docker.io/"+in.Image] && !d.images["docker.io/library/"+in.Image] {
			refuse(w, 404, "No such image: "+in.Image)
			return
		}
		var id [32]byte
		_, _ = rand.Read(id[:])
		c := &container{ID: hex.EncodeToString(id[:]), Name: name, Image: in.Image, Labels: in.Labels, Env: in.Env, Status: "created", Created: time.Now().UTC()}
		d.containers[name] = c
		d.save()
		writeJSON(w, 201, map[string]any{"Id": c.ID, "Warnings": []string{}})
	}
}
