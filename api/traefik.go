package api

import (
	"encoding/json"
	"net/netip"

	"github.com/prego/prego/workload"
)

// traefikDocument is the dynamic configuration of an edge, as read by Traefik's HTTP
// provider. It depends on the routes alone, not on their order. A route whose env has
// lost its address is left out; one without instances keeps its router, with a service
// without servers, so that its callers get 503 and not 404.
func traefikDocument(routes []workload.PublishedRoute) ([]byte, error) {
	type obj = map[string]any
	httpRouters, httpServices, tcpRouters, tcpServices := obj{}, obj{}, obj{}, obj{}
	for _, r := range routes {
		if r.Listener == workload.ListenerEnvV4 && !ipv4Only(r.Address) {
			continue
		}
		entry := []string{r.EntryPoint()}
		servers := make([]obj, 0, len(r.Targets))
		for _, t := range r.Targets {
			host, err := netip.ParseAddr(t.Host)
			if err != nil || workload.ValidatePort("port", t.Port) != nil {
				continue
			}
			at := netip.AddrPortFrom(host, uint16(t.Port)) //nolint:gosec // ValidatePort bounds it
			if r.Protocol == workload.RouteHTTP {
				servers = append(servers, obj{"url": "http://" + at.String()})
			} else {
				servers = append(servers, obj{"address": at.String()})
			}
		}
		service := obj{"loadBalancer": obj{"servers": servers}}
		switch r.Protocol {
		case workload.RouteHTTP:
			httpRouters[string(r.RouteID)] = obj{"entryPoints": entry, "rule": "Host(`" + r.Hostname + "`)", "service": r.RouteID}
			httpServices[string(r.RouteID)] = service
		case workload.RouteHTTPS:
			tcpRouters[string(r.RouteID)] = obj{"entryPoints": entry, "rule": "HostSNI(`" + r.Hostname + "`)", "service": r.RouteID, "tls": obj{"passthrough": true}}
			tcpServices[string(r.RouteID)] = service
		case workload.RouteTCP:
			tcpRouters[string(r.RouteID)] = obj{"entryPoints": entry, "rule": "HostSNI(`*`)", "service": r.RouteID}
			tcpServices[string(r.RouteID)] = service
		}
	}
	// Traefik rejects empty sections.
	doc := obj{}
	if len(httpRouters) > 0 {
		doc["http"] = obj{"routers": httpRouters, "services": httpServices}
	}
	if len(tcpRouters) > 0 {
		doc["tcp"] = obj{"routers": tcpRouters, "services": tcpServices}
	}
	return json.MarshalIndent(doc, "", "  ") // keys of maps are sorted
}

// ipv4Only reports whether s is an IPv4 address.
func ipv4Only(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is4()
}
