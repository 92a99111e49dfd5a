package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// TestEachChangeOfAnOrgIsAnEvent: what changes an org's usage or its limits writes one event, with the subject and the
// actor.
func TestEachChangeOfAnOrgIsAnEvent(t *testing.T) {
	t.Parallel()
	s := backupTenants(t, 1)
	ctx := impact.By(t.Context(), "ann")
	spec := specOf(16)
	larger := specOf(32)
	two := 2
	group := workload.CreateGroupRequest{Name: "web", Spec: spec, Replicas: &two}
	require.NoError(t, group.Validate())
	volume := workload.Volume{VolumeID: "vol-1", OrgID: "acme", Region: "eu", Name: "data", SizeBytes: 10e9}
	volume.Location = "fsn1"
	mount := workload.VolumeAttachment{AttachmentID: "vat-1", VolumeID: "vol-1", GroupID: "grp-1", MountPath: "/data"}
	route := workload.Route{
		RouteID: "rte-1", EnvID: "env-1", GroupID: "grp-1", Hostname: "www.example.com",
		Listener: workload.ListenerSharedV6, ListenPort: 443, Protocol: workload.RouteHTTPS, TargetPort: 80,
	}
	type change struct {
		event, subject string
		do             func() error
	}
	changes := []change{
		{"org.tier_set", "acme", func() error {
			_, err := s.PutOrg(ctx, "acme", tenant.PutOrgRequest{Tier: prego.TierPaid}, "ann")
			return err
		}},
		{"org.quota_set", "max_apps", func() error {
			_, err := s.SetQuota(ctx, "acme", quota.MaxApps, 7, "ann", "asked")
			return err
		}},
		{"app.create", "app-1", func() error {
			a := workload.App{AppID: "app-1", OrgID: "acme", Name: "shop", CreatedBy: "ann"}
			_, _, err := s.CreateApp(ctx, a, "k1")
			return err
		}},
		{"env.create", "env-1", func() error {
			e := workload.Env{EnvID: "env-1", AppID: "app-1", OrgID: "acme", Name: "e", Region: "eu", CreatedBy: "ann"}
			_, _, err := s.CreateEnv(ctx, e, "k2")
			return err
		}},
		{"group.create", "grp-1", func() error {
			_, _, err := s.CreateGroup(ctx, "grp-1", "env-1", group, "ann")
			return err
		}},
		{"group.deploy", "grp-1", func() error {
			_, err := s.DeployGroup(ctx, "grp-1", larger, nil, "ann")
			return err
		}},
		{"group.scale", "grp-1", func() error { _, err := s.ScaleGroup(ctx, "grp-1", 1, "ann"); return err }},
		{"domain.create", "dom-1", func() error {
			d := org.Domain{DomainID: "dom-1", OrgID: "acme", Name: "www.example.com", Token: "t"}
			_, err := s.ClaimDomain(ctx, d, "ann")
			return err
		}},
		{"route.create", "rte-1", func() error { _, err := s.CreateRoute(ctx, route, "ann"); return err }},
		{"ipv4.enable", "ip4-1", func() error {
			_, err := s.EnableIPv4(ctx, "env-1", "ip4-1", "test", func(prego.Region) string { return "fsn1" }, "ann")
			return err
		}},
		{"volume.create", "vol-1", func() error { _, err := s.CreateVolume(ctx, volume, "test", "ann"); return err }},
		{"volume.grow", "vol-1", func() error {
			exec(t, s, `UPDATE volumes SET status = 'ready', made_bytes = size_bytes, grown_bytes = size_bytes`)
			_, err := s.GrowVolume(ctx, "vol-1", 20e9, "ann")
			return err
		}},
		{"attachment.create", "vat-1", func() error { _, err := s.AttachVolume(ctx, mount, "ann"); return err }},
		{"snapshot.create", "snp-1", func() error {
			_, err := s.CreateSnapshot(ctx, "t-0", "snp-1", "ann")
			return err
		}},
		{"restore.create", "rst-1", func() error {
			if err := s.SnapshotFinished(ctx, "snp-1", tenant.JobSucceeded, []string{"a"}, ""); err != nil {
				return err
			}
			_, err := s.CreateRestore(ctx, "t-0", tenant.RestoreOf{SnapshotID: "snp-1"}, "rst-1", "ann")
			return err
		}},
		{"attachment.delete", "vat-1", func() error { return s.DetachVolume(ctx, "vol-1", "vat-1", "ann") }},
		{"volume.delete", "vol-1", func() error { _, err := s.DeleteVolume(ctx, "vol-1", "", "ann"); return err }},
		{"ipv4.disable", "ip4-1", func() error { _, err := s.DisableIPv4(ctx, "env-1", "ann"); return err }},
		{"route.delete", "rte-1", func() error { return s.DeleteRoute(ctx, "env-1", "rte-1", "ann") }},
		{"group.delete", "grp-1", func() error { _, err := s.DeleteGroup(ctx, "grp-1", "ann"); return err }},
		{"env.delete", "env-1", func() error {
			exec(t, s, `DELETE FROM ipv4_allocations`) // it is gone at the provider
			return s.DeleteEnv(ctx, "env-1", "ann")
		}},
		{"app.delete", "app-1", func() error { return s.DeleteApp(ctx, "app-1", "ann") }},
	}
	exec(t, s, `DELETE FROM org_events`)
	for _, c := range changes {
		require.NoError(t, c.do(), c.event)
		events, _, err := s.ListOrgEvents(ctx, prego.ListQuery{Limit: 9}.Of("org_id", "acme"))
		require.NoError(t, err)
		require.Len(t, events, 1, c.event)
		e := events[0]
		require.Equal(t, []string{c.event, c.subject, "ann"}, []string{e.Type, e.Subject, e.Actor})
		exec(t, s, `DELETE FROM org_events`)
	}
}
