package sim_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/lab/sim/judge"
)

func newSim(t *testing.T, change func(*sim.Config)) *sim.Sim {
	t.Helper()
	cfg := sim.Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: "secret", RatePerHour: 1_000_000}
	if change != nil {
		change(&cfg)
	}
	s, err := sim.New(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	return s
}

func client(s *sim.Sim, rt http.RoundTripper) *hcloud.Client {
	return hcloud.NewClient(hcloud.WithEndpoint(s.URL()), hcloud.WithToken("secret"), hcloud.WithHTTPClient(&http.Client{Transport: rt}),
		hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}), hcloud.WithPollOpts(hcloud.PollOpts{BackoffFunc: hcloud.ConstantBackoff(10 * time.Millisecond)}))
}

// TestConformsToTheProvidersSpecification has every request of a long walk, and every
// answer, judged: always by what we wrote down of the provider's API, and by its own
// specification where that is. Where that has to be, a run without it fails.
func TestConformsToTheProvidersSpecification(t *testing.T) {
	t.Parallel()
	judges := map[string]*openapi3.T{"our contract": judge.Contract(t)}
	if whole := judge.Specification(t); whole != nil {
		judges["the whole specification"] = whole
		t.Run("our contract agrees with it", func(t *testing.T) { agrees(t, judge.Contract(t), whole) })
	}
	for name, doc := range judges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walk(t, judge.New(t, doc))
		})
	}
}

func walk(t *testing.T, rt *judge.Judge) {
	s := newSim(t, nil)
	c := client(s, rt)
	ctx := context.Background()
	labels := map[string]string{"managed-by": "prego", "prego-environment": "x"}
	fw, _, err := c.Firewall.Create(ctx, hcloud.FirewallCreateOpts{Name: "fw", Labels: labels, Rules: []hcloud.FirewallRule{}})
	require.NoError(t, err)
	group, _, err := c.PlacementGroup.Create(ctx, hcloud.PlacementGroupCreateOpts{Name: "g", Type: hcloud.PlacementGroupTypeSpread, Labels: labels})
	require.NoError(t, err)
	ip, _, err := c.PrimaryIP.Create(ctx, hcloud.PrimaryIPCreateOpts{Name: "ip", Type: hcloud.PrimaryIPTypeIPv4, AssigneeType: "server", Location: "fsn1", Labels: labels, AutoDelete: new(false)})
	require.NoError(t, err)
	_, _, err = c.PrimaryIP.Create(ctx, hcloud.PrimaryIPCreateOpts{Name: "ip", Type: hcloud.PrimaryIPTypeIPv4, AssigneeType: "server", Location: "fsn1"})
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeUniquenessError))
	_, err = c.PrimaryIP.Delete(ctx, ip.PrimaryIP)
	require.NoError(t, err)
	volume, _, err := c.Volume.Create(ctx, hcloud.VolumeCreateOpts{Name: "v", Size: 10, Location: &hcloud.Location{Name: "fsn1"}, Labels: labels})
	require.NoError(t, err)
	require.NoError(t, c.Action.WaitFor(ctx, volume.Action))
	order := hcloud.ServerCreateOpts{
		Name: "s1", ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: "fsn1"},
		Labels: labels, Firewalls: []*hcloud.ServerCreateFirewall{{Firewall: hcloud.Firewall{ID: fw.Firewall.ID}}}, PlacementGroup: group.PlacementGroup,
		Volumes: []*hcloud.Volume{volume.Volume}, Automount: new(false), UserData: "#cloud-config\n",
		PublicNet: &hcloud.ServerCreatePublicNet{EnableIPv4: true, EnableIPv6: true},
	}
	made, _, err := c.Server.Create(ctx, order)
	require.NoError(t, err)
	require.NotEmpty(t, made.RootPassword, "a create without keys returns a password")
	require.NoError(t, c.Action.WaitFor(ctx, append(made.NextActions, made.Action)...))
	got, _, err := c.Server.GetByID(ctx, made.Server.ID)
	require.NoError(t, err)
	require.Equal(t, hcloud.ServerStatusRunning, got.Status)

	_, _, err = c.Server.Create(ctx, order)
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeUniquenessError), "%v", err)
	require.ErrorContains(t, err, "server name is already used")
	order.Name, order.UserData = "s2", strings.Repeat("x", 32769)
	_, _, err = c.Server.Create(ctx, order)
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeInvalidInput), "%v", err)
	order.UserData, order.Volumes, order.Automount, order.PlacementGroup = "", nil, nil, nil
	s.SetStock("cx23", "fsn1", false)
	_, _, err = c.Server.Create(ctx, order)
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeResourceUnavailable), "%v", err)
	s.SetDedicatedCoreLimit(3)
	_, _, err = c.Server.Create(t.Context(), hcloud.ServerCreateOpts{
		Name: "many-cores", ServerType: &hcloud.ServerType{Name: "ccx23"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: "fsn1"},
	})
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeResourceLimitExceeded), "%v", err)
	require.ErrorContains(t, err, "dedicated core limit exceeded")
	s.SetServerLimit(1)
	_, _, err = c.Server.Create(ctx, order)
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeResourceLimitExceeded), "%v", err)

	s.Retire("cx33", "fsn1", time.Now().AddDate(0, 1, 0))
	var snapshot *hcloud.Image
	for _, list := range []func() error{
		func() error { _, err := c.Server.All(ctx); return err },
		func() error { _, err := c.Volume.All(ctx); return err },
		func() error { _, err := c.Firewall.All(ctx); return err },
		func() error { _, err := c.PlacementGroup.All(ctx); return err },
		func() error { _, err := c.PrimaryIP.All(ctx); return err },
		func() error { _, err := c.Network.All(ctx); return err },
		func() error { _, err := c.Location.All(ctx); return err },
		func() error { _, err := c.ServerType.All(ctx); return err },
		func() error { _, err := c.Image.All(ctx); return err },
		func() error { _, _, err := c.Pricing.Get(ctx); return err },
		func() error {
			_, _, err := c.Server.Update(ctx, made.Server, hcloud.ServerUpdateOpts{Labels: labels})
			return err
		},
		func() error {
			_, _, err := c.PrimaryIP.Update(ctx, &hcloud.PrimaryIP{ID: got.PublicNet.IPv4.ID}, hcloud.PrimaryIPUpdateOpts{Labels: &labels})
			return err
		},
		func() error {
			off, _, err := c.Server.Poweroff(ctx, made.Server)
			if err != nil {
				return err
			}
			return c.Action.WaitFor(ctx, off)
		},
		func() error {
			change, _, err := c.Server.ChangeType(ctx, made.Server, hcloud.ServerChangeTypeOpts{ServerType: &hcloud.ServerType{Name: "cx53"}})
			if err != nil {
				return err
			}
			return c.Action.WaitFor(ctx, change)
		},
		func() error {
			taken, _, err := c.Server.CreateImage(ctx, made.Server, &hcloud.ServerCreateImageOpts{Type: hcloud.ImageTypeSnapshot, Description: new("copy"), Labels: labels})
			if err != nil {
				return err
			}
			snapshot = taken.Image
			return c.Action.WaitFor(ctx, taken.Action)
		},
		func() error {
			_, err := c.Image.AllWithOpts(ctx, hcloud.ImageListOpts{Type: []hcloud.ImageType{hcloud.ImageTypeSnapshot}, IncludeDeprecated: true})
			return err
		},
		func() error { _, _, err := c.Image.GetByID(ctx, snapshot.ID); return err },
		func() error { _, err := c.Image.Delete(ctx, snapshot); return err },
		func() error { _, _, err := c.Server.DeleteWithResult(ctx, made.Server); return err },
		func() error { _, err := c.Volume.Delete(ctx, volume.Volume); return err },
		func() error { _, err := c.PlacementGroup.Delete(ctx, group.PlacementGroup); return err },
		func() error { _, err := c.Firewall.Delete(ctx, fw.Firewall); return err },
	} {
		require.NoError(t, list())
	}
	_, _, err = c.Server.GetByID(ctx, made.Server.ID)
	require.NoError(t, err, "the library takes a 404 for no server")
	require.Empty(t, s.Ledger(true), "nothing is billed any more")
	require.Greater(t, rt.Checked(), 30)
}

func TestRefusalsOutsideOfTheSpecification(t *testing.T) {
	t.Parallel()
	s := newSim(t, func(c *sim.Config) { c.RatePerHour = 6 })
	get := func(path, token string) (int, string, http.Header) {
		req, err := http.NewRequest(http.MethodGet, strings.TrimSuffix(s.URL(), "/v1")+path, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := need.HTTP.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(b), resp.Header
	}
	status, body, header := get("/v1/servers", "wrong")
	require.Equal(t, 401, status)
	require.Contains(t, body, "the token you have provided is invalid")
	require.Equal(t, "6", header.Get("RateLimit-Limit"))
	require.Equal(t, "5", header.Get("RateLimit-Remaining"))
	status, body, _ = get("/v1/nonsense", "secret")
	require.Equal(t, 404, status)
	require.Contains(t, body, "api route not found")
	status, _, _ = get("/v1/datacenters", "secret")
	require.Equal(t, 410, status)
	for range 3 {
		get("/v1/servers", "secret")
	}
	status, body, _ = get("/v1/servers", "secret")
	require.Equal(t, 429, status)
	require.Contains(t, body, "secret", "as the provider does, it quotes the token")
	status, body, _ = get("/_sim/nonsense", "")
	require.Equal(t, 404, status)
	require.Contains(t, body, "contributing/simulator.md")
}

func TestFaultsAreCheckedAndCounted(t *testing.T) {
	t.Parallel()
	s := newSim(t, nil)
	for _, bad := range []string{
		`{`, `{"kind":"earthquake"}`, `{"kind":"http"}`, `{"kind":"http","action":"respond","status":200}`, `{"kind":"http","action":"reset","path":"["}`,
		`{"kind":"never_boot","times":-1}`, `{"kind":"never_boot","colour":"red"}`,
	} {
		resp, err := need.HTTP.Post(s.ControlURL()+"/faults", "application/json", strings.NewReader(bad))
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.Equal(t, 400, resp.StatusCode, bad)
	}
	_, err := s.Inject(sim.Fault{Kind: "http", Method: "GET", Path: "/v1/servers", Action: "respond", Status: 503, Skip: 1, Times: 2})
	require.NoError(t, err)
	c := client(s, need.HTTP.Transport)
	var outcomes []bool
	for range 5 {
		_, err := c.Server.All(context.Background())
		outcomes = append(outcomes, err == nil)
	}
	require.Equal(t, []bool{true, false, false, true, true}, outcomes)
	require.Equal(t, 2, s.Faults()[0].Hits)
}

func TestStateOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := sim.Config{Listen: "127.0.0.1:0", StateDir: dir, Token: "secret"}
	first, err := sim.New(cfg)
	require.NoError(t, err)
	require.NoError(t, first.Start())
	_, _, err = client(first, need.HTTP.Transport).Server.Create(context.Background(), hcloud.ServerCreateOpts{
		Name: "kept", ServerType: &hcloud.ServerType{Name: "ccx13"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: "sin"},
	})
	require.NoError(t, err)
	first.Close()
	second, err := sim.New(cfg)
	require.NoError(t, err)
	require.NoError(t, second.Start())
	t.Cleanup(second.Close)
	s, _, err := client(second, need.HTTP.Transport).Server.GetByName(context.Background(), "kept")
	require.NoError(t, err)
	require.NotNil(t, s)
	require.Len(t, second.Ledger(true), 3, "a server and its two addresses")
}
