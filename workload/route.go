package workload

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/prego/prego"
)

// ListenerScope is the address that a route listens on.
type ListenerScope string

// The scopes of listeners.
const (
	ListenerSharedV6 ListenerScope = "shared_v6" // the edge's, shared by all orgs
	ListenerEnvV4    ListenerScope = "env_v4"    // the env's own IPv4
)

// RouteProtocol is what a route carries.
type RouteProtocol string

// The protocols of routes.
const (
	RouteHTTP  RouteProtocol = "http"  // routed by the Host header
	RouteHTTPS RouteProtocol = "https" // the same; instances speak TLS themselves
	RouteTCP   RouteProtocol = "tcp"   // raw: the route has the port for itself
)

// Route publishes a port of a process group.
type Route struct {
	RouteID    prego.RouteID
	OrgID      prego.OrgID
	EnvID      prego.EnvID
	GroupID    prego.GroupID
	Hostname   string // "" for raw TCP
	Listener   ListenerScope
	ListenPort int
	Protocol   RouteProtocol
	TargetPort int
	CreatedBy  string
	CreatedAt  time.Time
	DeletedAt  *time.Time
	// HostnameStatus is the state of the org's claim to the hostname (org.DomainStatus): it
	// is served while that is verified.
	HostnameStatus string
}

// ValidatePort accepts 1 to 65535.
func ValidatePort(field string, port int) error {
	if port < 1 || port > 65535 {
		return prego.Invalid(field, "must be 1 to 65535")
	}
	return nil
}

// Validate checks a requested route, and lower-cases its hostname.
func (r *Route) Validate() error {
	if err := prego.ValidateResourceID("group_id", "grp-", string(r.GroupID)); err != nil {
		return err
	}
	switch r.Listener {
	case ListenerSharedV6, ListenerEnvV4:
	default:
		return prego.Invalid("listener", "must be one of shared_v6, env_v4")
	}
	if err := cmp.Or(ValidatePort("listen_port", r.ListenPort), ValidatePort("target_port", r.TargetPort)); err != nil {
		return err
	}
	switch r.Protocol {
	case RouteTCP:
		if r.Hostname != "" {
			return prego.Invalid("hostname", "must be left out for tcp: a raw stream names no host")
		}
		return nil
	case RouteHTTP, RouteHTTPS:
	default:
		return prego.Invalid("protocol", "must be one of http, https, tcp")
	}
	if r.Hostname == "" {
		return prego.Invalid("hostname", "is required for http and https")
	}
	var err error
	r.Hostname, err = prego.NormalizeHostname(r.Hostname)
	return err
}

// RouteTarget is one running, healthy instance behind a route.
type RouteTarget struct {
	InstanceID prego.InstanceID
	Host       string // of its server
	Port       int    // host port
}

// PublishedRoute is a route with its current targets.
type PublishedRoute struct {
	Route
	Address string // of an env_v4 listener
	Targets []RouteTarget
}

// EntryPoint is the name of the edge's listener for a route (docs/resources.md).
func (r PublishedRoute) EntryPoint() string {
	if r.Listener == ListenerEnvV4 {
		return fmt.Sprintf("v4-%s-%d", strings.ReplaceAll(r.Address, ".", "-"), r.ListenPort)
	}
	return fmt.Sprintf("v6-%d", r.ListenPort)
}
