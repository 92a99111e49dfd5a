package agentgw_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/pki"
)

func ports(prego.Role) (agent, docker int) { return 8443, 2376 }

func TestPeersDocument(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := t.Context()
	b.server("app-1")
	b.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('n-1', 'hetzner', 'eu-central', 1, '10.64.0.0/24')`)
	b.exec(`UPDATE servers SET network_id = 'n-1', private_address = '10.64.0.10' WHERE server_id = 'app-1'`)
	key := newKey(t)
	status, _, id := b.handshake("app-1", key, nil)
	require.Equal(t, 200, status)
	require.NotEmpty(t, id.Bundles.PeersKeys)
	client := b.client(certificate(t, id.Certificates.AgentClient, key))
	ask := func(in wire.PeersRequest) (out wire.PeersResponse) {
		body, err := json.Marshal(in)
		require.NoError(t, err)
		status, p, answer := b.post(client, wire.PathPeers, id.Token, "application/json", body)
		require.Equal(t, 200, status, p)
		require.NoError(t, json.Unmarshal(answer, &out))
		return out
	}
	heartbeat := func() (out wire.HeartbeatResponse) {
		status, _, answer := b.post(client, wire.PathHeartbeat, id.Token, "application/json", []byte(beat))
		require.Equal(t, 200, status)
		require.NoError(t, json.Unmarshal(answer, &out))
		return out
	}
	require.Equal(t, wire.PeersResponse{}, ask(wire.PeersRequest{}), "there is no document yet")
	require.Zero(t, heartbeat().PeersVersion)

	_, _, err := b.store.SetEgress(ctx, []string{"203.0.113.7/32"}, time.Hour)
	require.NoError(t, err)
	_, err = b.store.MakeDuePeers(ctx, 100, ports)
	require.NoError(t, err)
	first := ask(wire.PeersRequest{})
	require.Positive(t, first.Version)
	doc, err := first.Signed.Open(id.Bundles.PeersKeys)
	require.NoError(t, err)
	require.Equal(t, wire.PeersDocument{
		Environment: "test", ServerID: "app-1", Version: first.Version, Address: "10.64.0.10",
		Control: wire.PeersControl{CIDRs: []string{"203.0.113.7/32"}, Ports: []int{2376, 8443}}, Keys: id.Bundles.PeersKeys,
	}, doc)
	var known []string
	for kid := range doc.Keys {
		known = append(known, kid)
	}
	require.Eventually(t, func() bool { return heartbeat().PeersVersion == first.Version }, 10*time.Second, 50*time.Millisecond)
	require.NotNil(t, ask(wire.PeersRequest{Applied: first.Version, Keys: []string{"another"}}).Signed, "there are keys that it does not know")
	require.Equal(t, wire.PeersResponse{Version: first.Version}, ask(wire.PeersRequest{Applied: first.Version, Keys: known}))
	st, err := b.store.PeersState(ctx, "app-1")
	require.NoError(t, err)
	require.Equal(t, first.Version, st.AppliedVersion)

	_, _, err = b.store.SetEgress(ctx, []string{"203.0.113.7/32", "203.0.113.8/32"}, time.Hour)
	require.NoError(t, err)
	_, err = b.store.MakeDuePeers(ctx, 100, ports)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return heartbeat().PeersVersion > first.Version }, 10*time.Second, 50*time.Millisecond)
	ask(wire.PeersRequest{Applied: first.Version, Refused: "password=hunter2 \x00 nft failed"})
	st, err = b.store.PeersState(ctx, "app-1")
	require.NoError(t, err)
	require.Contains(t, st.Refused, "nft failed")
	require.NotContains(t, st.Refused, "hunter2")

	restored := ask(wire.PeersRequest{Applied: first.Version + 5, Keys: known})
	require.Nil(t, restored.Signed, "the host's document is newer than the row's")

	status, p, _ := b.post(client, wire.PathPeers, id.Token, "application/json", []byte(`{"applied":-1}`))
	require.Equal(t, 422, status, p)

	// It is lost, and returns: what it applies does not count, and it gets only the document that closes it.
	before, err := b.store.PeersState(ctx, "app-1")
	require.NoError(t, err)
	b.exec(`UPDATE servers SET identity_revoked_at = now() WHERE server_id = 'app-1'`)
	require.Eventually(t, func() bool {
		status, p, _ = b.post(client, wire.PathHeartbeat, id.Token, "application/json", []byte(beat))
		return status == 403 && p.Code == "identity_revoked"
	}, 10*time.Second, 50*time.Millisecond)
	closing := ask(wire.PeersRequest{Keys: known})
	require.NotNil(t, closing.Signed)
	cert, err := x509.ParseCertificate(certificate(t, id.Certificates.AgentClient, key).Certificate[0])
	require.NoError(t, err)
	id.Token, _, err = b.agents.Issue("app-1", prego.RoleApp, cert, -time.Hour)
	require.NoError(t, err)
	require.Equal(t, closing.Version, ask(wire.PeersRequest{Keys: known}).Version, "also days later")
	after, err := b.store.PeersState(ctx, "app-1")
	require.NoError(t, err)
	require.Equal(t, before.AppliedVersion, after.AppliedVersion)
	b.exec(`UPDATE servers SET identity_revoked_at = NULL WHERE server_id = 'app-1'`)
	status, p, _ = b.post(client, wire.PathPeers, id.Token, "application/json", []byte(`{}`))
	require.Equal(t, "token_expired", p.Code, status)
}

func TestServiceCertificates(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('n-1', 'hetzner', 'eu-central', 1, '10.64.0.0/24')`)
	enroll := func(id prego.ServerID, role prego.Role, address string) (*x509.Certificate, wire.Identity) {
		b.server(id)
		b.exec(`UPDATE servers SET role = $2, network_id = 'n-1', private_address = NULLIF($3, '')::inet WHERE server_id = $1`, id, role, address)
		status, p, identity := b.handshake(string(id), newKey(t), func(r *wire.HandshakeRequest) { r.CSRs.Service = csr(t, newKey(t)) })
		require.Equal(t, 200, status, p)
		block, _ := pem.Decode([]byte(identity.Certificates.Service))
		if block == nil {
			return nil, identity
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		return cert, identity
	}
	shard, identity := enroll("shard", prego.RoleDBShard, "10.64.0.2")
	require.NoError(t, b.ca.Verify(pki.ServiceServer, shard))
	require.Error(t, b.ca.Verify(pki.ServiceClient, shard))
	require.Error(t, b.ca.Verify(pki.AgentServer, shard))
	require.True(t, shard.IPAddresses[0].Equal(net.IPv4(10, 64, 0, 2)))
	require.Equal(t, "prego://test/server/shard", shard.URIs[0].String())
	require.NotEmpty(t, identity.Bundles.ServiceClient)

	app, identity := enroll("app", prego.RoleApp, "10.64.0.10")
	require.NoError(t, b.ca.Verify(pki.ServiceClient, app))
	require.Error(t, b.ca.Verify(pki.ServiceServer, app))
	require.Error(t, b.ca.Verify(pki.AgentClient, app))
	require.Empty(t, app.IPAddresses)
	require.NotEmpty(t, identity.Bundles.ServiceServer)

	early, _ := enroll("early", prego.RoleRedisPool, "")
	require.Nil(t, early, "asked for again when it has an address")
	node, _ := enroll("node", prego.RoleNode, "10.64.0.3")
	require.Nil(t, node, "a node keeps everything to itself")

	// A CA of services can sign only private addresses.
	b.server("public")
	b.exec(`UPDATE servers SET role = 'db-shard', network_id = 'n-1', private_address = '192.0.2.1' WHERE server_id = 'public'`)
	public, _ := enroll("public-2", prego.RoleDBShard, "192.0.2.1")
	require.Error(t, b.ca.Verify(pki.ServiceServer, public))
}
