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

const sqlAssignNetwork = `SELECT ` + networkColumns + ` FROM assign_network($1, $2, $3, $4, $5, $6, $7)`

// AssignNetwork gives a server a place in a network of a zone; ok is false if base is used
// up. A server keeps the network that it has, unless that is in another zone or among the
// refused. base is the range that new networks are cut from.
func (s *Store) AssignNetwork(ctx context.Context, serverID prego.ServerID, zone, base string, refused []prego.NetworkID) (n server.Network, ok bool, err error) {
	found, err := find[server.Network](ctx, s.pool, sqlAssignNetwork, serverID, zone, base, server.NetworkBits, server.NetworkSize, server.NetworkReserve, filled(prego.Strings(refused)))
	if err != nil || found == nil {
		return n, false, failed(fmt.Sprintf("network for %s", serverID), err)
	}
	return *found, true, nil
}

const sqlNetworkMade = `UPDATE networks SET provider_network_id = $2, ip_range = $3 WHERE network_id = $1`

// NetworkMade records a network's id at the provider and the range that it has there.
func (s *Store) NetworkMade(ctx context.Context, id prego.NetworkID, providerNetworkID, ipRange string) error {
	return s.exec(ctx, fmt.Sprintf("record network %s", id), sqlNetworkMade, id, providerNetworkID, ipRange)
}

// The servers are in no network from then on, until they are attached to the next one.
const sqlNetworkGone = `
WITH gone AS (
    UPDATE networks SET provider_network_id = NULL WHERE infra_provider = $1 AND provider_network_id = $2 RETURNING network_id
), released AS (
    UPDATE resources SET state = 'released', released_at = now() WHERE provider = $1 AND kind = 'network' AND provider_id = $2 AND state <> 'released'
)
UPDATE servers s SET private_address = NULL, updated_at = now() FROM gone WHERE s.network_id = gone.network_id AND s.private_address IS NOT NULL`

// NetworkGone records that the provider does not have a network any more.
func (s *Store) NetworkGone(ctx context.Context, provider prego.InfraProviderID, providerNetworkID string) error {
	return s.exec(ctx, fmt.Sprintf("network %s is gone", providerNetworkID), sqlNetworkGone, provider, providerNetworkID)
}

const sqlHasAddress = `
WITH attached AS (
    UPDATE servers SET private_address = $3, updated_at = now()
    WHERE server_id = $1 AND network_id = $2 AND status <> 'terminated' AND private_address IS DISTINCT FROM $3
    RETURNING server_id, attempt, status
)
INSERT INTO events (kind, id, step, attempt, status, message, actor)
SELECT 'server', server_id, $4, attempt, status, $5, 'workflow' FROM attached`

// Attached records a server's address in its network.
func (s *Store) Attached(ctx context.Context, serverID prego.ServerID, network prego.NetworkID, address string) error {
	return s.exec(ctx, fmt.Sprintf("address of %s", serverID), sqlHasAddress, serverID, network, address,
		server.StepNetworkAttached, fmt.Sprintf("%s in network %s", address, network))
}

// Few are in none: imported servers, and servers whose network is gone.
const sqlUnattached = `
SELECT server_id FROM servers
WHERE status IN ('active', 'failed') AND private_address IS NULL AND provider_server_id IS NOT NULL AND location <> ''
ORDER BY server_id LIMIT $1`

// Unattached lists servers that have no private address and should have one, at most so
// many.
func (s *Store) Unattached(ctx context.Context, limit int) ([]prego.ServerID, error) {
	return collectValues[prego.ServerID](ctx, s, "servers without a network", sqlUnattached, limit)
}

const sqlOpenNetwork = `SELECT COALESCE(open_network($1, $2, $3, $4, $5, $6), '')`

// OpenNetwork is the network of some zones, in their order, where servers of all roles must
// be created for tenants that find no place anywhere; a new one if none has room. "" means that
// base is used up.
func (s *Store) OpenNetwork(ctx context.Context, provider prego.InfraProviderID, zones []string, base string) (prego.NetworkID, error) {
	id, err := value[prego.NetworkID](ctx, s.pool, sqlOpenNetwork, provider, zones, base, server.NetworkBits, server.NetworkSize, server.NetworkReserve)
	return id, failed("open network", err)
}
