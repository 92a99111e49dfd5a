package edge

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"

	"github.com/prego/prego/agent/wire"
)

// A site that has moved to another network is served by other edges. Until resolvers have forgotten
// the ones before, these pass its requests on (ADR 54).

// visitorVariable is the visitor's address, even if an edge of another network passes the request on.
const visitorVariable = "{http.vars.visitor}"

// believed are routes that determine the visitor's address.
func believed(passing []string) []obj {
	return []obj{
		{"handle": []obj{{"handler": "vars", "visitor": "{http.request.remote.host}"}}},
		{
			"match":  []obj{{"remote_ip": obj{"ranges": passing}, "header": obj{wire.HeaderVisitor: []string{"*"}}}},
			"handle": []obj{{"handler": "vars", "visitor": "{http.request.header." + wire.HeaderVisitor + "}"}},
		},
	}
}

// passOn are the routes of hosts whose sites are in another network. Those edges must present this edge's own
// certificate for the name, or one from the same issuer: no list of authorities is consulted, and no other server can
// take the requests.
func (v *site) passOn(hosts []wire.EdgeHost) (routes []obj) {
	type way struct{ certificate, to string }
	by := map[way][]wire.EdgeHost{}
	roots := map[way][]string{}
	var unverified []string
	for _, h := range hosts {
		certificate, trusted := v.trusts(h.Name)
		if len(trusted) == 0 {
			unverified = append(unverified, h.Name)
			continue
		}
		w := way{certificate, fmt.Sprint(h.Via)}
		by[w], roots[w] = append(by[w], h), trusted
	}
	ways := slices.SortedFunc(maps.Keys(by), func(a, b way) int {
		return slices.Compare([]string{a.certificate, a.to}, []string{b.certificate, b.to})
	})
	for _, w := range ways {
		first := by[w][0]
		to := make([]obj, len(first.Via))
		for i, u := range first.Via {
			to[i] = obj{"dial": u.Address}
		}
		proxy := obj{
			"handler": "reverse_proxy", "upstreams": to, "stream_close_delay": closeStreams,
			"transport": obj{
				"protocol": "http", "dial_timeout": "2s", "compression": false, "versions": []string{"1.1"},
				"keep_alive": obj{"idle_timeout": keepPassed, "max_idle_conns_per_host": 128},
				// One name for all that the certificate is for, so that they share connections.
				"tls": obj{"server_name": first.Name, "root_ca_pool": roots[w]},
			},
			"headers":        obj{"request": obj{"set": obj{"Host": []string{"{http.request.host}"}, wire.HeaderPassed: []string{"1"}, wire.HeaderVisitor: []string{"{http.request.remote.host}"}}}},
			"load_balancing": sentOnce("random"),
		}
		routes = append(routes, onHosts(namesOf(by[w]), subroute([]obj{
			// For a moment two networks may each know the other one as the site's.
			{"match": []obj{{"header": obj{wire.HeaderPassed: []string{"*"}}}}, "handle": []obj{unavailable}, "terminal": true},
			{"handle": []obj{leaveBehind, proxy}},
		})))
	}
	if len(unverified) > 0 {
		routes = append(routes, onHosts(unverified, unavailable))
	}
	return routes
}

// leaveBehind has connections end with an answer, so that the DNS is asked before the next one; WebSockets,
// whose answer is 101, stay.
var leaveBehind = obj{"handler": "headers", "response": obj{
	"deferred": true, "set": obj{"Connection": []string{"close"}}, "require": obj{"status_code": []int{2, 3, 4, 5}},
}}

// keepPassed is below the time after which edges close idle connections, 2 minutes.
const keepPassed = "30s"

// chainOf are the certificates of a chain as Caddy takes them.
func chainOf(c wire.EdgeCertificate) (out []string) {
	for rest := []byte(c.Chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out
		}
		if block.Type == "CERTIFICATE" {
			out = append(out, base64.StdEncoding.EncodeToString(block.Bytes))
		}
	}
}
