package activities_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// orgCloud is a provider with servers and volumes; a volume is on one server.
type orgCloud struct {
	activities.OrgInfra
	on   map[string]string // server by volume
	fail error             // of the next attach, after its effect
	// hosts may have volumes mounted; only pulled ones are detached nevertheless.
	hosts  *volumeHosts
	pulled bool
	gb     int // of the volume that was resized
}

func (c *orgCloud) AttachVolume(_ context.Context, volume prego.VolumeID, serverID prego.ServerID) error {
	if at := c.on[string(volume)]; at != "" && prego.ServerID(at) != serverID {
		return &server.InfraError{Class: server.InfraRetry, Code: "volume_already_attached"}
	}
	c.on[string(volume)] = string(serverID)
	err := c.fail
	c.fail = nil
	return err
}

func (c *orgCloud) VolumeOn(_ context.Context, volume prego.VolumeID) (string, error) {
	return c.on[string(volume)], nil
}

func (c *orgCloud) DetachVolume(_ context.Context, volume prego.VolumeID) error {
	if c.hosts != nil && c.hosts.mounted["srv-"+c.on[string(volume)]+"/"+string(volume)] && !c.pulled {
		return errors.New("it is still mounted")
	}
	delete(c.on, string(volume))
	return nil
}

// deletingCloud also deletes.
type deletingCloud struct{ *orgCloud }

func (c deletingCloud) DeleteResource(context.Context, server.ResourceKind, prego.ServerID) error {
	return c.fail
}

// volumeHosts are hosts that mount attached volumes, and refuse to unmount a volume that a
// container uses.
type volumeHosts struct {
	cloud   *orgCloud
	mounted map[string]bool // server and volume
	busy    bool
	did     []string
	fail    error
	bytes   int64 // of file systems
	absent  int   // how many mounts find no device
}

func (*volumeHosts) BenchAll(context.Context, []server.BenchCommand) (int, error) { panic("not used") }

func (h *volumeHosts) Bench(_ context.Context, c server.BenchCommand) (string, error) {
	h.did = append(h.did, c.Kind+" "+strings.Join(c.Args, " ")+" on "+string(c.ServerID))
	if h.fail != nil {
		return "", h.fail
	}
	key := string(c.ServerID) + "/" + c.Args[1]
	failed := func(why string) error {
		return &server.CommandError{Kind: c.Kind, ExitCode: 1, Stderr: why, Permanent: true, Code: server.CommandFailed}
	}
	switch {
	case c.Kind != "volume":
		return "", failed("no volume")
	case c.Args[0] == "unmount" && h.mounted[key] && h.busy:
		return "", failed("is in use")
	case c.Args[0] == "unmount":
		delete(h.mounted, key)
		return "", nil
	case h.cloud.on[c.Args[1]] != strings.TrimPrefix(string(c.ServerID), "srv-"):
		return "", failed("is not attached to this server")
	}
	if h.absent--; h.absent >= 0 {
		return "", failed("is not attached to this server")
	}
	h.mounted[key] = true
	return `{"path": "/mnt/HC_Volume_` + c.Args[1] + `/prego", "size_bytes": ` + fmt.Sprint(h.bytes) + `}`, nil
}

// TestVolumesFollowTheirGroup: to its server, to another one, and from it; each step
// may be repeated, and the row always knows where a volume may be.
func TestVolumesFollowTheirGroup(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	cloud := &orgCloud{on: map[string]string{}}
	a := &activities.OrgResources{Store: p.Store, Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: cloud}}
	hosts := &volumeHosts{cloud: cloud, mounted: map[string]bool{}}
	a.Hosts = hosts
	cloud.hosts = hosts
	for i, id := range []string{"srv-1", "srv-2"} {
		p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, provider_server_id)
			VALUES ($1, '\x00', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'a', $2)`, id, []string{"1", "2"}[i])
	}
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'a')`)
	p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by) VALUES ('grp-a', 'env-a', 'o1', 'eu', 'a', '{}', 1, 0, 1, 'a')`)
	p.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, provider_id, status, created_by)
		VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 'hetzner', 'n', '77', 'pending', 'a')`)
	ctx := context.Background()
	at, err := p.Store.AttachVolume(ctx, workload.VolumeAttachment{AttachmentID: "vat-a", VolumeID: "vol-a", GroupID: "grp-a", MountPath: "/data"}, "a")
	require.NoError(t, err)

	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(a)
	attach := func(server string) ([]activities.GroupMount, error) {
		v, err := env.ExecuteActivity(a.AttachGroupVolumes, activities.GroupVolumesInput{GroupID: "grp-a", ServerID: prego.ServerID(server)})
		var out []activities.GroupMount
		if err == nil {
			err = v.Get(&out)
		}
		return out, err
	}
	recorded := func() (server string) {
		require.NoError(t, p.Pool.QueryRow(ctx, `SELECT COALESCE(server_id, '') FROM volume_attachments WHERE attachment_id = $1`, at.AttachmentID).Scan(&server))
		return server
	}
	_, err = attach("srv-1")
	require.ErrorContains(t, err, "not ready")
	_, err = attach("srv-9")
	require.ErrorContains(t, err, `there is no server "srv-9"`)
	p.Exec(`UPDATE volumes SET status = 'ready'`)
	cloud.fail = &server.InfraError{Class: server.InfraAmbiguous, Code: "timeout", Message: "no answer"}
	_, err = attach("srv-1")
	require.ErrorContains(t, err, "provider: no answer (timeout)")
	require.Equal(t, "srv-1", recorded(), "it may be there")
	for range 2 {
		mounts, err := attach("srv-1")
		require.NoError(t, err)
		require.Equal(t, []activities.GroupMount{{VolumeID: "vol-a", HostPath: "/mnt/HC_Volume_77/prego", MountPath: "/data"}}, mounts)
	}
	require.Equal(t, map[string]bool{"srv-1/77": true}, hosts.mounted)
	hosts.busy = true
	_, err = attach("srv-2")
	require.ErrorContains(t, err, "is in use", "a container on the first server still writes to it")
	require.Equal(t, []string{"1", "srv-1"}, []string{cloud.on["77"], recorded()})
	hosts.busy = false
	_, err = attach("srv-2")
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"srv-2/77": true}, hosts.mounted)
	require.Equal(t, []string{"2", "srv-2"}, []string{cloud.on["77"], recorded()})
	for range 2 {
		_, err = env.ExecuteActivity(a.DetachGroupVolumes, activities.GroupVolumesInput{GroupID: "grp-a"})
		require.NoError(t, err)
	}
	require.Empty(t, cloud.on)
	require.Empty(t, recorded())

	// Taken from the group while it is on a server: the volume's own run takes it off.
	_, err = attach("srv-1")
	require.NoError(t, err)
	require.NoError(t, p.Store.DetachVolume(ctx, "vol-a", "vat-a", "a"))
	work, err := p.Store.OrgWork(ctx, -time.Second)
	require.NoError(t, err)
	require.Contains(t, work.Volumes, "vol-a")
	v, err := env.ExecuteActivity(a.PlanOrgResource, activities.OrgResourceRef{Kind: server.ResourceVolume, ID: "vol-a"})
	require.NoError(t, err)
	var plan activities.OrgResourcePlan
	require.NoError(t, v.Get(&plan))
	require.False(t, plan.Settled())
	for range 2 {
		_, err = env.ExecuteActivity(a.DetachLeftVolume, prego.VolumeID("vol-a"))
		require.NoError(t, err)
	}
	require.Empty(t, cloud.on)
	require.Empty(t, recorded())
	work, err = p.Store.OrgWork(ctx, -time.Second)
	require.NoError(t, err)
	require.Empty(t, work.Volumes)
}

func (c *orgCloud) ResizeVolume(_ context.Context, _ prego.VolumeID, gb int) error {
	c.gb = max(c.gb, gb)
	err := c.fail
	c.fail = nil
	return err
}

// TestAVolumeGrows: its growth counts immediately, then the provider and the mounted file system
// follow; an unmounted volume waits for its next mount.
func TestAVolumeGrows(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	ctx := t.Context()
	cloud := &orgCloud{on: map[string]string{}}
	hosts := &volumeHosts{cloud: cloud, mounted: map[string]bool{}}
	a := &activities.OrgResources{Store: p.Store, Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: cloud}, Hosts: hosts}
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, provider_server_id)
		VALUES ('srv-1', '\x00', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'a', '1')`)
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'a')`)
	p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by) VALUES ('grp-a', 'env-a', 'o1', 'eu', 'a', '{}', 1, 0, 1, 'a')`)
	p.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, provider_id, status, created_by, made_bytes, grown_bytes)
		VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 'hetzner', 'n', '77', 'ready', 'a', 10000000000, 10000000000)`)
	ref := activities.OrgResourceRef{Kind: server.ResourceVolume, ID: "vol-a"}
	grows := func() bool {
		plan, err := a.PlanOrgResource(ctx, ref)
		require.NoError(t, err)
		work, err := p.Store.OrgWork(ctx, -time.Second)
		require.NoError(t, err)
		require.Equal(t, plan.Grow, len(work.Volumes) > 0, "the sweep and the plan agree")
		return plan.Grow
	}
	require.False(t, grows())
	_, err := p.Store.GrowVolume(ctx, "vol-a", 9_999_999_999, "a")
	require.ErrorContains(t, err, "must not be less")
	_, err = p.Store.GrowVolume(ctx, "vol-a", 11_000_000_000_000, "a")
	require.ErrorContains(t, err, "above 10 TB")
	_, err = p.Store.GrowVolume(ctx, "vol-a", 10_000_000_000, "a")
	require.NoError(t, err)
	require.False(t, grows(), "it is so large already")
	v, err := p.Store.GrowVolume(ctx, "vol-a", 20_500_000_000, "a")
	require.NoError(t, err)
	require.EqualValues(t, 20_500_000_000, v.SizeBytes)
	require.True(t, grows())
	cloud.fail = &server.InfraError{Class: server.InfraAmbiguous, Code: "timeout", Message: "no answer"}
	require.ErrorContains(t, a.GrowVolume(ctx, "vol-a"), "no answer")
	require.True(t, grows())
	require.NoError(t, a.GrowVolume(ctx, "vol-a"))
	require.Equal(t, 21, cloud.gb, "whole GB, rounded up")
	require.False(t, grows(), "it is on no server")
	require.Empty(t, hosts.did)

	_, err = p.Store.AttachVolume(ctx, workload.VolumeAttachment{AttachmentID: "vat-a", VolumeID: "vol-a", GroupID: "grp-a", MountPath: "/data"}, "a")
	require.NoError(t, err)
	hosts.bytes = 20_300_000_000
	_, err = a.AttachGroupVolumes(ctx, activities.GroupVolumesInput{GroupID: "grp-a", ServerID: "srv-1"})
	require.NoError(t, err)
	require.False(t, grows(), "mounting has grown the file system")

	_, err = p.Store.GrowVolume(ctx, "vol-a", 40_000_000_000, "a")
	require.NoError(t, err)
	require.ErrorContains(t, a.GrowVolume(ctx, "vol-a"), "does not follow yet")
	require.True(t, grows())
	hosts.bytes = 39_500_000_000
	require.NoError(t, a.GrowVolume(ctx, "vol-a"))
	require.False(t, grows())
	require.Contains(t, hosts.did, "volume grow 77 on srv-1")
}

// TestALostServerLosesItsVolume: detaching fences off a server that is given up and silent; an
// active silent server keeps its volume.
func TestALostServerLosesItsVolume(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	cloud := &orgCloud{on: map[string]string{}}
	hosts := &volumeHosts{cloud: cloud, mounted: map[string]bool{}}
	cloud.hosts = hosts
	a := &activities.OrgResources{Store: p.Store, Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: cloud}, Hosts: hosts}
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, provider_server_id)
		VALUES ('srv-1', '\x00', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'a', '1')`)
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'a')`)
	p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by) VALUES ('grp-a', 'env-a', 'o1', 'eu', 'a', '{}', 1, 0, 1, 'a')`)
	p.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, provider_id, status, created_by)
		VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 'hetzner', 'n', '77', 'ready', 'a')`)
	ctx := t.Context()
	_, err := p.Store.AttachVolume(ctx, workload.VolumeAttachment{AttachmentID: "vat-a", VolumeID: "vol-a", GroupID: "grp-a", MountPath: "/data"}, "a")
	require.NoError(t, err)
	in := activities.GroupVolumesInput{GroupID: "grp-a", ServerID: "srv-1"}
	_, err = a.AttachGroupVolumes(ctx, in)
	require.NoError(t, err)

	require.NoError(t, a.DetachIdleVolumes(ctx, "grp-a"))
	require.Equal(t, "1", cloud.on["77"], "it is to run one instance")
	p.Exec(`UPDATE process_groups SET replicas = 0`)

	hosts.fail = &server.CommandError{Kind: "volume", Code: server.CommandUnreachable, Message: "no answer"}
	require.ErrorContains(t, a.DetachIdleVolumes(ctx, "grp-a"), "no answer")
	require.Equal(t, "1", cloud.on["77"])
	p.Exec(`UPDATE servers SET status = 'failed'`)
	cloud.pulled = true
	require.NoError(t, a.DetachIdleVolumes(ctx, "grp-a"))
	require.Empty(t, cloud.on)
}

// TestWhatIsKeptIsNotErased: neither a volume nor a backup, whichever run comes, as long as its deletion can be undone.
func TestWhatIsKeptIsNotErased(t *testing.T) {
	t.Parallel()
	p, ctx := newPlacing(t, 4), t.Context()
	a := &activities.OrgResources{Store: p.Store, Infra: map[prego.InfraProviderID]activities.OrgInfra{}}
	ref := activities.OrgResourceRef{Kind: server.ResourceVolume, ID: "vol-a"}
	p.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, provider,
			provider_name, provider_id, status, kept_until, created_by)
		VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 10000000000, 'hetzner', 'n', '77', 'releasing',
			now() + interval '1 hour', 'a')`)
	plan, err := a.PlanOrgResource(ctx, ref)
	require.NoError(t, err)
	require.InDelta(t, time.Hour.Seconds(), plan.Kept.Seconds(), 10)
	require.False(t, plan.Settled())
	require.NoError(t, a.ReleaseOrgResource(ctx, ref))
	p.Exec(`UPDATE volumes SET kept_until = now()`)
	plan, err = a.PlanOrgResource(ctx, ref)
	require.NoError(t, err)
	require.Zero(t, plan.Kept)
	require.ErrorContains(t, a.ReleaseOrgResource(ctx, ref), "no adapter", "now the provider is asked")

	p.Server("app-0", prego.RoleApp, "")
	p.Exec(`INSERT INTO backups (backup_id, org_id, volume_id, server_id, site, kind, created_by, state)
		VALUES ('bak-a', 'o1', 'vol-a', 'app-0', '', 'manual', 'test', 'deleting')`)
	s3 := s3test.Start(t)
	bucket, err := objects.New(objects.Config{
		Endpoint: s3.Endpoint, Bucket: s3.Bucket, Region: s3.Region, AccessKey: s3.AccessKey, SecretKey: s3.SecretKey,
		PathStyle: true, MayDelete: p.Store.MayDeleteObject,
	})
	require.NoError(t, err)
	b := &activities.Backups{Store: p.Store, Objects: bucket}
	for want, until := range map[string]string{"deleting": "now() + interval '1 hour'", "deleted": "now()"} {
		p.Exec(`UPDATE backups SET state = 'deleting', deleted_at = NULL, kept_until = ` + until)
		require.NoError(t, b.EraseBackup(ctx, "bak-a"))
		require.Equal(t, 1, p.Number(`SELECT count(*) FROM backups WHERE state = '`+want+`'`), want)
	}
}

// TestRefusalsOfOrgsResourcesAreOnTheirRows: what the provider refuses permanently is on the volume or address and in
// status with its first refusal, and no longer once the provider accepts it.
func TestRefusalsOfOrgsResourcesAreOnTheirRows(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	ctx := t.Context()
	cloud := &orgCloud{on: map[string]string{}}
	hosts := &volumeHosts{cloud: cloud, mounted: map[string]bool{}}
	a := &activities.OrgResources{
		Store: p.Store, Hosts: hosts, Log: zap.NewNop(),
		Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: deletingCloud{cloud}},
	}
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by)
		VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'a')`)
	p.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name,
		provider_id, status, created_by, made_bytes)
		VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 20000000000, 'hetzner', 'n', '77', 'ready', 'a', 10000000000)`)
	p.Exec(`INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, name, location, provider_id,
		address, status, created_by)
		VALUES ('ip4-a', 'o1', 'env-a', 'hetzner', 'n', 'fsn1', '78', '192.0.2.7', 'releasing', 'a')`)
	row := func(table string) (reason, message string) {
		require.NoError(t, p.Pool.QueryRow(ctx, `SELECT reason, message FROM `+table).Scan(&reason, &message))
		return reason, message
	}
	status := func() (out []string) {
		found, _, err := p.Store.Attention(ctx, attention.Limits{})
		require.NoError(t, err)
		for _, i := range found {
			if i.Kind == attention.VolumeFailed || i.Kind == attention.AddressFailed {
				out = append(out, string(i.Kind)+": "+i.Message)
			}
		}
		return out
	}
	refuse := func(class server.InfraClass) error {
		cloud.fail = &server.InfraError{Class: class, Code: "invalid_input", Message: "too large"}
		return cloud.fail
	}
	require.ErrorContains(t, errors.Join(refuse(server.InfraRetry), a.GrowVolume(ctx, "vol-a")), "too large")
	reason, _ := row("volumes")
	require.Empty(t, reason, "it passes by itself")

	for _, class := range []server.InfraClass{server.InfraPermanent, server.InfraQuota} {
		refused := refuse(class)
		require.Error(t, a.GrowVolume(ctx, "vol-a"))
		reason, message := row("volumes")
		require.Equal(t, "change_refused", reason)
		require.Equal(t, refused.Error(), message)
		require.Equal(t, []string{"volume_failed: " + refused.Error()}, status())
	}
	require.NoError(t, a.GrowVolume(ctx, "vol-a"))
	reason, message := row("volumes")
	require.Empty(t, reason+message)
	require.Empty(t, status())

	p.Exec(`UPDATE volumes SET status = 'releasing'`)
	for _, r := range []struct {
		table string
		ref   activities.OrgResourceRef
	}{
		{"volumes", activities.OrgResourceRef{Kind: server.ResourceVolume, ID: "vol-a"}},
		{"ipv4_allocations", activities.OrgResourceRef{Kind: server.ResourceFloatingIP, ID: "ip4-a"}},
	} {
		refused := refuse(server.InfraPermanent)
		require.Error(t, a.ReleaseOrgResource(ctx, r.ref))
		reason, message := row(r.table)
		require.Equal(t, "change_refused", reason, r.table)
		require.Equal(t, refused.Error(), message)
	}
	require.Len(t, status(), 2)
}
