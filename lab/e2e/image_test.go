package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

func (c *cell) buildImage() api.GoldenImage {
	c.t.Helper()
	status, body := c.request(http.MethodPost, "/v1/images", map[string]any{})
	require.Equal(c.t, http.StatusAccepted, status, "%s", body)
	var g api.GoldenImage
	require.NoError(c.t, json.Unmarshal(body, &g))
	return g
}

func (c *cell) image(id prego.ImageID) api.GoldenImage {
	c.t.Helper()
	status, body := c.request(http.MethodGet, string("/v1/images/"+id), nil)
	require.Equal(c.t, http.StatusOK, status, "%s", body)
	var g api.GoldenImage
	require.NoError(c.t, json.Unmarshal(body, &g))
	return g
}

// awaitImage waits until nothing works on an image any more, and checks how it ended.
func (c *cell) awaitImage(id prego.ImageID, want server.ImageStatus, reason prego.Reason) api.GoldenImage {
	c.t.Helper()
	var g api.GoldenImage
	eventually(c.t, func() bool {
		g = c.image(id)
		return server.ImageStatus(g.Status).Rests() && (want != server.ImageDeleted || g.Status == "deleted")
	}, patience, 50*time.Millisecond, "image %s", id)
	require.Equal(c.t, string(want), string(g.Status), "%s %s", deref(g.Reason), deref(g.Message))
	require.Equal(c.t, string(reason), deref(g.Reason), deref(g.Message))
	return g
}

// cloud calls the provider's API, like another user of the project.
func (c *cell) cloud(method, path string, body any) map[string]any {
	c.t.Helper()
	b, err := json.Marshal(body)
	require.NoError(c.t, err)
	req, err := http.NewRequest(method, c.sim.URL()+path, bytes.NewReader(b))
	require.NoError(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.vars["HCLOUD_TOKEN"])
	resp, err := need.HTTP.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	var out map[string]any
	require.NoError(c.t, json.NewDecoder(resp.Body).Decode(&out))
	require.Equal(c.t, 2, resp.StatusCode/100, "%v", out)
	return out
}

// number is an id of the provider's as it stands in a path.
func number[T int64 | float64](id T) string { return strconv.FormatInt(int64(id), 10) }

// TestGoldenImage: an image is built, verified by booting it, used, rotated and deleted,
// and nothing but images is left at the provider.
func TestGoldenImage(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	first := c.buildImage()
	require.Equal(t, "debian-13", first.BaseImage)
	status, body := c.request(http.MethodPost, "/v1/images", map[string]any{})
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, string(body), `"golden_image_building"`)

	first = c.awaitImage(first.ImageId, server.ImageReady, "")
	require.True(t, first.Current)
	require.NotNil(t, first.VerifiedAt)
	require.Contains(t, first.Containers, "frappe/erpnext:v15")
	require.Equal(t, "cx23", deref(first.BuilderType))
	require.EqualValues(t, 40, *first.DiskGb)
	require.Empty(t, c.billed("server"), "the builder and the booted server are gone")
	require.Empty(t, c.billed("primary_ip"))
	billed := c.billed("image")
	require.Len(t, billed, 1)
	require.Equal(t, map[string]string{
		server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: c.env, server.LabelImageID: string(first.ImageId), server.LabelBase: "debian-13",
		server.LabelRecipe: deref(first.RecipeHash)[:32], server.LabelAgent: deref(first.AgentSha256)[:32], server.LabelStack: deref(first.StackSha256)[:32],
	}, billed[0].Labels)

	c.create("made", prego.RoleRedisPool, server.Spec{})
	made := c.awaitStatus("made", server.Active)
	require.Equal(t, deref(first.ProviderImageId), deref(made.Provider.Image), "servers are made from it")
	host := c.sim.Hosts()[0]
	marker, err := os.ReadFile(filepath.Join(host.Root, "etc/prego-image.json"))
	require.NoError(t, err, "its disk is a copy")
	require.Contains(t, string(marker), "docker.io")
	require.NoDirExists(t, filepath.Join(host.Root, "etc/prego-image"))
	c.create("pinned", prego.RoleRedisPool, server.Spec{Image: "debian-12"})
	require.Equal(t, "debian-12", deref(c.awaitStatus("pinned", server.Active).Provider.Image), "who pins an image gets it")

	status, body = c.request(http.MethodDelete, string("/v1/images/"+first.ImageId), nil)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, string(body), `"golden_image_current"`)

	second := c.awaitImage(c.buildImage().ImageId, server.ImageReady, "")
	require.False(t, c.image(first.ImageId).Current)
	third := c.awaitImage(c.buildImage().ImageId, server.ImageReady, "")
	gone := c.awaitImage(first.ImageId, server.ImageDeleted, prego.ReasonRotated)
	require.NotNil(t, gone.DeletedAt)
	require.Len(t, c.billed("image"), 2, "the last two are kept")
	c.awaitRunEnd(server.ImageBuildWorkflowID(third.ImageId))
	keepHistory(t, c, "image-build-rotating", server.ImageBuildWorkflowID(third.ImageId))
	keepHistory(t, c, "image-delete", server.ImageDeleteWorkflowID(first.ImageId))
	keepHistory(t, c, "refresh-catalog", server.CatalogWorkflowID(c.env))

	// The provider no longer has the current image: the previous one takes its place, and then the stock image, and
	// servers are still created.
	for i, want := range []string{deref(second.ProviderImageId), "debian-13"} {
		image := []api.GoldenImage{third, second}[i]
		c.provider(http.MethodDelete, "/images/"+deref(image.ProviderImageId), nil)
		id := []string{"before", "stock"}[i]
		c.create(id, prego.RoleRedisPool, server.Spec{})
		s := c.awaitStatus(id, server.Active)
		require.Equal(t, want, deref(s.Provider.Image))
		require.Equal(t, 1, count(s, server.StepImageGone))
		require.Equal(t, 1, s.Attempt)
		c.awaitImage(image.ImageId, server.ImageDeleted, prego.ReasonGoneAtProvider)
	}
	require.Empty(t, c.billed("image"))
	c.settled()
}

// TestFailedImageBuildLeavesNothing: after any failure, the image is not used, and builder, booted server and copy
// are gone.
func TestFailedImageBuildLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		fault  sim.Fault
		vars   map[string]string
		set    func(*config.Config)
		reason prego.Reason
		boots  server.BootTimeouts
		during func(c *cell)
	}{
		"the builder fails": {fault: sim.Fault{Kind: "image_build_fails"}, set: func(cfg *config.Config) { cfg.Worker.ImageBuildTimeout = 3 * time.Second }, reason: prego.ReasonBuildTimeout},
		"no builder":        {fault: sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 412, Code: "resource_unavailable"}, reason: prego.ReasonBuilderNotMade},
		"the copy fails":    {fault: sim.Fault{Kind: "create_image_fails"}, reason: prego.ReasonSnapshotFailed},
		"the boot fails":    {fault: sim.Fault{Kind: "boot_without_agent", Server: "*-verify"}, vars: map[string]string{"PREGO_PROVISION_RETRIES": "0"}, reason: prego.ReasonVerificationFailed, boots: impatient(prego.ReasonFailedHandshake)},
		"containers fail":   {fault: sim.Fault{Kind: "container_start_fail", Server: "*-verify"}, vars: map[string]string{"PREGO_PROVISION_RETRIES": "0", "PREGO_CONTAINER_TIMEOUT": "3s"}, reason: prego.ReasonVerificationFailed},
		"the builder is lost": {fault: sim.Fault{Kind: "image_build_fails"}, reason: prego.ReasonBuilderLost, during: func(c *cell) {
			eventually(c.t, func() bool { return len(c.sim.Hosts()) == 1 }, patience, 50*time.Millisecond)
			host := c.sim.Hosts()[0]
			require.True(c.t, strings.HasSuffix(host.Name, "-builder"))
			c.provider(http.MethodDelete, "/servers/"+number(c.billed("server")[0].ID), nil)
		}},
		"cancelled": {fault: sim.Fault{Kind: "image_build_fails"}, reason: prego.ReasonBuildCancelled, during: func(c *cell) {
			eventually(c.t, func() bool { return len(c.sim.Hosts()) == 1 }, patience, 50*time.Millisecond)
			var id string
			c.query(&id, `SELECT image_id FROM golden_images`)
			status, body := c.request(http.MethodDelete, "/v1/images/"+id, nil)
			require.Equal(c.t, http.StatusAccepted, status, "%s", body)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t, options{vars: f.vars, set: f.set, timeouts: f.boots})
			c.inject(f.fault)
			g := c.buildImage()
			if f.during != nil {
				f.during(c)
			}
			g = c.awaitImage(g.ImageId, server.ImageFailed, f.reason)
			c.awaitRunEnd(server.ImageBuildWorkflowID(g.ImageId))
			keepHistory(t, c, "image-build-"+strings.ReplaceAll(string(f.reason), "_", "-"), server.ImageBuildWorkflowID(g.ImageId))
			require.False(t, g.Current)
			require.Empty(t, c.sim.Ledger(true), "something is still billed")
			c.settled()
			var cordoned int
			c.query(&cordoned, `SELECT count(*) FROM servers WHERE cordoned_at IS NULL`)
			require.Zero(t, cordoned, "no tenant could have landed on the booted server")

			status, body := c.request(http.MethodDelete, string("/v1/images/"+g.ImageId), nil)
			require.Equal(t, http.StatusAccepted, status, "%s", body)
			c.awaitImage(g.ImageId, server.ImageDeleted, f.reason)
		})
	}
}

// TestImageIsBuiltThroughAnOutageOfTheProvider: nothing is given up because the provider
// is away for a while.
func TestImageIsBuiltThroughAnOutageOfTheProvider(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	c.awaitCatalog(func(cat api.Catalog) bool { return cat.Known })
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers/*/actions/create_image", Action: "commit_then_respond", Status: 504, Code: "timeout", Times: 1})
	c.inject(sim.Fault{Kind: "http", Method: "GET", Path: "/v1/images", Action: "respond", Status: 503, Code: "unavailable", Skip: 1, Times: 4})
	c.awaitImage(c.buildImage().ImageId, server.ImageReady, "")
	require.Len(t, c.billed("image"), 1, "the copy with the lost answer is used")
	require.Empty(t, c.billed("server"))
	c.settled()
}

func TestWorkerKilledWhileAnImageIsBuilt(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"early": {"image/builder-intended", "image/builder-created", "image/built", "image/snapshot-intended"},
		"late":  {"image/snapshot-taken", "image/builder-dropped", "image/verify", "image/published"},
	}
	for _, name := range deep.Some(t, 1, slices.Sorted(maps.Keys(cases))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "crash")
			c := newCell(t, options{vars: map[string]string{"PREGO_TEST_CRASH": file}})
			var before prego.ImageID
			for i, point := range cases[name] {
				require.NoError(t, os.WriteFile(file, []byte(point), 0o600))
				g := c.buildImage()
				<-c.procs["worker"].Done()
				require.NoError(t, os.Remove(file+".hit"), point)
				delete(c.procs, "worker")
				c.start("worker")
				c.awaitImage(g.ImageId, server.ImageReady, "")
				c.awaitRunEnd(server.ImageBuildWorkflowID(g.ImageId))
				if before != "" { // no longer the current one
					status, body := c.request(http.MethodDelete, string("/v1/images/"+before), nil)
					require.Equal(t, http.StatusAccepted, status, "%s", body)
					c.awaitImage(before, server.ImageDeleted, "")
				}
				before = g.ImageId
				require.Len(t, c.billed("image"), 1, point)
				require.Len(t, c.sim.Ledger(true), 1, "%s: not a server nor an address", point)
				require.LessOrEqual(t, c.everBilled("server"), 2*(i+1), "%s: one builder, one booted server", point)
				c.settled()
			}
		})
	}
}

// TestImagesAreReconciled: a snapshot with our labels and without a row goes after two sightings, a build that lost its
// run continues, and the current image stays.
func TestImagesAreReconciled(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: map[string]string{"PREGO_ORPHAN_AGE": "1ms"}})
	g := c.awaitImage(c.buildImage().ImageId, server.ImageReady, "")
	c.awaitRunEnd(server.ImageBuildWorkflowID(g.ImageId))
	made := c.cloud(http.MethodPost, "/servers", map[string]any{"name": "theirs", "server_type": "cx23", "image": "debian-12", "location": "fsn1", "user_data": "", "start_after_create": true})
	id := made["server"].(map[string]any)["id"].(float64)
	is := func(status string) {
		t.Helper()
		eventually(t, func() bool {
			return c.cloud(http.MethodGet, "/servers/"+number(id), nil)["server"].(map[string]any)["status"] == status
		}, patience, 50*time.Millisecond)
	}
	is("running") // its start would come after
	c.provider(http.MethodPost, "/servers/"+number(id)+"/actions/poweroff", nil)
	is("off")
	labels := map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: c.env, server.LabelImageID: "img-nobodys"}
	c.provider(http.MethodPost, "/servers/"+number(id)+"/actions/create_image", map[string]any{"type": "snapshot", "description": "stray", "labels": labels})
	labels[server.LabelImageID] = string(g.ImageId)
	c.provider(http.MethodPost, "/servers/"+number(id)+"/actions/create_image", map[string]any{"type": "snapshot", "description": "twin", "labels": labels})
	c.provider(http.MethodPost, "/servers/"+number(id)+"/actions/create_image", map[string]any{"type": "snapshot", "description": "foreign"})
	c.reconcile()
	require.Len(t, c.billed("image"), 4, "one sighting destroys nothing")
	c.reconcile()
	var left []string
	for _, e := range c.billed("image") {
		left = append(left, e.Name)
	}
	require.ElementsMatch(t, []string{server.Name(c.env, prego.ServerID(g.ImageId)), "foreign"}, left)
	require.True(t, c.image(g.ImageId).Current)

	// The row of a build whose run never started.
	_, err := c.pool.Exec(context.Background(), `
INSERT INTO golden_images (image_id, provider, region, base_image, architecture, created_by, updated_at) VALUES ('img-lost', 'hetzner', 'eu', 'debian-12', 'x86', 'alice', now() - interval '1 hour')`)
	require.NoError(t, err)
	c.reconcile()
	c.awaitImage("img-lost", server.ImageReady, "")
	require.True(t, c.image(g.ImageId).Current, "each base image has a current one")
}
