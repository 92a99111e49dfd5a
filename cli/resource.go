package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
)

var routeTable = Table[api.Route]{
	ID: "route_id", Columns: "route_id, hostname, listener, listen_port: port, protocol, group_id, target_port: target", Spare: "protocol, listener, target, group", More: "env_id, created_by, created_at, deleted_at",
}

func routeCommand(c *CLI) *cobra.Command {
	var in api.CreateRoute
	hostname, group := "", ""
	return c.group("route", "Manage published ports of process groups",
		Action[api.Route]{
			Use: "create ENV", Short: "Publish a port of a process group", Path: "/v1/envs/{env}/routes", Table: routeTable,
			Example: "  prego route create prod --group web --host www.example.com --port 443 --protocol https --target 8443",
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&group, "group", "", "process group that serves it")
				f.StringVar(&hostname, "host", "", "hostname; none for tcp")
				pick(f, &in.Listener, "listener", "shared_v6", "env_v4 is the env's own IPv4", []string{"shared_v6", "env_v4"})
				f.IntVar(&in.ListenPort, "port", 443, "port that callers use")
				pick(f, &in.Protocol, "protocol", "https", "https is passed through", []string{"http", "https", "tcp"})
				f.IntVar(&in.TargetPort, "target", 8080, "port of the group's containers")
			},
			Body: func(v *call) (_ any, err error) {
				in.Hostname = optional(hostname)
				in.GroupId, err = v.resolve("group", group)
				return in, err
			},
		},
		List[api.Route]{Use: "list [ENV]", Short: "List routes, of an env or of all, newest first", Path: "/v1/routes", Items: "routes", Filters: "org: org_id, host: hostname, group: group_id, protocol", Sorts: "created_at, hostname", All: true, Table: routeTable},
		Show[api.Route]{Use: "show ENV ROUTE…", Short: "Show routes", Path: "/v1/envs/{env}/routes/{route}", Table: routeTable},
		Delete("delete ENV ROUTE…", "route", "/v1/envs/{env}/routes/{route}"),
	)
}

var domainTable = Table[api.Domain]{
	ID: "domain_id", Columns: "domain_id, name, tenant_id: tenant, status, points_here: points, reason", Spare: "points, tenant", More: "message, org_id, records, checked_at, next_check_at, verified_at, missing_since, created_by, created_at, deleted_at",
}

// recordsText says which DNS records a name needs.
func recordsText(d api.Domain) string {
	out := fmt.Sprintf("domain %s: %s is %s. Make these DNS records:", d.DomainId, d.Name, d.Status)
	for _, r := range d.Records {
		out += fmt.Sprintf("\n  %-5s  %s  %s  (%s)", r.Type, r.Name, r.Value, r.Purpose)
	}
	return out
}

func domainCommand(c *CLI) *cobra.Command {
	return c.group("domain", "Manage names of tenants and routes",
		Action[api.Domain]{
			Use: "create TENANT NAME", Short: "Give a tenant a name of its own, and say which DNS records to make", Path: "/v1/tenants/{tenant}/domains", Table: domainTable,
			Example: "  prego domain create acme www.example.com",
			Body:    func(v *call) (any, error) { return api.CreateTenantDomain{Name: v.typed}, nil },
			Say:     func(_ *call, d api.Domain) string { return recordsText(d) },
		},
		Action[api.Domain]{
			Use: "claim ORG NAME", Short: "Give an org a name for its routes, and say which DNS records to make", Path: "/v1/domains", Table: domainTable,
			Body: func(v *call) (any, error) {
				return api.CreateDomain{OrgId: api.OrgID(v.args["org"]), Name: v.typed}, nil
			},
			Say: func(_ *call, d api.Domain) string { return recordsText(d) },
		},
		List[api.Domain]{Short: "List names", Path: "/v1/domains", Items: "domains", Filters: "org: org_id, tenant: tenant_id, name, status", Sorts: "created_at, name", All: true, Table: domainTable},
		Show[api.Domain]{Use: "show DOMAIN…", Short: "Show names and their DNS records", Path: "/v1/domains/{domain}", Table: domainTable},
		Action[api.Domain]{Use: "check DOMAIN…", Short: "Try again now to verify names", Path: "/v1/domains/{domain}/check", Table: domainTable},
		Delete("delete DOMAIN…", "domain", "/v1/domains/{domain}"),
	)
}

var ipv4Table = Table[api.IPv4]{ID: "allocation_id", Columns: "allocation_id, env_id, address, location, status, reason", More: "message, org_id, server_id, served, created_by, created_at, deleted_at"}

func ipv4Command(c *CLI) *cobra.Command {
	path := "/v1/envs/{env}/ipv4"
	return c.group("ipv4", "Manage IPv4 addresses of envs",
		List[api.IPv4]{Use: "list [ENV]", Short: "List IPv4 addresses, of an env or of all, newest first", Path: "/v1/ipv4-addresses", Items: "ipv4_addresses", Filters: "org: org_id, address, server: server_id, status", Sorts: "created_at", All: true, Table: ipv4Table},
		Action[api.IPv4]{Use: "enable ENV…", Short: "Give envs IPv4 addresses of their own", Path: path, Table: ipv4Table},
		Show[api.IPv4]{Use: "show ENV…", Short: "Show the IPv4 addresses of envs", Path: path, Table: ipv4Table},
		Action[api.IPv4]{Use: "disable ENV…", Short: "Release the IPv4 addresses of envs", Method: http.MethodDelete, Path: path, Destroys: "releases the address of env", Table: ipv4Table},
	)
}

var volumeTable = Table[api.Volume]{
	ID: "volume_id", Columns: "volume_id, org_id, name, size_bytes: size, location, attachment.group_id: group, status, reason", Spare: "location, org, size, group", More: "message, attachment.attachment_id: attachment, attachment.mount_path: mount, last_restorable, created_by, created_at",
	Computed: map[string]func(api.Volume) any{
		"size_bytes": func(v api.Volume) any { return diskText(v.SizeBytes) },
		"last_restorable": func(v api.Volume) any {
			return textOf(v.LastRestorable, func(r api.LastRestorable) string {
				if r.Verified {
					return r.At.UTC().Format(time.RFC3339) + ", verified"
				}
				return r.At.UTC().Format(time.RFC3339)
			})
		},
	},
}

func volumeCommand(c *CLI) *cobra.Command {
	var in api.CreateVolume
	var attach api.AttachVolume
	var grow api.GrowVolume
	var gb int64
	location, without := "", ""
	cmd := c.group("volume", "Manage volumes of orgs",
		Action[api.Volume]{
			Use: "create ORG NAME", Short: "Create a volume", Path: "/v1/volumes", Table: volumeTable, Example: "  prego volume create acme data --region eu --size 20GB",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				pick(f, &in.Region, "region", "eu", "", sets["region"])
				f.StringVar(&location, "location", "", "provider location (default: the region's first)")
				in.SizeBytes = 10e9
				f.Var(sizeFlag{&in.SizeBytes, disk, diskText}, "size", "10 GB to 10 TB; K, M, G and T are powers of 1000, KiB to TiB of 1024")
				f.Int64Var(&gb, "gb", 10, "the size in GB")
				cmd.MarkFlagsMutuallyExclusive("gb", "size")
			},
			Body: func(v *call) (any, error) {
				if v.given("gb") {
					if gb < 0 || gb > 1e9 {
						return nil, usagef("--gb must be 10 to 10000, not %d", gb)
					}
					in.SizeBytes = gb * 1e9
				}
				in.OrgId, in.Name, in.Location = api.OrgID(v.args["org"]), v.typed, optional(location)
				return in, nil
			},
		},
		List[api.Volume]{Short: "List volumes", Path: "/v1/volumes", Items: "volumes", Filters: "org: org_id, name, region, location, status", Sorts: "created_at, name, size_bytes", All: true, Table: volumeTable},
		Show[api.Volume]{Use: "show VOLUME…", Short: "Show volumes", Path: "/v1/volumes/{volume}", Table: volumeTable},
		Action[api.Volume]{
			Use: "grow VOLUME", Short: "Resize a volume to a larger size, while it is in use, too", Method: http.MethodPatch, Path: "/v1/volumes/{volume}", Table: volumeTable, Example: "  prego volume grow data --size 40GB",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.Var(sizeFlag{&grow.SizeBytes, disk, diskText}, "size", "not less than now, at most 10 TB")
				_ = cmd.MarkFlagRequired("size")
			},
			Body: func(*call) (any, error) { return grow, nil },
		},
		Action[api.Volume]{
			Use: "delete VOLUME…", Short: "Delete volumes and what is on them, after a last backup", Method: http.MethodDelete, Path: "/v1/volumes/{volume}", Destroys: "deletes volume", Table: volumeTable,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&without, "no-final-backup", "", "why it is deleted without a last backup, for the org's events")
			},
			Query: func(*call) url.Values {
				if without == "" {
					return nil
				}
				return url.Values{"no_final_backup_reason": {without}}
			},
		},
		Action[api.VolumeAttachment]{
			Use: "attach VOLUME GROUP", Short: "Attach a volume to a process group", Path: "/v1/volumes/{volume}/attachments",
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&attach.MountPath, "mount", "/data", "path in the group's containers")
			},
			Body: func(v *call) (any, error) {
				attach.GroupId = v.args["group"]
				return attach, nil
			},
			Table: Table[api.VolumeAttachment]{ID: "attachment_id"},
			Say: func(_ *call, a api.VolumeAttachment) string {
				return fmt.Sprintf("attachment %s: volume %s at %s of %s", a.AttachmentId, a.VolumeId, a.MountPath, a.GroupId)
			},
		},
		Action[struct{}]{
			Use: "detach VOLUME ATTACHMENT", Short: "Detach a volume from its process group", Method: http.MethodDelete, Path: "/v1/volumes/{volume}/attachments/{attachment}",
			Say: func(in *call, _ struct{}) string { return "detached " + in.typed },
		},
		volumeClone(),
	)
	cmd.AddCommand(volumeBackupCommand(c), volumeRestoreCommand(c), volumeDrillCommand(c))
	return cmd
}

var (
	snapshotTable = Table[api.Snapshot]{ID: "snapshot_id", Columns: "snapshot_id, created_at: at, created_by: by, server_id, status, bytes: size, message", Spare: "by, server, size", More: "tenant_id, files"}
	restoreTable  = Table[api.RestoreJob]{ID: "job_id", Columns: "job_id: restore, created_at: at, created_by: by, snapshot_id, backup_id, status, message", Spare: "by, snapshot, backup", More: "elsewhere, tenant_id, finished_at"}
)

func snapshotCommand(c *CLI) *cobra.Command {
	path := "/v1/tenants/{tenant}/snapshots"
	return c.group("snapshot", "Manage backups of tenants' sites",
		Action[api.Snapshot]{Use: "create TENANT…", Short: "Back up tenants' sites", Path: path, Table: snapshotTable},
		List[api.Snapshot]{Use: "list TENANT", Short: "List the snapshots of a tenant, newest first", Path: path, Items: "snapshots", Filters: "status", Sorts: "created_at", All: true, Table: snapshotTable},
		Show[api.Snapshot]{Use: "show TENANT SNAPSHOT…", Short: "Show snapshots", Path: path + "/{snapshot}", Table: snapshotTable},
		Delete("delete TENANT SNAPSHOT…", "snapshot", path+"/{snapshot}"),
	)
}

func backupCommand(c *CLI) *cobra.Command {
	path := "/v1/tenants/{tenant}/backups"
	table := Table[api.Backup]{
		ID: "backup_id", Columns: "backup_id, taken_at: at, kind, state, bytes: size, verified, held_at: held, message", Spare: "held, size, kind",
		More: "tenant_id, server_id, site, created_by: by, created_at, finished_at, plain_bytes, sha256, plain_sha256, object, parts, verified_at, verify_message, expires_at, held_by, hold_reason, reason",
	}
	cmd := c.group("backup", "Manage backups of tenants in object storage", backupVerbs("tenant", "backup", path, table)...)
	cmd.AddCommand(backupPolicyCommand(c), backupSpaceCommand(c))
	return cmd
}

// backupVerbs are what is done with backups of a tenant or of a volume; id is what a backup's is
// called in paths.
func backupVerbs[T any](of, id, path string, table Table[T]) []verb {
	one := strings.ToUpper(of) + " " + strings.ToUpper(id)
	at := path + "/{" + id + "}"
	return []verb{
		Action[T]{Use: "create " + strings.ToUpper(of) + "…", Short: "Back up " + of + "s to object storage", Path: path, Table: table},
		List[T]{Use: "list " + strings.ToUpper(of), Short: "List the backups of a " + of + ", newest first", Path: path, Items: "backups", Filters: "state", Sorts: "created_at", All: true, Table: table},
		Show[T]{Use: "show " + one + "…", Short: "Show backups of a " + of, Path: at, Table: table},
		holdBackup("hold "+one, at+"/hold", table),
		Action[T]{Use: "release " + one, Short: "Release a backup that is held", Method: http.MethodDelete, Path: at + "/hold", Table: table},
		Delete("delete "+one+"…", "backup", at),
	}
}

// holdBackup is the verb that sets a hold on a backup.
func holdBackup[T any](use, path string, table Table[T]) Action[T] {
	var why string
	return Action[T]{
		Use: use, Short: "Set a hold on a backup: nothing deletes it before it is released", Method: http.MethodPut, Path: path, Table: table,
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&why, "reason", "", "why, for whoever wants to release it (required)")
		},
		Body: func(*call) (any, error) { return api.HoldBackup{Reason: why}, nil },
	}
}

func drillCommand(c *CLI) *cobra.Command {
	return c.group("drill", "Restore backups to see whether they can be", drillVerbs("tenant", "/v1/tenants/{tenant}/drills", Table[api.Drill]{
		ID: "drill_id", Columns: "drill_id: drill, created_at: at, backup_id, server_id, state, tables, rows, files, message", Spare: "files, tables, server",
		More: "reason, tenant_id, created_by: by, finished_at",
	})...)
}

// drillVerbs are the verbs on drills of backups of an owner.
func drillVerbs[T any](owner, path string, table Table[T]) []verb {
	var backup string
	word := strings.ToUpper(owner)
	return []verb{
		Action[T]{
			Use: "create " + word + "…", Short: "Restore " + owner + "s' backups on other servers, compare them, and throw them away", Path: path, Table: table,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&backup, "backup", "", "backup to restore; the newest by default")
			},
			Body: func(*call) (any, error) {
				if backup == "" {
					return nil, nil //nolint:nilnil // no body
				}
				return api.CreateDrill{BackupId: &backup}, nil
			},
		},
		List[T]{Use: "list " + word, Short: "List the drills of a " + owner + "'s backups, newest first", Path: path, Items: "drills", Filters: "state", Sorts: "created_at", Table: table},
	}
}

func restoreCommand(c *CLI) *cobra.Command {
	path := "/v1/tenants/{tenant}/restores"
	var backup string
	return c.group("restore", "Restore tenants' sites from snapshots and backups",
		Action[api.RestoreJob]{
			Use: "create TENANT SNAPSHOT", Short: "Restore a tenant's site from a snapshot, or from a backup (bak-…)", Path: path, Destroys: "replaces what the tenant's site holds by snapshot", Table: restoreTable,
			Body: func(in *call) (any, error) {
				if strings.HasPrefix(in.typed, "bak-") {
					return api.CreateRestore{BackupId: &in.typed}, nil
				}
				return api.CreateRestore{SnapshotId: &in.typed}, nil
			},
		},
		Action[api.RestoreJob]{
			Use: "elsewhere TENANT…", Short: "Restore tenants whose server was lost at another place", Path: path, Table: restoreTable,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&backup, "backup", "", "backup to restore; the newest by default")
			},
			Body: func(*call) (any, error) {
				elsewhere := true
				body := api.CreateRestore{Elsewhere: &elsewhere}
				if backup != "" {
					body.BackupId = &backup
				}
				return body, nil
			},
		},
		List[api.RestoreJob]{Use: "list TENANT", Short: "List the restores of a tenant, newest first", Path: path, Items: "restores", Filters: "status", Sorts: "created_at", Table: restoreTable},
		Show[api.RestoreJob]{Use: "show TENANT RESTORE…", Short: "Show restores", Path: path + "/{restore}", Table: restoreTable},
	)
}
