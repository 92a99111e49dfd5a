package edge

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// A file for each name has what Caddy does with its requests, and Caddy reads it with each of them: a name comes and
// goes, its site moves or is under maintenance, and Caddy gets no new configuration, which would close connections.
const namesDir = "caddy/names" // below the edge's directory: <listener>/<name>

// What a name's file contains, separated by spaces. Caddy reads it once for each request, which so sees the file before
// a change or after it.
const (
	contentPattern = `^([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*) ([^ ]*)$`

	fieldAction  = "{http.regexp.name.1}"
	fieldOwner   = "{http.regexp.name.2}" // the site, or the route
	fieldPlace   = "{http.regexp.name.3}" // of a site: its server
	fieldSockets = "{http.regexp.name.4}" // of a site: the group of its WebSockets
	fieldMaxBody = "{http.regexp.name.5}"
	fieldHSTS    = "{http.regexp.name.6}"

	actionSite        = "site"
	actionNamed       = "named" // a site whose name this is: many names have the same file
	actionRoute       = "route"
	actionRedirect    = "redirect" // to HTTPS
	actionMaintenance = "maintenance"
	actionUnavailable = "unavailable"
)

// fields is the content of a file.
func fields(action, owner, place, sockets, maxBody, hsts string) string {
	return strings.Join([]string{action, owner, place, sockets, maxBody, hsts}, " ")
}

var redirected = fields(actionRedirect, "", "", "", "0", "0")

// answers is what an edge answers for.
type answers struct {
	listeners map[listener]bool
	files     map[string]string // of names, below namesDir
	ways      map[string]way
	bodies    map[int64]bool // the limits of bodies
}

func answersOf(d wire.EdgeDocument, certs map[string]wire.EdgeCertificate, s Settings) answers {
	a := answers{
		listeners: map[listener]bool{{"", s.HTTPPort}: true, {"", s.HTTPSPort}: true},
		files:     make(map[string]string, len(d.Hosts)), ways: map[string]way{}, bodies: map[int64]bool{},
	}
	names := covered(d.Certificates, certs)
	// The first host that has a name answers for it: the host for that port, and not a host whose visitors are only led
	// from there to HTTPS, or are served there while it has no certificate.
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
		plain, secure := listener{h.Address, s.HTTPPort}, listener{h.Address, s.HTTPSPort}
		a.listeners[plain] = true
		var w way
		if len(h.Via) > 0 {
			w = way{names.server(h.Name), chainOf(certs[names.of(h.Name)]), h.Via}
		}
		content := a.content(h, w)
		switch {
		case port != 0:
			a.add(listener{h.Address, port}, h.Name, content)
		case !h.TLS:
			a.add(plain, h.Name, content)
		default:
			a.add(secure, h.Name, content)
			if names.has(h.Name) {
				content = redirected
			}
			a.add(plain, h.Name, content)
		}
	}
	return a
}

func (a answers) add(l listener, name, content string) {
	a.listeners[l] = true
	name = filepath.Join(l.name(), name)
	if _, there := a.files[name]; !there {
		a.files[name] = content
	}
}

// content is the content of a host's file. w is the way to its site if that is in another network.
func (a answers) content(h wire.EdgeHost, w way) string {
	action, owner, place, sockets := actionSite, h.Site, "", ""
	switch {
	case h.State == wire.EdgeMaintenance:
		action = actionMaintenance
	case len(h.Via) > 0 && len(w.roots) == 0:
		action = actionUnavailable
	case len(h.Via) > 0:
		action = w.id()
		a.ways[action] = w
	case h.Route != "":
		action, owner = actionRoute, h.Route
	case len(h.Upstreams) == 0:
		action = actionUnavailable
	default:
		place, sockets = h.Upstreams[0].Address, socketsOf(h.Site)
		if h.Name == h.Site {
			action, owner = actionNamed, ""
		}
	}
	if h.MaxBody > 0 {
		a.bodies[h.MaxBody] = true
	}
	return fields(action, owner, place, sockets, strconv.FormatInt(h.MaxBody, 10), strconv.Itoa(h.HSTS))
}

// named finds a request's name, and leads to what routes make of it. Only names as documents have them are looked
// for: anything else could be another path.
func (s Settings) named(l listener, routes []obj) obj {
	form := obj{"{http.request.host}": obj{"pattern": "^[a-z0-9][a-z0-9._-]{0,252}$"}}
	// A placeholder can't have another one in it, so an expression composes the name of the file. It compiles its
	// pattern with each request, so the fields are taken apart by another matcher.
	dir := filepath.Join(s.namesDir, l.name())
	read := fmt.Sprintf("vars_regexp('file', '{file.%s/' + ph(req, 'http.request.host') + '}', '.+')", dir)
	content := obj{"{http.regexp.file.0}": obj{"name": "name", "pattern": contentPattern}}
	return matching("vars_regexp", form, subroute([]obj{
		matching("expression", read, subroute([]obj{
			matching("vars_regexp", content, subroute(routes)),
		})),
	}))
}

func matching(matcher string, with any, handle ...obj) obj {
	return obj{"match": []obj{{matcher: with}}, "handle": handle}
}

// where leads requests for names with a field's value.
func where(field, value string, handle ...obj) obj {
	route := matching("vars", obj{field: []string{value}}, handle...)
	route["terminal"] = true
	return route
}
