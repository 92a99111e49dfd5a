package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// Files below the edge's directory. All are 0600: they hold keys.
const (
	documentFile     = "document.json"
	certificatesFile = "certificates.json"
	caddyFile        = "caddy/config.json"
	haproxyFile      = "haproxy/haproxy.cfg"
	masterSocket     = "haproxy.sock"
)

// Edge keeps the servers of this host at a document. It serves the last good one from its
// files, with the control plane away and after a reboot.
type Edge struct {
	dir      string
	settings Settings
	caddy    *caddy
	haproxy  haproxy
	tryPort  func(address string, port int) error

	document wire.EdgeDocument // as the control plane has it
	leftOut  []refusal         // what of it the servers refuse, sorted
	closed   map[string]place  // where sites answered that it closes, by tenant
	probe    probe
	served   wire.EdgeDocument // the rest, which they run
	certs    map[string]wire.EdgeCertificate
	loaded   map[string]wire.EdgeCertificate // those in Caddy's configuration
	applied  bool                            // the servers run the document: false after a start
	running  running
	files    map[string]string // the content of the files that Caddy reads with requests and handshakes
	// forwarded means that HAProxy has read its file; idle is a file that forwards nothing.
	forwarded bool
	idle      string
	took      time.Duration
}

// running is what the servers run.
type running struct {
	caddy   []byte
	haproxy forwarding
}

// forwarding is HAProxy's configuration, and the names that it refers to.
type forwarding struct{ config, names string }

func forward(d wire.EdgeDocument, s Settings) (f forwarding, err error) {
	f.config, f.names, err = HAProxy(d, s)
	return f, err
}

// saved is the content of documentFile.
type saved struct {
	wire.EdgeDocument
	LeftOut []refusal        `json:"left_out,omitempty"`
	Closed  map[string]place `json:"closed,omitempty"`
}

// Open reads the last document from dir, and writes files that let the servers start if there are none. The servers'
// sockets are in settings.RunDir.
func Open(dir string, settings Settings) (*Edge, error) {
	settings.sitesDir, settings.namesDir = filepath.Join(dir, filepath.Dir(haproxyFile)), filepath.Join(dir, namesDir)
	settings.keysDir, settings.answersDir = filepath.Join(dir, keysDir), filepath.Join(dir, answersDir)
	settings.passingDir = filepath.Join(dir, passingDir)
	e := &Edge{
		dir: dir, settings: settings, caddy: newCaddy(filepath.Join(settings.RunDir, adminSocket)),
		haproxy: haproxy{socket: filepath.Join(settings.RunDir, masterSocket)},
		certs:   map[string]wire.EdgeCertificate{}, files: map[string]string{},
		tryPort: settings.tryPort, probe: askSite(newProbeClient()),
	}
	for _, d := range []string{filepath.Dir(haproxyFile), namesDir, keysDir, answersDir, passingDir} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("edge: %w", err)
		}
	}
	var err error
	if settings.secret, err = e.readSecret(); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	e.settings = settings
	var list []wire.EdgeCertificate
	var last saved
	if err := errors.Join(e.read(documentFile, &last), e.read(certificatesFile, &list)); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	for _, c := range list {
		e.certs[c.ID] = c
	}
	out := map[part]refusal{}
	for _, r := range last.LeftOut {
		out[r.part] = r
	}
	e.document, e.leftOut, e.closed = last.EdgeDocument, last.LeftOut, last.Closed
	e.served = without(last.EdgeDocument, out, e.certs)
	if err := e.refile(filesOf(e.served, e.certs, settings)); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	config, err := Caddy(e.served, e.certs, settings)
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	tcp, err := forward(e.served, settings)
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	idle, err := forward(wire.EdgeDocument{}, settings)
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	e.idle = idle.config
	if err := e.write(namesPath(tcp), []byte(tcp.names)); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	e.running.caddy, e.loaded = config, used(e.served, e.certs)
	if there, err := os.ReadFile(filepath.Join(dir, caddyFile)); err == nil {
		e.running.caddy, e.loaded = there, loadedBy(there)
	}
	for file, content := range map[string][]byte{caddyFile: config, haproxyFile: []byte(tcp.config)} {
		if _, err := os.Stat(filepath.Join(dir, file)); errors.Is(err, os.ErrNotExist) {
			if err := e.write(file, content); err != nil {
				return nil, fmt.Errorf("edge: %w", err)
			}
		}
	}
	return e, nil
}

// Document is the served document, or the last one, without LeftOut.
func (e *Edge) Document() wire.EdgeDocument { return e.document }

// Served is the part of Document that the servers run.
func (e *Edge) Served() wire.EdgeDocument { return e.served }

// Applied reports whether the servers have confirmed the document since the start.
func (e *Edge) Applied() bool { return e.applied }

// Took is how long the servers took for the last document.
func (e *Edge) Took() time.Duration { return e.took }

// Missing are the certificates of a document that this edge does not have.
func (e *Edge) Missing(d wire.EdgeDocument) (ids []string) {
	for _, ref := range d.Certificates {
		if c, ok := e.certs[ref.ID]; !ok || c.SHA256 != ref.SHA256 {
			ids = append(ids, ref.ID)
		}
	}
	return ids
}

// Apply makes the servers serve a document, except those parts of it that they refuse (LeftOut). A *RefusedError
// means that they refuse it for another reason: both keep serving the previous document, which stays on disk. So
// they do if its version is lower than that of the previous one.
func (e *Edge) Apply(ctx context.Context, d wire.EdgeDocument, fetched []wire.EdgeCertificate) error {
	if d.Version < e.document.Version {
		return fmt.Errorf("edge: version %d is older than %d, which it serves", d.Version, e.document.Version)
	}
	began := time.Now()
	out := malformed(d)
	e.busy(d, out)
	for _, r := range e.remembered(d, began) {
		out[r.part] = r
	}
	usable := make([]wire.EdgeCertificate, 0, len(fetched))
	for _, c := range fetched {
		p := partOf(c.EdgeCertificateRef)
		if err := checkPair(c); err != nil {
			out[p] = refusal{part: p, Reason: err.Error(), Tried: began}
			continue
		}
		delete(out, p)
		usable = append(usable, c)
	}
	closed := e.closing(ctx, d)
	err := e.apply(ctx, without(d, out, e.certs), saved{d, sorted(out), closed}, usable)
	var refused *RefusedError
	if errors.As(err, &refused) {
		if err = e.search(ctx, d, out, usable); err == nil {
			err = e.apply(ctx, without(d, out, e.certs), saved{d, sorted(out), closed}, usable)
		}
	}
	if err == nil {
		e.took = time.Since(began)
	}
	return err
}

// apply makes the servers serve the remaining parts of a document, or nothing new.
func (e *Edge) apply(
	ctx context.Context, d wire.EdgeDocument, whole saved, fetched []wire.EdgeCertificate,
) error {
	certs := make(map[string]wire.EdgeCertificate, len(d.Certificates))
	for _, ref := range d.Certificates {
		if c, ok := e.certs[ref.ID]; ok && c.SHA256 == ref.SHA256 {
			certs[ref.ID] = c
		}
	}
	for _, c := range fetched {
		certs[c.ID] = c
	}
	next := running{}
	var err error
	loaded, all := e.loaded, used(d, certs)
	if stale(loaded, all, time.Now()) {
		loaded = all
	}
	if next.caddy, err = configured(d, certs, loaded, e.settings); err != nil {
		return &RefusedError{Reason: err.Error()}
	}
	if !bytes.Equal(next.caddy, e.running.caddy) {
		// Caddy gets another configuration, so it gets all certificates.
		loaded = all
		if next.caddy, err = configured(d, certs, loaded, e.settings); err != nil {
			return &RefusedError{Reason: err.Error()}
		}
	}
	if next.haproxy, err = forward(d, e.settings); err != nil {
		return &RefusedError{Reason: err.Error()}
	}
	// Caddy sends requests to what HAProxy knows, so HAProxy knows it first.
	if err := e.forward(ctx, next.haproxy); err != nil {
		return err
	}
	if !e.applied || !bytes.Equal(next.caddy, e.running.caddy) {
		if err := e.caddy.load(ctx, next.caddy); err != nil {
			// Both serve the same document, otherwise its version would mean nothing.
			back, backErr := forward(e.served, e.settings)
			if backErr == nil {
				backErr = e.forward(ctx, back)
			}
			var refused *RefusedError
			if !errors.As(err, &refused) {
				e.running.caddy = nil // it may have taken it
			}
			return errors.Join(err, backErr)
		}
	}
	e.running.caddy, e.loaded = next.caddy, loaded
	// Names lead to what Caddy's configuration has, so it has that first.
	if err := e.filed(filesOf(d, certs, e.settings)); err != nil {
		return err
	}
	list := make([]wire.EdgeCertificate, 0, len(certs))
	for _, ref := range d.Certificates {
		if c, ok := certs[ref.ID]; ok {
			list = append(list, c)
		}
	}
	document, err := json.Marshal(whole)
	if err != nil {
		return err
	}
	keys, err := json.Marshal(list)
	if err != nil {
		return err
	}
	// The document comes last: its version stands for the other files.
	if err := errors.Join(e.write(caddyFile, next.caddy), e.write(certificatesFile, keys), e.write(documentFile, document)); err != nil {
		return err
	}
	// WebSockets of sites that have moved: they are opened again, and lead to the new place. Those
	// that can't be cut end with their worker.
	if moved := movedSockets(e.served, d); len(moved) > 0 {
		_ = e.haproxy.cut(ctx, moved)
	}
	e.document, e.leftOut, e.closed = whole.EdgeDocument, whole.LeftOut, whole.Closed
	e.served, e.certs, e.applied, e.running = d, certs, true, next
	return nil
}

// forward makes HAProxy load a configuration, unless it already has it. After a start of the agent, that is known
// only if there is nothing to forward: the file may have been written without HAProxy having read it.
func (e *Edge) forward(ctx context.Context, to forwarding) error {
	config := to.config
	before, err := os.ReadFile(filepath.Join(e.dir, haproxyFile))
	if err != nil {
		return err
	}
	if same := string(before) == config; same && (e.forwarded || config == e.idle) {
		return nil
	}
	if err := errors.Join(e.write(namesPath(to), []byte(to.names)), e.write(haproxyFile, []byte(config))); err != nil {
		return err
	}
	if err := e.haproxy.reload(ctx); err != nil {
		return errors.Join(err, e.write(haproxyFile, before))
	}
	e.forwarded = true
	e.dropNames(namesPath(to))
	return nil
}

// namesPath is where the names of a configuration of HAProxy are.
func namesPath(f forwarding) string {
	return filepath.Join(filepath.Dir(haproxyFile), namesFile(f.names))
}

// dropNames deletes the names that no configuration refers to any more.
func (e *Edge) dropNames(but string) {
	old, _ := filepath.Glob(filepath.Join(e.dir, filepath.Dir(haproxyFile), namesPrefix+"*"))
	for _, file := range old {
		if filepath.Base(file) != filepath.Base(but) {
			_ = os.Remove(file)
		}
	}
}

func (e *Edge) read(name string, out any) error {
	b, err := os.ReadFile(filepath.Join(e.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// write replaces a file: after a power cut it is the old or the new one.
func (e *Edge) write(name string, content []byte) error {
	return host.WriteFile(filepath.Join(e.dir, name), content, 0o600)
}
