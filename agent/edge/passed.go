package edge

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"

	"github.com/prego/prego/agent/wire"
)

// A site that has moved to another network is served by other edges. Until resolvers have forgotten
// the ones before, these pass its requests on (ADR 54).

// visitorVariable is the visitor's address, even if an edge of another network passes the request on.
const visitorVariable = "{http.vars.visitor}"

// believed are routes that determine the visitor's address.
func (s Settings) believed() []obj {
	edge := obj{"root": s.passingDir, "try_files": []string{"/{http.request.remote.host}"}}
	believe := obj{"handler": "vars", "visitor": "{http.request.header." + wire.HeaderVisitor + "}"}
	return []obj{
		{"handle": []obj{{"handler": "vars", "visitor": "{http.request.remote.host}"}}},
		{
			"match":  []obj{{"header": obj{wire.HeaderVisitor: []string{"*"}}}},
			"handle": []obj{subroute([]obj{{"match": []obj{{"file": edge}}, "handle": []obj{believe}}})},
		},
	}
}

// way is how requests reach a site in another network. Those edges must present this edge's own certificate for the
// name, or one from the same issuer: no list of authorities is consulted, and no other server can take the requests.
type way struct {
	server string
	roots  []string
	to     []wire.EdgeUpstream
}

func (w way) id() string {
	sum := sha256.Sum256(fmt.Append(nil, w))
	return "via-" + hex.EncodeToString(sum[:8])
}

func (w way) routes() []obj {
	to := make([]obj, len(w.to))
	for i, u := range w.to {
		to[i] = obj{"dial": u.Address}
	}
	headers := obj{
		"Host": []string{"{http.request.host}"}, wire.HeaderPassed: []string{"1"},
		wire.HeaderVisitor: []string{"{http.request.remote.host}"},
	}
	proxy := obj{
		"handler": "reverse_proxy", "upstreams": to, "stream_close_delay": closeStreams,
		"transport": obj{
			"protocol": "http", "dial_timeout": "2s", "compression": false, "versions": []string{"1.1"},
			"keep_alive": obj{"idle_timeout": keepPassed, "max_idle_conns_per_host": 128},
			"tls":        obj{"server_name": w.server, "root_ca_pool": w.roots},
		},
		"headers":        obj{"request": obj{"set": headers}},
		"load_balancing": sentOnce("random"),
	}
	return []obj{
		// For a moment two networks may each know the other one as the site's.
		{"match": []obj{{"header": obj{wire.HeaderPassed: []string{"*"}}}}, "handle": []obj{unavailable}, "terminal": true},
		{"handle": []obj{leaveBehind, proxy}},
	}
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
