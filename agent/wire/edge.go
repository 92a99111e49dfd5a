package wire

import "time"

// Paths of the agent gateway for edges. They need ScopeEdge, which only tokens of servers with the role edge have.
const (
	// PathEdge answers a GET with the EdgeDocument of the server's network. With ?version= of the document that the
	// edge has, it waits until there is a newer one, for EdgeWait at most, and then answers 304.
	PathEdge = "/internal/agent/edge"
	// PathEdgeCertificates takes an EdgeCertificatesRequest.
	PathEdgeCertificates = "/internal/agent/edge/certificates"
	// PathEdgeApplied takes an EdgeApplied and answers with an EdgeReleased.
	PathEdgeApplied = "/internal/agent/edge/applied"
)

// EdgeWait is how long the gateway lets a request for a document wait.
const EdgeWait = 25 * time.Second

// EdgeDocument is what the edges of a network serve. Its lists are sorted, so that the same rows give the same bytes.
type EdgeDocument struct {
	// Version counts the network's documents. A later document has a higher version, and an edge applies none with a
	// lower version than it has applied.
	Version int64 `json:"version"`
	// Hosts are sorted by name, listening address and port; each triple is there once.
	Hosts []EdgeHost `json:"hosts,omitempty"`
	// Certificates are the certificates that the edges present. The edge requests missing chains and keys, by id and
	// digest.
	Certificates []EdgeCertificateRef `json:"certificates,omitempty"`
	// Challenges are the answers to a certificate authority over HTTP.
	Challenges []EdgeChallenge `json:"challenges,omitempty"`
	// TCP are the ports that are forwarded as they are.
	TCP []EdgeTCP `json:"tcp,omitempty"`
	// Addresses are the floating addresses of the network's edges. An edge configures the addresses that name it.
	Addresses []EdgeAddress `json:"addresses,omitempty"`
	// Passing are the public addresses of edges of other networks that pass requests on to these, for sites that have
	// moved here (EdgeHost.Via). Their X-Forwarded-For is trusted.
	Passing []string `json:"passing,omitempty"`
}

// EdgeHostState is what an edge does with requests for a host.
type EdgeHostState string

// The states of a host.
const (
	EdgeServing EdgeHostState = "serving"
	// EdgeMaintenance answers 503 with Retry-After: the site is being moved, restored or migrated, or is suspended.
	EdgeMaintenance EdgeHostState = "maintenance"
)

// EdgeHost is a name that the edges answer for.
type EdgeHost struct {
	Name string `json:"name"` // lower case
	// Tenant or Route is the owner; requests are counted for it.
	Tenant string `json:"tenant,omitempty"`
	Route  string `json:"route,omitempty"`
	// Site is the tenant's site, which its server finds by HeaderSite.
	Site string `json:"site,omitempty"`
	// Address is where it is answered for; empty is every address of the edge except dedicated addresses of
	// environments.
	Address string `json:"address,omitempty"`
	// Port is where it is answered for over HTTP if it is not 80, or over TLS if it is not 443. 0 is both of these.
	Port int `json:"port,omitempty"`
	// TLS means that Port is for TLS. With Port 0 plain HTTP is redirected to HTTPS as soon as there is a certificate
	// for the name.
	TLS   bool          `json:"tls,omitempty"`
	State EdgeHostState `json:"state"`
	// Upstreams are healthy; without any, the answer is 503.
	Upstreams []EdgeUpstream `json:"upstreams,omitempty"`
	// Via are the public addresses and ports of edges of another network, where the site is now. While resolvers
	// still know the edges here, these pass requests on over TLS, as for the same name. Upstreams are empty then. An
	// edge that does not know Via answers 503.
	Via []EdgeUpstream `json:"via,omitempty"`
	// UpstreamTLS means that upstreams speak TLS. Their certificates are not verified: they are reached over the
	// private network.
	UpstreamTLS bool `json:"upstream_tls,omitempty"`
	// MaxBody is the largest body of a request, in bytes; 0 is no limit.
	MaxBody int64 `json:"max_body,omitempty"`
	// HSTS is max-age of Strict-Transport-Security, in seconds; 0 sends none.
	HSTS int `json:"hsts,omitempty"`
}

// HeaderSite names the site of a request, for any host name. Edges always replace the client's value.
const HeaderSite = "X-Frappe-Site-Name"

// Headers between edges. A request that was passed on once is not passed on again; who asked is
// believed of edges alone.
const (
	HeaderPassed  = "X-Prego-Passed"
	HeaderVisitor = "X-Prego-Visitor"
)

// EdgeUpstream is where requests are forwarded to.
type EdgeUpstream struct {
	Address string `json:"address"`          // private address and port
	Weight  int    `json:"weight,omitempty"` // among the host's upstreams; 0 counts as 1
}

// EdgeCertificateRef names a certificate.
type EdgeCertificateRef struct {
	ID     string   `json:"id"`
	Names  []string `json:"names"`  // a wildcard as "*.example.com"
	SHA256 string   `json:"sha256"` // hex, of the chain's PEM followed by the key's
}

// EdgeCertificatesRequest asks for certificates with their keys.
type EdgeCertificatesRequest struct {
	IDs []string `json:"ids"` // at most MaxEdgeCertificates
}

// MaxEdgeCertificates bounds one request.
const MaxEdgeCertificates = 100

// EdgeCertificates answers an EdgeCertificatesRequest; ids that are not in the current document are left out.
type EdgeCertificates struct {
	Certificates []EdgeCertificate `json:"certificates"`
}

// EdgeCertificate is a certificate with its key. It is sent to edges only, over mTLS,
// and kept in a file that only root can read.
type EdgeCertificate struct {
	EdgeCertificateRef
	Chain string `json:"chain"` // PEM, leaf first
	Key   string `json:"key"`   // PEM
	// Refused is why the gateway sends no key: the edge serves the previous certificate, and reports the reason.
	Refused string `json:"refused,omitempty"` // at most MaxEdgePartReason bytes
}

// EdgeChallenge is an answer to a certificate authority's HTTP-01 challenge (RFC 8555
// §8.3), on port 80 of the host at /.well-known/acme-challenge/ and the token.
type EdgeChallenge struct {
	Host             string `json:"host"`
	Token            string `json:"token"`
	KeyAuthorization string `json:"key_authorization"`
}

// EdgeTCP is a port whose connections are forwarded as they are.
type EdgeTCP struct {
	Route     string         `json:"route"`
	Address   string         `json:"address,omitempty"` // as in EdgeHost
	Port      int            `json:"port"`
	Upstreams []EdgeUpstream `json:"upstreams,omitempty"` // without any, connections are refused
}

// EdgeAddress is a floating address that is assigned to an edge at the provider.
type EdgeAddress struct {
	Address  string `json:"address"`
	ServerID string `json:"server_id"`
}

// EdgeApplied acknowledges a document.
type EdgeApplied struct {
	// Version is that of the document that is served now.
	Version int64 `json:"version"`
	// LeftOut are the parts of that document that the edge's servers refuse. Everything else is served. An edge
	// that leaves out more than MaxEdgeLeftOut reports the first.
	LeftOut []EdgeLeftOut `json:"left_out,omitempty"`
	// Closed are the tenants whose sites answer where the last released document leads, and don't where this one does:
	// at most MaxEdgeClosed, sorted.
	Closed []string `json:"closed,omitempty"`
	// Refused is the version of a later document that can't be served, with the reason; Version stays the previous
	// one.
	Refused int64  `json:"refused,omitempty"`
	Reason  string `json:"reason,omitempty"` // at most MaxEdgeReason bytes
}

// Bounds of EdgeApplied.
const (
	MaxEdgeReason = 1024
	MaxEdgeClosed = 500
)

// EdgeReleased answers an EdgeApplied.
type EdgeReleased struct {
	// Version is the highest that all edges of the network may have. One edge gets a new document first. The others get
	// it once it is acknowledged and does not close many sites.
	Version int64 `json:"version"`
}

// EdgePart is a kind of part of a document.
type EdgePart string

// The parts of a document that can be left out.
const (
	EdgeHostPart        EdgePart = "host"
	EdgeChallengePart   EdgePart = "challenge"
	EdgeCertificatePart EdgePart = "certificate"
	EdgeTCPPart         EdgePart = "tcp"
	EdgePassingPart     EdgePart = "passing"
)

// EdgeParts lists the kinds of parts.
func EdgeParts() []EdgePart {
	return []EdgePart{EdgeHostPart, EdgeChallengePart, EdgeCertificatePart, EdgeTCPPart, EdgePassingPart}
}

// EdgeLeftOut is a part of a document that an edge's servers refuse.
type EdgeLeftOut struct {
	Kind EdgePart `json:"kind"`
	// Name is the name of a host or challenge, the id of a certificate, the address and port that are
	// forwarded, or an address of Passing; at most MaxEdgePartName bytes.
	Name   string `json:"name"`
	Tenant string `json:"tenant,omitempty"`
	Route  string `json:"route,omitempty"`
	Reason string `json:"reason"` // at most MaxEdgePartReason bytes
}

// Bounds of EdgeApplied.LeftOut.
const (
	MaxEdgeLeftOut    = 500
	MaxEdgePartName   = 300
	MaxEdgePartReason = 512
)

// Directories of an edge, relative to the host's root directory. They belong to the
// process that faces the network, and the stack mounts them into the container of the
// server: EdgeDir has the last good document with its keys, EdgeRunDir the sockets.
const (
	EdgeDir    = "/var/lib/prego-edge"
	EdgeRunDir = "/run/prego-edge"
)

// PathEdgeUsage takes an EdgeUsage. It needs ScopeEdge.
const PathEdgeUsage = "/internal/agent/edge/usage"

// EdgeDurations are the upper bounds of EdgeCounts.Durations, in seconds; what took longer is in one more bucket.
var EdgeDurations = [...]float64{0.1, 0.3, 1, 3, 10}

// EdgeUsage reports the requests since the report before. A report that is sent again
// because its answer was lost may be counted twice.
type EdgeUsage struct {
	Counts []EdgeCounts `json:"counts"` // at most MaxEdgeCounts
}

// MaxEdgeCounts bounds one report.
const MaxEdgeCounts = 5000

// EdgeCounts are requests for the names of one tenant or one route; of neither, for unknown names.
type EdgeCounts struct {
	Tenant string `json:"tenant,omitempty"`
	Route  string `json:"route,omitempty"`
	// Statuses counts answers from 1xx to 5xx.
	Statuses  [5]int64                      `json:"statuses"`
	BytesIn   int64                         `json:"bytes_in"`  // of requests' bodies
	BytesOut  int64                         `json:"bytes_out"` // of answers' bodies
	Seconds   float64                       `json:"seconds"`   // all together
	Durations [len(EdgeDurations) + 1]int64 `json:"durations"`
}

// PathEdgeProbes takes an EdgeProbes. It needs ScopeEdge.
const PathEdgeProbes = "/internal/agent/edge/probes"

// EdgeProbes reports what an edge found when it requested the sites that it serves. Only changes are in it, each of
// them once and oldest first. A report whose answer was lost is sent again. The answer is an EdgeProbesAnswer.
type EdgeProbes struct {
	// Watch identifies a time of uninterrupted probing. Another one begins when the agent starts, and after its host
	// was stopped for a while: what happened in between is unknown.
	Watch string `json:"watch"` // at most MaxEdgePartName bytes
	// SinceMS is the age of the watch, UntilMS the time since its last moment that this report covers. Ages instead of
	// times: the clocks of hosts differ.
	SinceMS int64       `json:"since_ms"`
	UntilMS int64       `json:"until_ms"`
	After   int         `json:"after,omitempty"`   // how many changes of the watch were reported before these
	Changes []EdgeProbe `json:"changes,omitempty"` // at most MaxEdgeProbes
}

// EdgeProbesAnswer answers a report.
type EdgeProbesAnswer struct {
	// Restate: earlier changes of the watch are missing, since the database was restored from a backup. Nothing of the
	// report is recorded. The edge begins another watch of the same age with the health of all its sites.
	Restate bool `json:"restate"`
}

// MaxEdgeProbes bounds one report.
const MaxEdgeProbes = 2000

// EdgeProbe is a change of a site's health.
type EdgeProbe struct {
	Tenant string         `json:"tenant"`
	State  EdgeProbeState `json:"state"`
	Cause  EdgeProbeCause `json:"cause,omitempty"` // of EdgeProbeDown
	AgeMS  int64          `json:"age_ms"`          // since it began; for EdgeProbeDown since the first failed probe
}

// EdgeProbeState is the health of a site.
type EdgeProbeState string

// The states. The edge no longer probes a site that is EdgeProbeGone: it is under maintenance, or elsewhere.
const (
	EdgeProbeUp   EdgeProbeState = "up"
	EdgeProbeDown EdgeProbeState = "down"
	EdgeProbeGone EdgeProbeState = "gone"
)

// EdgeProbeCause is why a site is down.
type EdgeProbeCause string

// The causes.
const (
	EdgeProbeRefused EdgeProbeCause = "refused" // its server takes no connection, or ends it
	EdgeProbeTimeout EdgeProbeCause = "timeout" // no connection or no answer in time
	EdgeProbeError   EdgeProbeCause = "error"   // it answers with 5xx
	EdgeProbeMissing EdgeProbeCause = "missing" // it answers with 404: the server does not have the site
	// It answers that it is in maintenance mode, and the edge does not know why: prego shows a page instead.
	EdgeProbeMaintenance EdgeProbeCause = "maintenance"
)

// EdgeProbeCauses lists the causes.
func EdgeProbeCauses() []EdgeProbeCause {
	return []EdgeProbeCause{
		EdgeProbeRefused, EdgeProbeTimeout, EdgeProbeError, EdgeProbeMissing, EdgeProbeMaintenance,
	}
}
