package activities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// attachedVolume is a group's volume on srv-1, whose instance runs there, in the rows, at the provider and on the host.
func attachedVolume(t *testing.T) (*reconciling, *orgCloud, *volumeHosts) {
	t.Helper()
	r := newReconciling(t)
	cloud := &orgCloud{on: map[string]string{}}
	hosts := &volumeHosts{cloud: cloud, mounted: map[string]bool{}, bytes: 10_000_000_000}
	cloud.hosts = hosts
	r.fleet.Org = &activities.OrgResources{
		Store: r.Store, Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: cloud}, Hosts: hosts, Runs: &woken{},
	}
	r.machine("srv-1", server.Active, 1, "1")
	r.cloud.has(server.ResourceServer, "1", "srv-1", "srv-1", 1)
	r.line(server.ResourceServer, "srv-1", "1", "srv-1", 1)
	r.cloud.has(server.ResourceVolume, "77", "n", "", 0)
	r.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`)
	r.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1',
		'a', 'eu', 'a')`)
	r.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes,
		cpu_request, replicas, created_by)
		VALUES ('grp-a', 'env-a', 'o1', 'eu', 'a', '{}', 1, 0, 1, 'a')`)
	r.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name,
		provider_id, status, created_by, made_bytes, grown_bytes)
		VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 'hetzner', 'n', '77', 'ready', 'a', 10000000000,
		    10000000000)`)
	_, err := r.Store.AttachVolume(t.Context(), workload.VolumeAttachment{
		AttachmentID: "vat-a", VolumeID: "vol-a",
		GroupID: "grp-a", MountPath: "/data",
	}, "a")
	require.NoError(t, err)
	_, err = r.fleet.Org.AttachGroupVolumes(t.Context(), activities.GroupVolumesInput{
		GroupID:  "grp-a",
		ServerID: "srv-1",
	})
	require.NoError(t, err)
	r.Exec(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes,
		cpu_request, spec, number, state, started_at)
		VALUES ('ins-1', 'grp-a', 'o1', 'srv-1', 1, 1, 0, '{}', 1, 'running', now())`)
	return r, cloud, hosts
}

const volumeReason = `SELECT reason || ': ' || message FROM volumes`

// TestADetachedVolumeIsAttachedAgain: it was detached at the provider, while its group runs. It is reported, and the
// group's next instance has it again.
func TestADetachedVolumeIsAttachedAgain(t *testing.T) {
	t.Parallel()
	r, cloud, hosts := attachedVolume(t)
	owned := func(serverID string) {
		cloud.on = map[string]string{}
		if serverID != "" {
			cloud.on["77"] = serverID
		}
		for i := range r.cloud.things {
			if r.cloud.things[i].ProviderID == "77" {
				r.cloud.things[i].AttachedTo = serverID
			}
		}
	}
	owned("1")
	require.Zero(t, r.reconcile().Unattached)
	require.Equal(t, ": ", r.Text(volumeReason))

	owned("")
	cloud.on["77"] = "1" // attached again meanwhile
	require.Zero(t, r.reconcile().Unattached)
	require.Equal(t, ": ", r.Text(volumeReason))

	owned("2")
	require.Equal(t, 1, r.reconcile().Unattached)
	require.Equal(t,
		"not_attached: the provider has it attached to its server 2, instead of srv-1: detach it there", r.Text(volumeReason))
	require.Equal(t, "running", r.Text(`SELECT state FROM instances`), "another server may be using it")

	owned("")
	require.Equal(t, 1, r.reconcile().Unattached)
	require.Equal(t, "not_attached: the provider has it attached to no server, instead of srv-1", r.Text(volumeReason))
	require.Equal(t, "failed: volume vol-a was detached from its server", r.Text(`SELECT state || ': ' || message
		FROM instances`))
	require.Contains(t, r.fleet.Org.Runs.(*woken).groups, prego.GroupID("grp-a"))
	require.True(t, hosts.mounted["srv-1/77"], "the mount of the former device is left")

	hosts.did = nil
	_, err := r.fleet.Org.AttachGroupVolumes(t.Context(), activities.GroupVolumesInput{
		GroupID:  "grp-a",
		ServerID: "srv-1",
	})
	require.NoError(t, err)
	require.Equal(t, []string{"volume unmount 77 on srv-1", "volume mount 77 on srv-1"}, hosts.did)
	require.Equal(t, "1", cloud.on["77"])
	require.Equal(t, ": ", r.Text(volumeReason))
}

// TestAVolumeWithoutADeviceIsAttachedOnceMore: the provider has it attached, and its server has no such device.
func TestAVolumeWithoutADeviceIsAttachedOnceMore(t *testing.T) {
	t.Parallel()
	r, cloud, hosts := attachedVolume(t)
	hosts.mounted = map[string]bool{}
	hosts.absent = 1
	in := activities.GroupVolumesInput{GroupID: "grp-a", ServerID: "srv-1"}
	_, err := r.fleet.Org.AttachGroupVolumes(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, "1", cloud.on["77"])
	require.Equal(t, ": ", r.Text(volumeReason))

	hosts.absent = 2
	_, err = r.fleet.Org.AttachGroupVolumes(t.Context(), in)
	require.ErrorContains(t, err, "is not attached to this server")
	require.Equal(t, "not_attached: volume vol-a on server srv-1: is not attached to this server", r.Text(volumeReason))

	_, err = r.fleet.Org.AttachGroupVolumes(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, ": ", r.Text(volumeReason))
}
