// Package edge turns the document of what an edge serves into the configuration of its
// servers, applies it, and counts requests.
package edge

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// Settings are what the servers' configuration depends on besides the document.
type Settings struct {
	// Listen are the addresses for hosts without an address; none is every address of the host.
	Listen []netip.Addr
	// Own reports whether an environment's address is configured on this host: a server can't listen on any other.
	Own func(address string) bool
	// RunDir is wire.EdgeRunDir as the servers see it.
	RunDir string
	// sitesDir is where HAProxy finds the names of sites. Caddy finds in namesDir what it does with requests for a name,
	// in keysDir names' certificates, in answersDir answers to authorities, in passingDir edges that pass requests on.
	sitesDir, namesDir, keysDir, answersDir, passingDir string
	// secret is part of the path by which Caddy takes certificates from itself: any program of the host can connect.
	secret string
	// HTTPPort, HTTPSPort and keysPort are 80, 443 and defaultKeysPort but in tests.
	HTTPPort, HTTPSPort, keysPort int
}

// obj is a JSON object. Its keys are written in order, so that the same document gives the same bytes.
type obj = map[string]any

// Times of the proxy.
const (
	// keepIdle is below the time after which servers of instances close idle connections themselves; Node's is the
	// shortest in use with 5 s. A request that is sent while the other side closes is lost.
	keepIdle = "4s"
	// keepRoutes is how long a connection to HAProxy stays open without a request. A worker
	// of HAProxy that ends leaves idle ones open for one more request, which it still sends to
	// the places that it knows: they are given up 1 s later.
	keepRoutes = "500ms"
	// tryFor is how long an upstream that takes no connection is tried, as while a container restarts.
	tryFor = "5s"
	// closeStreams is how long a WebSocket outlives the configuration under which it began.
	// The old configuration stays in memory until then, so it can't be forever.
	closeStreams = "5m"
)

// Caddy is the configuration of Caddy for a document. certs are the document's certificates by id.
func Caddy(d wire.EdgeDocument, certs map[string]wire.EdgeCertificate, s Settings) ([]byte, error) {
	return configured(d, certs, used(d, certs), s)
}

// configured is a configuration that contains other certificates than the document's: those of an earlier one. It
// depends on no challenge, on no certificate of the document but wildcards and those of sites in other networks, and
// of names only on their listeners: files hold everything else (ADR 52, ADR 75).
func configured(d wire.EdgeDocument, certs, loaded map[string]wire.EdgeCertificate, s Settings) ([]byte, error) {
	s = s.withPorts()
	a := answersOf(d, certs, s)
	servers := obj{}
	for l := range a.listeners {
		server, err := s.server(l, a)
		if err != nil {
			return nil, err
		}
		servers[l.name()] = server
	}
	servers["certificates"] = s.keys(loaded)
	tls := obj{"disable_ocsp_stapling": true, "disable_storage_clean": true, "automation": s.automation()}
	if len(loaded) > 0 {
		pems := make([]pemPair, 0, len(loaded))
		for _, id := range slices.Sorted(maps.Keys(loaded)) {
			pems = append(pems, pemPair{loaded[id].Chain, loaded[id].Key, []string{id}})
		}
		tls["certificates"] = obj{"load_pem": pems}
	}
	return json.Marshal(obj{
		"admin":   obj{"listen": "unix/" + s.RunDir + "/" + adminSocket + "|0666", "config": obj{"persist": false}},
		"logging": logging(s.RunDir),
		"storage": obj{"module": "file_system", "root": s.RunDir + "/caddy"},
		"apps": obj{"tls": tls, "http": obj{
			"http_port": s.HTTPPort, "https_port": s.HTTPSPort, "shutdown_delay": askingEnds, "grace_period": "10m",
			"servers": servers,
		}},
	})
}

func (s Settings) withPorts() Settings {
	s.HTTPPort, s.HTTPSPort = cmp.Or(s.HTTPPort, 80), cmp.Or(s.HTTPSPort, 443)
	return s
}

// Files below the directory of sockets.
const (
	adminSocket = "caddy.sock"
	accessLog   = "access.log"
	// routesSocket is where HAProxy takes requests for routes.
	routesSocket = "haproxy-http.sock"
)

// logging keeps the requests' log in memory, bounded, for the counters: a socket would
// make every request wait for the agent. Headers may hold secrets and are left out.
func logging(dir string) obj {
	drop := obj{"filter": "delete"}
	return obj{"logs": obj{
		// tls.handshake reports each connection with a foreign name, and loggers outside of http and tls each request
		// for such a name.
		"default": obj{
			"level": "WARN", "include": []string{"http", "tls"}, "exclude": []string{"http.log.access", "tls.handshake"},
		},
		"access": obj{
			"level": "INFO", "include": []string{"http.log.access"},
			"writer": obj{"output": "file", "filename": dir + "/" + accessLog, "mode": "0644", "roll_size_mb": 16, "roll_keep": 1, "roll_gzip": false},
			"encoder": obj{"format": "filter", "wrap": obj{"format": "json", "time_format": "unix_milli_float"}, "fields": obj{
				"request>headers": drop, "resp_headers": drop, "request>tls": drop, "request>uri": drop, "user_id": drop, "logger": drop, "level": drop, "msg": drop,
				"request>remote_ip": drop, "request>remote_port": drop, "request>client_ip": drop,
			}},
		},
	}}
}

// listener is where a server listens; address "" is every address but environments' own.
type listener struct {
	address string
	port    int
}

func (l listener) name() string { return cmp.Or(l.address, "shared") + ":" + strconv.Itoa(l.port) }

func (s Settings) server(l listener, a answers) (obj, error) {
	listen, err := s.binds(l.address, l.port)
	if err != nil {
		return nil, err
	}
	if len(listen) == 0 {
		listen = []string{":" + strconv.Itoa(l.port)}
	}
	routes := []obj{lowered}
	if l.port == s.HTTPPort {
		routes = append(routes, s.authorities())
	}
	out := obj{
		"listen": listen, "automatic_https": obj{"disable": true},
		"protocols": []string{"h1"}, "read_header_timeout": "10s", "idle_timeout": "2m", "logs": obj{},
		"routes": append(routes, s.named(l, s.dispatch(l, a)), obj{"handle": []obj{unknown}}),
		"errors": obj{"routes": []obj{{"handle": []obj{failed}}}},
	}
	if l.port != s.HTTPPort {
		out["tls_connection_policies"], out["protocols"] = []obj{{}}, []string{"h1", "h2"}
	}
	return out, nil
}

// dispatch leads requests for a name that has been found.
func (s Settings) dispatch(l listener, a answers) (routes []obj) {
	routes = append(routes, where(fieldAction, actionMaintenance, maintenance))
	if l.port == s.HTTPPort {
		routes = append(routes, where(fieldAction, actionRedirect, redirect))
	}
	for _, id := range slices.Sorted(maps.Keys(a.ways)) {
		routes = append(routes, where(fieldAction, id, subroute(a.ways[id].routes())))
	}
	if l.port != s.HTTPPort {
		hsts := obj{"Strict-Transport-Security": []string{"max-age=" + fieldHSTS}}
		routes = append(routes, obj{
			"match":  []obj{{"not": []obj{{"vars": obj{fieldHSTS: []string{"0"}}}}}},
			"handle": []obj{{"handler": "headers", "response": obj{"deferred": true, "set": hsts}}},
		})
	}
	for _, size := range slices.Sorted(maps.Keys(a.bodies)) {
		limited := where(fieldMaxBody, strconv.FormatInt(size, 10), obj{"handler": "request_body", "max_size": size})
		delete(limited, "terminal")
		routes = append(routes, limited)
	}
	toRoute := forwarded("unix/"+s.RunDir+"/"+routesSocket, keepRoutes, obj{headerRoute: []string{fieldOwner}})
	return append(routes,
		where(fieldAction, actionNamed, s.toSite("{http.request.host}")),
		where(fieldAction, actionSite, s.toSite(fieldOwner)),
		where(fieldAction, actionRoute, toRoute),
		obj{"handle": []obj{unavailable}})
}

// toSite passes a request to a site, or to the HAProxy that has its server of events.
func (s Settings) toSite(name string) obj {
	site, visitor := []string{name}, []string{visitorVariable}
	// The site's frontend sends its name as the Origin of events' connections. Their server refuses an Origin that
	// differs from Host (frappe/realtime/middlewares/authenticate.js).
	sockets := forwarded("unix/"+s.RunDir+"/"+socketsPrefix+fieldSockets+".sock", keepIdle,
		obj{wire.HeaderSite: site, "X-Forwarded-For": visitor, "Host": site})
	return subroute(append(s.believed(),
		obj{"match": []obj{{"path": []string{"/socket.io*"}}}, "handle": []obj{sockets}, "terminal": true},
		obj{"handle": []obj{forwarded(fieldPlace, keepIdle, obj{wire.HeaderSite: site, "X-Forwarded-For": visitor})}}))
}

// forwarded passes a request on.
func forwarded(to, idle string, headers obj) obj {
	return obj{
		"handler": "reverse_proxy", "upstreams": []obj{{"dial": to}}, "headers": obj{"request": obj{"set": headers}},
		"transport": obj{
			"protocol": "http", "dial_timeout": "2s", "compression": false, "versions": []string{"1.1"},
			"keep_alive": obj{"idle_timeout": idle, "max_idle_conns_per_host": 128},
		},
		"stream_close_delay": closeStreams,
		"load_balancing":     sentOnce("first"),
	}
}

// sentOnce chooses upstreams by a policy, and tries others while none takes the connection. What may have
// reached one is not sent again: no request has this method.
func sentOnce(policy string) obj {
	return obj{"selection_policy": obj{"policy": policy}, "try_duration": tryFor, "try_interval": "100ms", "retry_match": []obj{{"method": []string{"NEVER"}}}}
}

// headerRoute passes the route of a request to HAProxy.
const headerRoute = "X-Prego-Route"

// lowered writes the host of a request as names are written here, and as their files are named.
var lowered = func() obj {
	var letters []obj
	for c := 'a'; c <= 'z'; c++ {
		letters = append(letters, obj{"search": strings.ToUpper(string(c)), "replace": string(c)})
	}
	letters = append(letters, obj{"search_regexp": `\.(:[0-9]+)?$`, "replace": "$1"})
	return obj{
		"match":  []obj{{"header_regexp": obj{"Host": obj{"pattern": `[A-Z]|\.(:[0-9]+)?$`}}}},
		"handle": []obj{{"handler": "headers", "request": obj{"replace": obj{"Host": letters}}}},
	}
}()

func subroute(routes []obj) obj { return obj{"handler": "subroute", "routes": routes} }

var redirect = obj{
	"handler": "static_response", "status_code": 308,
	"headers": obj{"Location": []string{"https://{http.request.host}{http.request.uri}"}},
}

// coverage is the certificate, by its id, that names have.
type coverage map[string]string

func covered(refs []wire.EdgeCertificateRef, certs map[string]wire.EdgeCertificate) coverage {
	out := coverage{}
	for _, ref := range refs {
		if c, ok := certs[ref.ID]; ok && c.SHA256 == ref.SHA256 {
			for _, n := range ref.Names {
				out[n] = ref.ID
			}
		}
	}
	return out
}

func (c coverage) of(name string) string {
	_, parent, _ := strings.Cut(name, ".")
	return cmp.Or(c[name], c["*."+parent])
}

// server is a name by which other edges have the certificate of a name: one for all that it is for, so that requests
// for them share connections.
func (c coverage) server(name string) string {
	if _, parent, _ := strings.Cut(name, "."); c[name] == "" {
		return "edge." + parent
	}
	return name
}

func (c coverage) has(name string) bool { return c.of(name) != "" }
