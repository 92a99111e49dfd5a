package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const networkColumns = `network_id, infra_provider AS provider, zone, ordinal, ip_range::text AS ip_range,
    COALESCE(provider_network_id, '') AS provider_network_id, members`

const (
	sqlNetworks = `SELECT ` + networkColumns + ` FROM networks ORDER BY infra_provider, zone, ordinal`
	sqlNetwork  = `SELECT ` + networkColumns + ` FROM networks WHERE network_id = $1`
)

// Networks lists all private networks, by provider, zone and ordinal.
func (s *Store) Networks(ctx context.Context) ([]server.Network, error) {
	return collect[server.Network](ctx, s, "networks", sqlNetworks)
}

// Network reads one network, or CodeNetworkUnknown.
func (s *Store) Network(ctx context.Context, id prego.NetworkID) (server.Network, error) {
	return get[server.Network](ctx, s.pool, prego.Errorf(prego.CodeNetworkUnknown, "there is no network %q", id), sqlNetwork, id)
}

const sqlPrivateAddress = `SELECT COALESCE(host(private_address), '') FROM servers WHERE server_id = $1`

// PrivateAddress is a server's address in its private network, "" if it has none, or
// CodeServerNotFound.
func (s *Store) PrivateAddress(ctx context.Context, id prego.ServerID) (string, error) {
	address, err := value[string](ctx, s.pool, sqlPrivateAddress, id)
	return address, failed(fmt.Sprintf("private address of %s", id), ifNoRows(err, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id)))
}

// Those that are on their way out count: tenants may still be there.
const sqlNetworkMembers = `
SELECT server_id, role, region, status, network_id, host(private_address) AS private_address FROM servers
WHERE network_id = $1 AND private_address IS NOT NULL AND status <> 'terminated' AND (cardinality($2::text[]) = 0 OR role = ANY ($2))
ORDER BY server_id`

// NetworkMembers lists the servers that are in a network and have their address there, by
// id: those of some roles, or all. A server that is being made is among them as soon as the
// provider has said its address, and one that is leaving until it is terminated.
func (s *Store) NetworkMembers(ctx context.Context, id prego.NetworkID, roles ...prego.Role) ([]server.NetworkMember, error) {
	return collect[server.NetworkMember](ctx, s, fmt.Sprintf("members of network %s", id), sqlNetworkMembers, id, filled(prego.Strings(roles)))
}
