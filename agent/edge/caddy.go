// Package edge turns the document of what an edge serves into the configuration of its
// servers, applies it, and counts requests.
package edge

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"path/filepath"
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
	// namesDir is where HAProxy finds the names of sites. Caddy finds in placesDir their places, in keysDir names'
	// certificates, in answersDir answers to authorities.
	namesDir, placesDir, keysDir, answersDir string
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

// mapLeaf is how many names one map handler has, which compares them one by one. Above it a tree of lists of names
// leads to the right one: Caddy searches lists of more than 100 names by bisection.
const (
	mapLeaf = 128
	fan     = 12
)

// Caddy is the configuration of Caddy for a document. certs are the document's certificates by id.
func Caddy(d wire.EdgeDocument, certs map[string]wire.EdgeCertificate, s Settings) ([]byte, error) {
	return configured(d, certs, used(d, certs), s)
}

// configured is a configuration that contains other certificates than the document's: those of an earlier one. It
// depends on no challenge, and on no certificate of the document but wildcards and those of sites in other networks:
// files hold the others (ADR 75).
func configured(d wire.EdgeDocument, certs, loaded map[string]wire.EdgeCertificate, s Settings) ([]byte, error) {
	s.HTTPPort, s.HTTPSPort = cmp.Or(s.HTTPPort, 80), cmp.Or(s.HTTPSPort, 443)
	names := covered(d.Certificates, certs)
	trusts := func(name string) (certificate string, roots []string) {
		certificate = names.of(name)
		return certificate, chainOf(certs[certificate])
	}
	wild := covered(slices.DeleteFunc(slices.Clone(d.Certificates), func(ref wire.EdgeCertificateRef) bool {
		return !wildcard(ref)
	}), certs)
	listeners := map[listener]*site{}
	at := func(address string, port int) *site {
		l := listener{address: address, port: port}
		if listeners[l] == nil {
			listeners[l] = &site{listener: l, tls: port != s.HTTPPort, passing: d.Passing, trusts: trusts, names: map[string]bool{}}
		}
		return listeners[l]
	}
	at("", s.HTTPPort)
	at("", s.HTTPSPort)
	// Caddy refuses a name that is in one list twice. The first host that has it answers: the one for that port, and not
	// one whose visitors are only led from there to HTTPS, or are served there while it has no certificate.
	hosts := slices.Clone(d.Hosts)
	slices.SortStableFunc(hosts, func(a, b wire.EdgeHost) int { return cmp.Compare(min(b.Port, 1), min(a.Port, 1)) })
	for _, h := range hosts {
		if h.Address != "" && (s.Own == nil || !s.Own(h.Address)) {
			continue
		}
		port := h.Port
		switch port {
		case 80:
			port = s.HTTPPort
		case 443:
			port = s.HTTPSPort
		}
		if h.Address != "" {
			at(h.Address, s.HTTPPort)
		}
		plain := at(h.Address, s.HTTPPort)
		switch {
		case port != 0:
			at(h.Address, port).add(h)
		case !h.TLS:
			plain.add(h)
		default:
			at(h.Address, s.HTTPSPort).add(h)
			switch {
			case plain.names[h.Name]:
			case wild.has(h.Name):
				plain.redirected = append(plain.redirected, h.Name)
			default:
				plain.awaiting = append(plain.awaiting, h.Name)
				plain.add(h)
			}
		}
	}
	servers := obj{}
	for l, v := range listeners {
		server, err := v.server(s)
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
		// tls.handshake reports each connection with a foreign name.
		"default": obj{"level": "WARN", "exclude": []string{"http.log.access", "tls.handshake"}},
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

// site is what a listener serves.
type site struct {
	listener
	tls        bool
	hosts      []wire.EdgeHost
	names      map[string]bool // of hosts
	redirected []string
	awaiting   []string // redirected once they have a certificate
	passing    []string // edges whose X-Forwarded-For is trusted
	trusts     func(name string) (certificate string, roots []string)
}

func (v *site) add(h wire.EdgeHost) {
	if !v.names[h.Name] {
		v.names[h.Name] = true
		v.hosts = append(v.hosts, h)
	}
}

func (v *site) server(s Settings) (obj, error) {
	listen, err := s.binds(v.address, v.port)
	if err != nil {
		return nil, err
	}
	if len(listen) == 0 {
		listen = []string{":" + strconv.Itoa(v.port)}
	}
	routes, named := v.routes(s)
	out := obj{
		"listen": listen, "automatic_https": obj{"disable": true},
		"protocols": []string{"h1"}, "read_header_timeout": "10s", "idle_timeout": "2m", "logs": obj{},
		"routes": routes, "errors": obj{"routes": []obj{{"handle": []obj{failed}}}},
	}
	if len(named) > 0 {
		out["named_routes"] = named
	}
	if v.tls {
		out["tls_connection_policies"], out["protocols"] = []obj{{}}, []string{"h1", "h2"}
	}
	return out, nil
}

// class is the common part of hosts that differ only in their upstreams.
type class struct {
	maxBody int64
	hsts    int
	site    bool // of a tenant; else a route
}

func (v *site) routes(s Settings) (routes []obj, named obj) {
	named = obj{}
	routes = append(routes, lowered)
	if v.port == s.HTTPPort {
		routes = append(routes, s.answers())
	}
	if len(v.redirected) > 0 {
		routes = append(routes, onHosts(v.redirected, redirect))
	}
	if len(v.awaiting) > 0 {
		certified := onHosts(v.awaiting, redirect)
		file := []string{"/{http.request.host}" + keySuffix}
		certified["match"].([]obj)[0]["file"] = obj{"root": s.keysDir, "try_files": file}
		routes = append(routes, certified)
	}
	var maintained, empty []string
	var passed []wire.EdgeHost
	single := map[class][]wire.EdgeHost{}
	for _, h := range v.hosts {
		switch {
		case h.State == wire.EdgeMaintenance:
			maintained = append(maintained, h.Name)
		case len(h.Via) > 0:
			passed = append(passed, h)
		case h.Route == "" && len(h.Upstreams) == 0:
			empty = append(empty, h.Name)
		default:
			single[v.class(h)] = append(single[v.class(h)], h)
		}
	}
	classes := slices.SortedFunc(maps.Keys(single), func(a, b class) int {
		if a.site != b.site {
			return map[bool]int{true: 1, false: -1}[a.site]
		}
		return cmp.Or(cmp.Compare(a.maxBody, b.maxBody), cmp.Compare(a.hsts, b.hsts))
	})
	for i, c := range classes {
		name := "proxy-" + strconv.Itoa(i+1)
		named[name] = obj{"handle": c.handlers(s, v.passing)}
		leaf := func(hosts []wire.EdgeHost) []obj {
			return []obj{onHosts(namesOf(hosts), upstreamOf(hosts, s), obj{"handler": "invoke", "name": name})}
		}
		routes = append(routes, tree(single[c], mapLeaf, leaf)...)
	}
	routes = append(routes, v.passOn(passed)...)
	if len(maintained) > 0 {
		routes = append(routes, onHosts(maintained, maintenance))
	}
	if len(empty) > 0 {
		routes = append(routes, onHosts(empty, unavailable))
	}
	return append(routes, obj{"handle": []obj{unknown}}), named
}

func (v *site) class(h wire.EdgeHost) class {
	c := class{maxBody: h.MaxBody, site: h.Route == ""}
	if v.tls {
		c.hsts = h.HSTS
	}
	return c
}

// handlers are what a request passes on its way to the proxy.
func (c class) handlers(s Settings, passing []string) (out []obj) {
	if c.hsts > 0 {
		out = append(out, obj{"handler": "headers", "response": obj{"deferred": true, "set": obj{"Strict-Transport-Security": []string{"max-age=" + strconv.Itoa(c.hsts)}}}})
	}
	if c.maxBody > 0 {
		out = append(out, obj{"handler": "request_body", "max_size": c.maxBody})
	}
	transport := obj{"protocol": "http", "dial_timeout": "2s", "compression": false, "versions": []string{"1.1"}}
	proxy := func(dial string, headers obj) obj {
		return obj{
			"handler": "reverse_proxy", "upstreams": []obj{{"dial": dial}}, "transport": transport, "headers": obj{"request": obj{"set": headers}},
			"stream_close_delay": closeStreams,
			"load_balancing":     sentOnce("first"),
		}
	}
	if !c.site {
		transport["keep_alive"] = obj{"idle_timeout": keepRoutes, "max_idle_conns_per_host": 128}
		return append(out, proxy("unix/"+s.RunDir+"/"+routesSocket, obj{headerRoute: []string{upstreamVariable}}))
	}
	transport["keep_alive"] = obj{"idle_timeout": keepIdle, "max_idle_conns_per_host": 128}
	site := []string{siteVariable}
	to, sockets := obj{wire.HeaderSite: site}, obj{wire.HeaderSite: site, "Host": site}
	var before []obj
	if len(passing) > 0 {
		before = believed(passing)
		to["X-Forwarded-For"], sockets["X-Forwarded-For"] = []string{visitorVariable}, []string{visitorVariable}
	}
	// The site's frontend sends its name as the Origin of events' connections. Their server refuses an Origin that
	// differs from Host (frappe/realtime/middlewares/authenticate.js).
	return append(out, subroute(append(
		before,
		obj{"match": []obj{{"path": []string{"/socket.io*"}}}, "handle": []obj{proxy("unix/"+s.RunDir+"/"+socketsPrefix+socketsVariable+".sock", sockets)}, "terminal": true},
		obj{"handle": []obj{proxy(upstreamVariable, to)}},
	)))
}

// sentOnce chooses upstreams by a policy, and tries others while none takes the connection. What may have
// reached one is not sent again: no request has this method.
func sentOnce(policy string) obj {
	return obj{"selection_policy": obj{"policy": policy}, "try_duration": tryFor, "try_interval": "100ms", "retry_match": []obj{{"method": []string{"NEVER"}}}}
}

// Where a map leaves the upstream, or the route, the site, and the group of its WebSockets.
const (
	upstreamVariable = "{prego.upstream}"
	siteVariable     = "{prego.site}"
	socketsVariable  = "{prego.sockets}"
)

// headerRoute passes the route of a request to HAProxy.
const headerRoute = "X-Prego-Route"

// upstreamOf maps names to their sites, whose places are in files, or routes.
func upstreamOf(hosts []wire.EdgeHost, s Settings) obj {
	mappings := make([]obj, len(hosts))
	for i, h := range hosts {
		out := []string{h.Route, "", ""}
		if h.Route == "" {
			out = []string{"{file." + filepath.Join(s.placesDir, h.Site) + "}", h.Site, socketsOf(h.Site)}
		}
		mappings[i] = obj{"input": h.Name, "outputs": out}
	}
	return obj{"handler": "map", "source": "{http.request.host}", "destinations": []string{upstreamVariable, siteVariable, socketsVariable}, "mappings": mappings}
}

// tree leads to the leaf that has a name. Few wide levels are better than many narrow ones: Caddy parses the
// configuration below a level again on each level.
func tree(hosts []wire.EdgeHost, leafSize int, leaf func([]wire.EdgeHost) []obj) (out []obj) {
	if len(hosts) <= leafSize {
		return leaf(hosts)
	}
	for part := range slices.Chunk(hosts, max((len(hosts)+fan-1)/fan, leafSize)) {
		below := tree(part, leafSize, leaf)
		if len(below) > 1 {
			below = []obj{onHosts(namesOf(part), subroute(below))}
		}
		out = append(out, below...)
	}
	return out
}

func namesOf(hosts []wire.EdgeHost) []string {
	out := make([]string, len(hosts))
	for i, h := range hosts {
		out[i] = h.Name
	}
	return out
}

// lowered writes the host of a request as names are written here. The host matcher ignores case and takes no final dot,
// and maps compare byte by byte (caddyhttp.MatchHost, map.Handler).
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

func onHosts(names []string, handle ...obj) obj {
	return obj{"match": []obj{{"host": names}}, "handle": handle, "terminal": true}
}

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

func (c coverage) has(name string) bool { return c.of(name) != "" }
