package api

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/golden"
	"github.com/prego/prego/workload"
)

func TestTraefikDocument(t *testing.T) {
	t.Parallel()
	routes := []workload.PublishedRoute{
		{
			Route:   workload.Route{RouteID: "rte-http", Hostname: "www.example.com", Listener: workload.ListenerSharedV6, ListenPort: 80, Protocol: workload.RouteHTTP, TargetPort: 8080},
			Targets: []workload.RouteTarget{{InstanceID: "ins-1", Host: "192.0.2.7", Port: 32768}, {InstanceID: "ins-2", Host: "2001:db8::7", Port: 32769}},
		},
		{
			Route:   workload.Route{RouteID: "rte-https", Hostname: "www.example.com", Listener: workload.ListenerSharedV6, ListenPort: 443, Protocol: workload.RouteHTTPS, TargetPort: 8443},
			Targets: []workload.RouteTarget{{InstanceID: "ins-1", Host: "192.0.2.7", Port: 32770}},
		},
		{
			Route:   workload.Route{RouteID: "rte-tcp", Listener: workload.ListenerEnvV4, ListenPort: 5432, Protocol: workload.RouteTCP, TargetPort: 5432},
			Address: "203.0.113.9", Targets: []workload.RouteTarget{{InstanceID: "ins-3", Host: "192.0.2.8", Port: 32771}, {InstanceID: "ins-4", Host: "not an address", Port: 1}},
		},
		// The instance does not run: callers are told, and its name goes to no other instance.
		{Route: workload.Route{RouteID: "rte-idle", Hostname: "idle.example.com", Listener: workload.ListenerSharedV6, ListenPort: 80, Protocol: workload.RouteHTTP, TargetPort: 80}},
		// Its address is gone.
		{Route: workload.Route{RouteID: "rte-lost", Listener: workload.ListenerEnvV4, ListenPort: 25, Protocol: workload.RouteTCP, TargetPort: 25}},
	}
	got, err := traefikDocument(routes)
	require.NoError(t, err)
	for range 20 {
		rand.Shuffle(len(routes), func(i, j int) { routes[i], routes[j] = routes[j], routes[i] })
		again, err := traefikDocument(routes)
		require.NoError(t, err)
		require.Equal(t, string(got), string(again), "the order of routes does not matter")
	}
	golden.Equal(t, filepath.Join("testdata", "traefik.json"), string(got)+"\n")

	empty, err := traefikDocument(nil)
	require.NoError(t, err)
	require.Equal(t, "{}", string(empty))
}
