package edge

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego/agent/wire"
)

// Names' certificates and answers to authorities are in files that Caddy looks for with each handshake or request, as
// the names are (names.go): they come and go without a new configuration, which closes connections. A configuration
// for another reason takes all certificates with it. It must: Caddy asks for a file in the context of the handshake's
// configuration, and cancels that when the next one starts (caddy.go, unsyncedStop), so handshakes that ask then fail.
const (
	keysDir    = "caddy/certificates" // below the edge's directory: <name>, the chain and its key
	answersDir = "caddy/answers"      // <host>/<token>
	passingDir = "caddy/passing"      // <address>, empty
	secretFile = "caddy/secret"
	draftFile  = "caddy/draft" // which is about to take another one's place
)

// defaultKeysPort is where Caddy takes names' certificates from itself, on a loopback address: stock Caddy gets
// certificates for handshakes from its cache, which only a new configuration changes, or by HTTP over TCP
// (modules/caddytls/certmanagers.go, HTTPCertGetter).
const defaultKeysPort = 9444

// keysAt is the address of that listener.
func (s Settings) keysAt() netip.AddrPort {
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if len(s.Listen) > 0 && s.Listen[0].IsLoopback() {
		at = s.Listen[0] // several edges on one machine, as in the simulation
	}
	return netip.AddrPortFrom(at, uint16(cmp.Or(s.keysPort, defaultKeysPort))) //nolint:gosec // a port
}

// automation has Caddy look for a name's certificate in a file before it ends a handshake. Any answer but a
// certificate ends it (certmagic, getCertFromAnyCertManager); the permission, which is never given, is a second reason
// not to order one.
func (s Settings) automation() obj {
	url := "http://" + s.keysAt().String() + "/" + s.secret
	return obj{
		"policies":  []obj{{"get_certificate": []obj{{"via": "http", "url": url}}}},
		"on_demand": obj{"permission": obj{"module": "http", "endpoint": url + "/none"}},
	}
}

// askingEnds is how long handshakes that ask for a certificate have before their configuration stops. Caddy waits this
// long if a listener of theirs is in no newer configuration.
const askingEnds = "500ms"

// endsWith is an address to listen on that changes with the certificates in a configuration: handshakes look there
// before they ask, so none asks after the next configuration has brought what it had asked for.
func (s Settings) endsWith(loaded map[string]wire.EdgeCertificate) netip.AddrPort {
	sum := sha256.New()
	for _, id := range slices.Sorted(maps.Keys(loaded)) {
		sum.Write([]byte(id + loaded[id].Chain))
	}
	b := sum.Sum(nil)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 64 | b[0]&63, b[1], b[2]}), s.keysAt().Port())
}

// keys is the server that has the certificates. Names in handshakes may have capitals.
func (s Settings) keys(loaded map[string]wire.EdgeCertificate) obj {
	var lower []obj
	for c := 'a'; c <= 'z'; c++ {
		lower = append(lower, obj{"find": strings.ToUpper(string(c)), "replace": string(c)})
	}
	exists := obj{"root": s.keysDir, "try_files": []string{"{http.request.uri.path}"}}
	send := obj{"handler": "file_server", "root": s.keysDir}
	return obj{
		"listen":          []string{s.keysAt().String(), s.endsWith(loaded).String()},
		"automatic_https": obj{"disable": true}, "protocols": []string{"h1"},
		"routes": []obj{
			{"match": []obj{{"path": []string{"/" + s.secret}}}, "terminal": true, "handle": []obj{
				{"handler": "rewrite", "uri": "/{http.request.uri.query.server_name}"},
				{"handler": "rewrite", "uri_substring": lower},
				subroute([]obj{{"match": []obj{{"file": exists}}, "handle": []obj{send}}}),
				none,
			}},
			{"handle": []obj{none}},
		},
	}
}

var none = obj{"handler": "static_response", "status_code": 404}

// authorities answers certificate authorities. What has no answer here may have one at a site.
func (s Settings) authorities() obj {
	exists := obj{"root": s.answersDir, "try_files": []string{"/{http.request.host}/{http.regexp.token.1}"}}
	path := obj{"name": "token", "pattern": `^/\.well-known/acme-challenge/([A-Za-z0-9_-]+)$`}
	return obj{
		"match": []obj{{"path_regexp": path}},
		"handle": []obj{subroute([]obj{{"match": []obj{{"file": exists}}, "terminal": true, "handle": []obj{
			{"handler": "headers", "response": obj{"set": obj{"Content-Type": []string{"application/octet-stream"}}}},
			{"handler": "rewrite", "uri": "{http.matchers.file.relative}"},
			{"handler": "file_server", "root": s.answersDir},
		}}})},
	}
}

// wildcard reports whether a certificate is for a wildcard. These are in Caddy's configuration only: their names are
// not the file of the name that a client sends.
func wildcard(ref wire.EdgeCertificateRef) bool {
	return slices.ContainsFunc(ref.Names, func(n string) bool { return strings.HasPrefix(n, "*") })
}

// pemPair is a certificate in Caddy's configuration (modules/caddytls/pemloader.go).
type pemPair struct {
	Certificate string   `json:"certificate"`
	Key         string   `json:"key"`
	Tags        []string `json:"tags"` // its id
}

// loadedBy are the certificates in a configuration of Caddy, by id. It is empty for those of earlier agents.
func loadedBy(config []byte) map[string]wire.EdgeCertificate {
	var c struct {
		Apps struct {
			TLS struct {
				Certificates struct {
					PEM []pemPair `json:"load_pem"`
				} `json:"certificates"`
			} `json:"tls"`
		} `json:"apps"`
	}
	_ = json.Unmarshal(config, &c)
	out := map[string]wire.EdgeCertificate{}
	for _, p := range c.Apps.TLS.Certificates.PEM {
		if len(p.Tags) == 1 {
			ref := wire.EdgeCertificateRef{ID: p.Tags[0]}
			out[ref.ID] = wire.EdgeCertificate{EdgeCertificateRef: ref, Chain: p.Certificate, Key: p.Key}
		}
	}
	return out
}

// stale reports whether Caddy must have another configuration for its certificates: a handshake takes what the
// configuration has, and looks for a file only if that is nothing.
func stale(loaded, certs map[string]wire.EdgeCertificate, now time.Time) bool {
	for id, old := range loaded {
		c, there := certs[id]
		if !there || (c.Chain != old.Chain || c.Key != old.Key) && !replaceable(old, now) {
			return true
		}
	}
	for id, c := range certs {
		if _, there := loaded[id]; !there && wildcard(c.EdgeCertificateRef) {
			return true
		}
	}
	return false
}

// replaceable reports whether a certificate that has been replaced can serve until Caddy has another reason for a
// configuration: it has been renewed when that was due (tenant.RenewAt), and a sixth of its life is left. The reason
// for an earlier replacement may be its key.
func replaceable(c wire.EdgeCertificate, now time.Time) bool {
	pair, err := tls.X509KeyPair([]byte(c.Chain), []byte(c.Key))
	if err != nil {
		return false
	}
	life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
	return now.After(pair.Leaf.NotBefore.Add(life*3/5)) && now.Before(pair.Leaf.NotAfter.Add(-life/6))
}

// used are the certificates of a document that are here, by id.
func used(d wire.EdgeDocument, certs map[string]wire.EdgeCertificate) map[string]wire.EdgeCertificate {
	out := make(map[string]wire.EdgeCertificate, len(d.Certificates))
	for _, ref := range d.Certificates {
		if c, ok := certs[ref.ID]; ok && c.SHA256 == ref.SHA256 {
			out[ref.ID] = c
		}
	}
	return out
}

// filesOf are the files of a document, and what they contain.
func filesOf(d wire.EdgeDocument, certs map[string]wire.EdgeCertificate, s Settings) map[string]string {
	out := map[string]string{}
	for name, content := range answersOf(d, certs, s.withPorts()).files {
		out[filepath.Join(namesDir, name)] = content
	}
	for _, ref := range d.Certificates {
		if c, ok := certs[ref.ID]; ok && c.SHA256 == ref.SHA256 && !wildcard(ref) {
			for _, name := range ref.Names {
				if checkName(name) == nil {
					out[filepath.Join(keysDir, name)] = strings.TrimSpace(c.Chain) + "\n" + c.Key
				}
			}
		}
	}
	for _, c := range d.Challenges {
		out[filepath.Join(answersDir, c.Host, c.Token)] = c.KeyAuthorization
	}
	for _, address := range d.Passing {
		if a, err := netip.ParseAddr(address); err == nil {
			out[filepath.Join(passingDir, a.Unmap().String())] = ""
		}
	}
	return out
}

// filed writes the files of a document, and deletes those that only the previous one has. A name's certificate is
// written before its file, which leads visitors to HTTPS.
func (e *Edge) filed(files map[string]string) error {
	made, same := map[string]bool{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		if before, there := e.files[name]; there && before == content {
			continue
		}
		dir := filepath.Dir(name)
		if !made[dir] {
			if err := os.MkdirAll(filepath.Join(e.dir, dir), 0o700); err != nil {
				return err
			}
			made[dir] = true
		}
		if err := e.replace(name, content, same[content]); err != nil {
			return err
		}
		e.files[name], same[content] = content, name
	}
	for name := range e.files {
		if _, there := files[name]; !there {
			if err := e.drop(name); err != nil {
				return err
			}
			delete(e.files, name)
		}
	}
	return nil
}

// replace replaces a file atomically, by a link to another file with the same content if there is one: most names have
// the same file on port 80, and a link takes a tenth of the time. It is not durable, so that 10,000 files take no more
// time than writing them: what a power cut takes is written again at the next start (refile), before Docker's.
func (e *Edge) replace(name, content, same string) error {
	draft := filepath.Join(e.dir, draftFile)
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // it could be a link
	}
	if same == "" || os.Link(filepath.Join(e.dir, same), draft) != nil {
		if err := os.WriteFile(draft, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return os.Rename(draft, filepath.Join(e.dir, name))
}

// drop deletes a file, and its directory if that was its last answer.
func (e *Edge) drop(name string) error {
	err := os.Remove(filepath.Join(e.dir, name))
	if dir := filepath.Dir(name); filepath.Dir(dir) == answersDir {
		_ = os.Remove(filepath.Join(e.dir, dir))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// refile makes the files be those of a document, whatever an earlier life has left: keys are not kept longer than
// their names.
func (e *Edge) refile(files map[string]string) error {
	for _, dir := range []string{namesDir, keysDir, answersDir, passingDir} {
		err := filepath.WalkDir(filepath.Join(e.dir, dir), func(path string, f fs.DirEntry, err error) error {
			if err != nil || f.IsDir() {
				return err
			}
			name, err := filepath.Rel(e.dir, path)
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			e.files[name] = string(content)
			return err
		})
		if err != nil {
			return err
		}
	}
	return e.filed(files)
}

// readSecret returns the edge's secret, and chooses one at the first start.
func (e *Edge) readSecret() (string, error) {
	b, err := os.ReadFile(filepath.Join(e.dir, secretFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		b = []byte(rand.Text())
		err = e.write(secretFile, b)
	}
	return string(b), err
}
