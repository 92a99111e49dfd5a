package hetzner_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// cloud is the simulated provider with an adapter of it.
type cloud struct {
	*sim.Sim
	*hetzner.Provider
	t testing.TB
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	s, err := sim.New(sim.Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: apiToken, RatePerHour: 1_000_000})
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	hz, err := hetzner.New(hetzner.Config{
		Endpoint: s.URL(), Token: apiToken, Environment: "test", Timeout: 5 * time.Second, Poll: 2 * time.Millisecond, Simulated: true, Budget: &ledger{},
		MayDelete: mayDelete,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, f := range s.Faults() {
			require.NotZero(t, f.Hits, "fault %+v never happened", f)
		}
	})
	return &cloud{s, hz, t}
}

func (c *cloud) inject(f sim.Fault) {
	c.t.Helper()
	_, err := c.Inject(f)
	require.NoError(c.t, err)
}

// call calls the API like another user of the project.
func (c *cloud) call(method, path string, body any) map[string]any {
	c.t.Helper()
	b, err := json.Marshal(body)
	require.NoError(c.t, err)
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.URL()+path, bytes.NewReader(b))
	require.NoError(c.t, err)
	req.Header.Set("Authorization", "Bearer "+apiToken)
	resp, err := need.HTTP.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	var out map[string]any
	if resp.StatusCode != http.StatusNoContent {
		require.NoError(c.t, json.NewDecoder(resp.Body).Decode(&out))
	}
	require.Less(c.t, resp.StatusCode, 300, "%s %s: %v", method, path, out)
	return out
}

func (c *cloud) server(change func(*server.CreateParams)) server.Handle {
	c.t.Helper()
	h, err := c.CreateServer(c.t.Context(), order(change))
	require.NoError(c.t, err)
	h.ActionIDs = append([]int64(nil), h.ActionIDs...)
	running, err := c.AwaitRunning(c.t.Context(), h, noBeat)
	require.NoError(c.t, err)
	return running
}

var (
	firewall = server.FirewallParams{Environment: "test", Name: "prego-test", CIDRs: []string{"198.51.100.7/32", "2001:db8::/48"}, Ports: []int{443, 2376}}
	volume   = server.VolumeParams{Environment: "test", ServerID: "app-1", Name: "prego-test-app-1-fsn1", Location: "fsn1", GB: 20}
)

// ensurers create the resources that servers need, each with the path of its kind and a body that creates one of the
// same name.
var ensurers = map[string]struct {
	ensure func(c *cloud) (string, error)
	path   string
	body   func(labels map[string]string) map[string]any
}{
	"firewall": {
		func(c *cloud) (string, error) { return c.EnsureFirewall(c.t.Context(), firewall) }, "/firewalls",
		func(l map[string]string) map[string]any { return map[string]any{"name": "prego-test", "labels": l} },
	},
	"placement group": {
		func(c *cloud) (string, error) {
			return c.EnsurePlacementGroup(c.t.Context(), "test", "prego-test-app-1", prego.RoleApp)
		}, "/placement_groups",
		func(l map[string]string) map[string]any {
			return map[string]any{"name": "prego-test-app-1", "type": "spread", "labels": l}
		},
	},
	"volume": {
		func(c *cloud) (string, error) { return c.EnsureVolume(c.t.Context(), volume) }, "/volumes",
		func(l map[string]string) map[string]any {
			return map[string]any{"name": volume.Name, "size": 20, "location": "fsn1", "labels": l}
		},
	},
	"floating IP": {
		func(c *cloud) (string, error) {
			id, _, err := c.EnsureFloatingIP(c.t.Context(), address)
			return id, err
		}, "/floating_ips",
		func(l map[string]string) map[string]any {
			return map[string]any{"name": address.Name, "type": "ipv4", "home_location": "fsn1", "labels": l}
		},
	},
}

func owned(extra ...string) map[string]string {
	l := map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: "test"}
	for i := 0; i < len(extra); i += 2 {
		l[extra[i]] = extra[i+1]
	}
	return l
}

func TestEnsureMakesOneAndFindsIt(t *testing.T) {
	t.Parallel()
	for kind, e := range ensurers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			first, err := e.ensure(c)
			require.NoError(t, err)
			again, err := e.ensure(c)
			require.NoError(t, err)
			require.Equal(t, first, again)
			all, err := c.ListOwned(t.Context())
			require.NoError(t, err)
			require.Len(t, all, 1)
			require.Equal(t, first, all[0].ProviderID)
			require.False(t, all[0].Attached)
			require.NoError(t, c.DeleteResource(t.Context(), all[0].Kind, prego.ServerID(first)))
			require.NoError(t, c.DeleteResource(t.Context(), all[0].Kind, prego.ServerID(first)),
				"deleting a missing resource is success")
			require.Empty(t, c.Ledger(true))
		})
	}
}

func TestEnsureRaces(t *testing.T) {
	t.Parallel()
	for kind, e := range ensurers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			const racers = 8
			var wg sync.WaitGroup
			ids, errs := make([]string, racers), make([]error, racers)
			for i := range racers {
				wg.Add(1)
				go func() { defer wg.Done(); ids[i], errs[i] = e.ensure(c) }()
			}
			wg.Wait()
			for i := range racers {
				require.NoError(t, errs[i])
				require.Equal(t, ids[0], ids[i])
			}
			all, err := c.ListOwned(t.Context())
			require.NoError(t, err)
			require.Len(t, all, 1)
		})
	}
}

func TestEnsureLosesAnswers(t *testing.T) {
	t.Parallel()
	for kind, e := range ensurers {
		for _, fault := range []sim.Fault{
			{Action: "commit_then_respond", Status: 504, Code: "timeout"},
			{Action: "commit_then_respond", Status: 500, Code: "cosmic_rays"},
			{Action: "commit_then_reset"},
		} {
			t.Run(fmt.Sprintf("%s, %s %d", kind, fault.Action, fault.Status), func(t *testing.T) {
				t.Parallel()
				c := newCloud(t)
				fault.Kind, fault.Method, fault.Path, fault.Times = "http", "POST", "/v1"+e.path, 1
				c.inject(fault)
				first, err := e.ensure(c)
				require.NoError(t, err, "it is found by its name")
				again, err := e.ensure(c)
				require.NoError(t, err)
				require.Equal(t, first, again)
			})
		}
		t.Run(kind+", nothing made", func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1" + e.path, Action: "reset", Times: 1})
			_, err := e.ensure(c)
			_ = requireClass(t, err, server.InfraAmbiguous, "connection_lost")
			_, err = e.ensure(c)
			require.NoError(t, err)
		})
		t.Run(kind+", name taken and free again", func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1" + e.path, Action: "respond", Status: 409, Code: "uniqueness_error", Times: 1})
			_, err := e.ensure(c)
			_ = requireClass(t, err, server.InfraAmbiguous, "uniqueness_error")
		})
		t.Run(kind+", refused", func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1" + e.path, Action: "respond", Status: 403, Code: "resource_limit_exceeded", Times: 1})
			_, err := e.ensure(c)
			_ = requireClass(t, err, server.InfraQuota, "resource_limit_exceeded")
		})
	}
}

func TestEnsureLeavesStrangersAlone(t *testing.T) {
	t.Parallel()
	for kind, e := range ensurers {
		for name, labels := range map[string]map[string]string{
			"no labels": {}, "other manager": {server.LabelManagedBy: "pulumi", server.LabelEnvironment: "test"}, "other environment": owned(server.LabelEnvironment, "prod"),
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				c := newCloud(t)
				c.call("POST", e.path, e.body(labels))
				var before map[string]any
				require.Eventually(t, func() bool { // a volume takes a moment
					before = c.call("GET", e.path, nil)
					return !strings.Contains(fmt.Sprint(before), "creating")
				}, 5*time.Second, time.Millisecond)
				_, err := e.ensure(c)
				_ = requireClass(t, err, server.InfraForeign, "uniqueness_error")
				require.Equal(t, before, c.call("GET", e.path, nil))
			})
		}
	}
}

func (c *cloud) rules() []any {
	return c.call("GET", "/firewalls", nil)["firewalls"].([]any)[0].(map[string]any)["rules"].([]any)
}

func TestFirewallRules(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	_, err := c.EnsureFirewall(t.Context(), firewall)
	require.NoError(t, err)
	b, err := json.Marshal(c.rules())
	require.NoError(t, err)
	rule := `{"direction": "in", "protocol": "tcp", "port": "%d", "source_ips": ["198.51.100.7/32", "2001:db8::/48"], "destination_ips": [], "description": "control plane"}`
	require.JSONEq(t, "["+fmt.Sprintf(rule, 443)+","+fmt.Sprintf(rule, 2376)+"]", string(b))
}

// TestFirewallDrift: changed rules are corrected, and right rules are left alone.
func TestFirewallDrift(t *testing.T) {
	t.Parallel()
	in := func(port string, sources ...string) map[string]any {
		return map[string]any{"direction": "in", "protocol": "tcp", "port": port, "source_ips": sources}
	}
	ours := []string{"198.51.100.7/32", "2001:db8::/48"}
	right := []any{in("443", ours...), in("2376", ours...)}
	for name, tc := range map[string]struct {
		rules []any
		drift bool
	}{
		"right":                   {right, false},
		"in another order":        {[]any{in("2376", "2001:db8::/48", "198.51.100.7/32"), in("443", ours...)}, false},
		"none":                    {[]any{}, true},
		"one missing":             {right[:1], true},
		"a source missing":        {[]any{in("443", ours[0]), in("2376", ours...)}, true},
		"SSH for all":             {append([]any{in("22", "0.0.0.0/0")}, right...), true},
		"a source more":           {[]any{in("443", append([]string{"0.0.0.0/0"}, ours...)...), in("2376", ours...)}, true},
		"another protocol":        {[]any{map[string]any{"direction": "in", "protocol": "udp", "port": "443", "source_ips": ours}, right[1]}, true},
		"something outgoing":      {append([]any{map[string]any{"direction": "out", "protocol": "tcp", "port": "443", "destination_ips": []string{"0.0.0.0/0"}}}, right...), true},
		"a range that covers all": {[]any{in("443-2376", ours...)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			id, err := c.EnsureFirewall(t.Context(), firewall)
			require.NoError(t, err)
			want := c.rules()
			c.call("POST", "/firewalls/"+id+"/actions/set_rules", map[string]any{"rules": tc.rules})
			changed := c.rules()
			again, err := c.EnsureFirewall(t.Context(), firewall)
			require.NoError(t, err)
			require.Equal(t, id, again)
			if tc.drift {
				require.Equal(t, want, c.rules())
			} else {
				require.Equal(t, changed, c.rules(), "right rules are not set again")
			}
		})
	}
}

func TestFirewallRefusesBadSources(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	for _, cidrs := range [][]string{nil, {}, {"198.51.100.7"}, {"everywhere"}, {"198.51.100.7/33"}, {"198.51.100.7/32", ""}} {
		_, err := c.EnsureFirewall(t.Context(), server.FirewallParams{Environment: "test", Name: "prego-test", CIDRs: cidrs, Ports: []int{443}})
		_ = requireClass(t, err, server.InfraPermanent, "invalid_input")
	}
	require.Empty(t, c.call("GET", "/firewalls", nil)["firewalls"])

	_, err := c.EnsureFirewall(t.Context(), server.FirewallParams{
		Environment: "test", Name: "prego-test", CIDRs: []string{"198.51.100.7/24", "198.51.100.99/24"}, Ports: []int{443},
	})
	require.NoError(t, err)
	require.Equal(t, []any{"198.51.100.0/24"}, c.rules()[0].(map[string]any)["source_ips"], "networks by their own address, once")
}

// TestEdgesAreOpenToEveryone: at the ports that are given, and at no more of others than the
// provider's limit of rules takes.
func TestEdgesAreOpenToEveryone(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	rules := func(ports ...int) (open []string) {
		t.Helper()
		_, err := c.EnsureFirewall(t.Context(), server.FirewallParams{Environment: "test", Name: "prego-test", Everyone: ports})
		require.NoError(t, err)
		for _, r := range c.rules() {
			rule := r.(map[string]any)
			require.Equal(t, []any{"in", "tcp", []any{"0.0.0.0/0", "::/0"}}, []any{rule["direction"], rule["protocol"], rule["source_ips"]})
			open = append(open, rule["port"].(string))
		}
		return open
	}
	require.Equal(t, []string{"80", "443"}, rules(80, 443))
	require.Equal(t, []string{"80", "443", "9000-9002", "9004"}, rules(80, 443, 9001, 9000, 9002, 9004, 9001))
	many := []int{80, 443}
	for i := range 60 {
		many = append(many, 10_000+i*10, 20_000+i*3)
	}
	open := rules(many...)
	require.Len(t, open, 50)
	require.Equal(t, []string{"80", "443"}, open[:2])
	require.Contains(t, open, "20000-20177", "the narrowest gaps are closed first")
}

func TestVolumeIsOrdered(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, err := c.EnsureVolume(t.Context(), volume)
	require.NoError(t, err)
	v := c.call("GET", "/volumes/"+id, nil)["volume"].(map[string]any)
	require.EqualValues(t, 20, v["size"])
	require.Equal(t, "ext4", v["format"])
	require.Equal(t, "available", v["status"])
	require.Equal(t, map[string]any{server.LabelManagedBy: "prego", server.LabelEnvironment: "test", server.LabelServerID: "app-1"}, v["labels"])

	small := volume
	small.Name, small.GB = "small", 9
	_, err = c.EnsureVolume(t.Context(), small)
	_ = requireClass(t, err, server.InfraPermanent, "invalid_input")
}

// TestVolumeIsWhole: a volume that is found while it is being made is not handed
// out before it is.
func TestVolumeIsWhole(t *testing.T) {
	t.Parallel()
	s, err := sim.New(sim.Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: apiToken, RatePerHour: 1_000_000, Profile: sim.Profile{Action: 400 * time.Millisecond}})
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	hz, err := hetzner.New(hetzner.Config{
		Endpoint: s.URL(), Token: apiToken, Environment: "test", Poll: 5 * time.Millisecond, Simulated: true, Budget: &ledger{},
		MayDelete: mayDelete,
	})
	require.NoError(t, err)
	c := &cloud{s, hz, t}
	c.call("POST", "/volumes", ensurers["volume"].body(owned()))
	id, err := c.EnsureVolume(t.Context(), volume)
	require.NoError(t, err)
	require.Equal(t, "available", c.call("GET", "/volumes/"+id, nil)["volume"].(map[string]any)["status"])
}

func TestDeleteVolumeDetachesFirst(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) (*cloud, string) {
		c := newCloud(t)
		id, err := c.EnsureVolume(t.Context(), volume)
		require.NoError(t, err)
		c.server(func(o *server.CreateParams) { o.VolumeIDs = prego.IDs[prego.VolumeID]([]string{id}) })
		return c, id
	}
	volumes := func(c *cloud) (n int) {
		for _, e := range c.Ledger(true) {
			if e.Kind == "volume" {
				n++
			}
		}
		return n
	}
	t.Run("attached", func(t *testing.T) {
		t.Parallel()
		c, id := setup(t)
		require.NoError(t, c.DeleteResource(t.Context(), server.ResourceVolume, prego.ServerID(id)))
		require.Zero(t, volumes(c))
	})
	t.Run("its server is gone", func(t *testing.T) {
		t.Parallel()
		c, id := setup(t)
		found, err := c.FindServers(t.Context(), "app-1")
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(found[0].ProviderServerID)))
		require.Equal(t, 1, volumes(c), "deleting a server only detaches its volumes")
		require.NoError(t, c.DeleteResource(t.Context(), server.ResourceVolume, prego.ServerID(id)))
		require.Empty(t, c.Ledger(true))
	})
	// The volume must be gone when the call succeeds, regardless of detaching.
	for _, tc := range []struct {
		status int
		code   string
	}{{422, "volume_not_attached"}, {404, "not_found"}, {404, "server_not_found"}} {
		t.Run("detached meanwhile: "+tc.code, func(t *testing.T) {
			t.Parallel()
			c, id := setup(t)
			c.inject(sim.Fault{
				Kind: "http", Method: "POST", Path: "/v1/volumes/" + id + "/actions/detach", Action: "commit_then_respond", Status: tc.status, Code: tc.code, Times: 1,
			})
			require.NoError(t, c.DeleteResource(t.Context(), server.ResourceVolume, prego.ServerID(id)))
			require.Zero(t, volumes(c), "still billed")
		})
	}
	t.Run("detaching is refused", func(t *testing.T) {
		t.Parallel()
		c, id := setup(t)
		c.inject(sim.Fault{
			Kind: "http", Method: "POST", Path: "/v1/volumes/" + id + "/actions/detach", Action: "respond", Status: 423, Code: "locked", Times: 1,
		})
		_ = requireClass(t, c.DeleteResource(t.Context(), server.ResourceVolume, prego.ServerID(id)), server.InfraRetry, "locked")
		require.Equal(t, 1, volumes(c))
	})
}

func TestDeleteResourceInUse(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	fw, err := c.EnsureFirewall(t.Context(), firewall)
	require.NoError(t, err)
	h := c.server(func(o *server.CreateParams) { o.FirewallID = fw })
	_ = requireClass(t, c.DeleteResource(t.Context(), server.ResourceFirewall, prego.ServerID(fw)), server.InfraRetry, "resource_in_use")
	_ = requireClass(t, c.DeleteResource(t.Context(), server.ResourcePrimaryIP, prego.ServerID(h.PrimaryIPIDs[0])), server.InfraRetry, "resource_in_use")
	require.NoError(t, c.DeleteResource(t.Context(), server.ResourceServer, prego.ServerID(h.ProviderServerID)))
	require.NoError(t, c.DeleteResource(t.Context(), server.ResourceFirewall, prego.ServerID(fw)))
	require.NoError(t, c.DeleteResource(t.Context(), server.ResourcePrimaryIP, prego.ServerID(h.PrimaryIPIDs[0])), "it went with its server")
	require.Empty(t, c.Ledger(true))
}

func TestDeleteResourceRefusesNonsense(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	for _, kind := range append(server.ResourceKinds(), "spaceship") {
		for _, id := range []string{"", "0", "-1", "x", "1/../../servers", "99999999999999999999"} {
			_ = requireClass(t, c.DeleteResource(t.Context(), kind, prego.ServerID(id)), server.InfraPermanent, "invalid_input")
		}
	}
	_ = requireClass(t, c.DeleteResource(t.Context(), "spaceship", "1"), server.InfraPermanent, "invalid_input")
}

func TestListOwnedListsAllPagesOfAllKinds(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	ctx := t.Context()
	fw, err := c.EnsureFirewall(ctx, firewall)
	require.NoError(t, err)
	group, err := c.EnsurePlacementGroup(ctx, "test", "prego-test-app-1", prego.RoleApp)
	require.NoError(t, err)
	vol, err := c.EnsureVolume(ctx, volume)
	require.NoError(t, err)
	h := c.server(func(o *server.CreateParams) {
		o.FirewallID, o.PlacementGroup, o.VolumeIDs = fw, group, prego.IDs[prego.VolumeID]([]string{vol})
	})
	require.NoError(t, c.LabelPrimaryIPs(ctx, h, order(nil).Labels()))
	for i := range 60 {
		c.call("POST", "/volumes", map[string]any{"name": fmt.Sprintf("more-%d", i), "size": 10, "location": "fsn1", "labels": owned()})
	}
	c.call("POST", "/volumes", map[string]any{"name": "strangers", "size": 10, "location": "fsn1"})
	c.call("POST", "/volumes", map[string]any{"name": "production's", "size": 10, "location": "fsn1", "labels": owned(server.LabelEnvironment, "prod")})

	all, err := c.ListOwned(ctx)
	require.NoError(t, err)
	count := map[server.ResourceKind]int{}
	for _, o := range all {
		count[o.Kind]++
		require.Equal(t, "test", o.Labels[server.LabelEnvironment])
		require.NotEmpty(t, o.Name)
		require.WithinDuration(t, time.Now(), o.CreatedAt, time.Minute)
		attached := !strings.HasPrefix(o.Name, "more-") && o.Kind != server.ResourceServer
		require.Equal(t, attached, o.Attached, "%+v", o)
	}
	require.Equal(t, map[server.ResourceKind]int{
		server.ResourceServer: 1, server.ResourceVolume: 61, server.ResourcePrimaryIP: 2, server.ResourcePlacementGroup: 1, server.ResourceFirewall: 1,
	}, count)

	// The listed resources can be deleted in the order of the kinds, and nothing is left.
	for _, kind := range server.ResourceKinds() {
		for _, o := range all {
			if o.Kind == kind {
				require.NoError(t, c.DeleteResource(ctx, kind, prego.ServerID(o.ProviderID)), "%+v", o)
			}
		}
	}
	left, err := c.ListOwned(ctx)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Len(t, c.Ledger(true), 2, "the strangers")
}

// TestListOwnedIsAllOrNothing: half a list would make orphans of the other half.
func TestListOwnedIsAllOrNothing(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/servers", "/volumes", "/primary_ips", "/floating_ips", "/placement_groups", "/firewalls"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.server(nil)
			c.inject(sim.Fault{Kind: "http", Method: "GET", Path: "/v1" + path, Action: "respond", Status: 500, Code: "server_error"})
			all, err := c.ListOwned(t.Context())
			_ = requireClass(t, err, server.InfraRetry, "server_error")
			require.Nil(t, all)
		})
	}
}

func TestFindServers(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	h := c.server(nil)
	c.server(func(o *server.CreateParams) { o.ServerID = "app-2" })
	c.call("POST", "/servers", map[string]any{
		"name": "twin", "server_type": "cx43", "image": "debian-12", "location": "fsn1", "labels": owned(server.LabelServerID, "app-1", server.LabelAttempt, "7"),
	})
	c.call("POST", "/servers", map[string]any{
		"name": "production", "server_type": "cx43", "image": "debian-12", "location": "fsn1", "labels": owned(server.LabelEnvironment, "prod", server.LabelServerID, "app-1"),
	})
	found, err := c.FindServers(t.Context(), "app-1")
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, h.ProviderServerID, found[0].ProviderServerID)
	require.Equal(t, 7, found[1].Attempt)
	none, err := c.FindServers(t.Context(), "app-3")
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestLabelServer(t *testing.T) {
	t.Parallel()
	mine := order(nil).Labels()
	for name, tc := range map[string]struct {
		has   map[string]string
		class server.InfraClass
	}{
		"no owner's":                                {map[string]string{"team": "blue"}, ""},
		"ours already":                              {mine, ""},
		"ours under another id":                     {owned(server.LabelServerID, "app-2"), server.InfraForeign},
		"another environment's, same id":            {owned(server.LabelEnvironment, "prod", server.LabelServerID, "app-1"), server.InfraForeign},
		"another environment's, not labelled fully": {owned(server.LabelEnvironment, "prod"), server.InfraForeign},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			made := c.call("POST", "/servers", map[string]any{"name": "old", "server_type": "cx43", "image": "debian-12", "location": "fsn1", "labels": tc.has})
			id := strconv.FormatInt(int64(made["server"].(map[string]any)["id"].(float64)), 10)
			err := c.LabelServer(t.Context(), id, mine)
			h := c.call("GET", "/servers/"+id, nil)["server"].(map[string]any)["labels"].(map[string]any)
			want := map[string]any{}
			for k, v := range tc.has {
				want[k] = v
			}
			if tc.class != "" {
				_ = requireClass(t, err, tc.class, "conflict")
				require.Equal(t, want, h)
				return
			}
			require.NoError(t, err)
			for k, v := range mine {
				want[k] = v
			}
			require.Equal(t, want, h)
		})
	}
	c := newCloud(t)
	_ = requireClass(t, c.LabelServer(t.Context(), "42", mine), server.InfraNotFound, "not_found")
}

func TestLabelPrimaryIPs(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	h := c.server(nil)
	require.Len(t, h.PrimaryIPIDs, 2)
	require.NoError(t, c.LabelPrimaryIPs(t.Context(), h, order(nil).Labels()))
	for _, id := range h.PrimaryIPIDs {
		labels := c.call("GET", "/primary_ips/"+id, nil)["primary_ip"].(map[string]any)["labels"].(map[string]any)
		require.Equal(t, "app-1", labels[server.LabelServerID])
	}
	require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)))
	_ = requireClass(t, c.LabelPrimaryIPs(t.Context(), h, order(nil).Labels()), server.InfraNotFound, "not_found")
}

// TestAgainstTheSimulatedCloud is one server's life, with the cloud's own faults.
func TestAgainstTheSimulatedCloud(t *testing.T) {
	t.Parallel()
	for _, f := range []sim.Fault{
		{}, // none
		{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "commit_then_respond", Status: 504, Code: "timeout", Times: 1},
		{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "commit_then_reset", Times: 1},
		{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "reset", Times: 1},
		{Kind: "land_late", DelayMS: 50, Times: 1},
	} {
		t.Run(f.Kind+f.Action, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			if f.Kind != "" {
				c.inject(f)
			}
			var h server.Handle
			require.Eventually(t, func() bool {
				var err error
				if h, err = c.CreateServer(t.Context(), order(nil)); err != nil {
					_ = requireClass(t, err, server.InfraAmbiguous, map[string]string{"reset": "connection_lost", "": "timeout"}[f.Action])
				}
				return err == nil
			}, 5*time.Second, 100*time.Millisecond)
			h, err := c.AwaitRunning(t.Context(), h, noBeat)
			require.NoError(t, err)
			require.NoError(t, hetzner.CheckHostAddr(h.IPv4, true))
			found, err := c.FindServers(t.Context(), "app-1")
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.Equal(t, h.ProviderServerID, found[0].ProviderServerID)
			require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)))
			require.Empty(t, c.Ledger(true))
		})
	}
}
