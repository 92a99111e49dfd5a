package cli

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
)

var backupPolicyTable = Table[api.BackupPolicy]{
	ID: "owner", Columns: "owner, source, schedule, spread_seconds: spread, keep_daily: days, keep_weekly: weeks, keep_monthly: months, updated_by: by, updated_at: changed", Spare: "by, changed, spread, source",
	More: "plan, tenant_id, next, hold",
	Computed: map[string]func(api.BackupPolicy) any{
		"schedule": func(p api.BackupPolicy) any {
			if p.Schedule == "" {
				return "none"
			}
			return p.Schedule
		},
		"spread_seconds": func(p api.BackupPolicy) any { return (time.Duration(p.SpreadSeconds) * time.Second).String() },
		"next": func(p api.BackupPolicy) any {
			var at []string
			for _, t := range deref(p.Next) {
				at = append(at, t.UTC().Format("2006-01-02 15:04"))
			}
			return strings.Join(at, ", ")
		},
		"hold": func(p api.BackupPolicy) any {
			return textOf(p.Hold, func(h api.BackupHold) string {
				return fmt.Sprintf("%s, by %s since %s", h.Reason, h.HeldBy, h.HeldAt.UTC().Format("2006-01-02"))
			})
		},
	},
}

func backupPolicyCommand(c *CLI) *cobra.Command {
	path := "/v1/backup-policies/{owner}"
	var in api.PutBackupPolicy
	var spread time.Duration
	try, why := false, ""
	changes := func(v *call, p api.BackupPolicy) {
		for _, ch := range deref(p.Changes) {
			text := "back to the plan's"
			if ch.Schedule != nil {
				text = fmt.Sprintf("%q, spread over %s, keep %d days, %d weeks, %d months", *ch.Schedule, time.Duration(deref(ch.SpreadSeconds))*time.Second, deref(ch.KeepDaily), deref(ch.KeepWeekly), deref(ch.KeepMonthly))
			}
			fmt.Fprintf(v.w, "%s  %s: %s\n", ch.ChangedAt.UTC().Format(time.RFC3339), ch.By, text)
		}
	}
	return c.group("policy", "Manage when tenants are backed up, and what is kept",
		List[api.BackupPolicy]{Short: "List the policies of plans, and of tenants with their own", Path: "/v1/backup-policies", Items: "backup_policies", Filters: "plan", Sorts: "updated_at", Table: backupPolicyTable},
		Show[api.BackupPolicy]{Use: "get OWNER…", Short: "Show the policies of plans or tenants, their next turns and changes", Path: path, Table: backupPolicyTable, After: changes},
		Action[api.BackupPolicy]{
			Use: "set OWNER", Short: "Set when a plan's tenants or a tenant are backed up, and what is kept", Method: http.MethodPut, Path: path, Table: backupPolicyTable,
			Example: "  prego backup policy set t-k3jq5x2m7abc --schedule \"0 1,13 * * *\" --days 14 --weeks 8 --months 12\n  prego backup policy set starter --schedule \"0 0 * * *\" --days 7 --weeks 4 --dry-run",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&in.Schedule, "schedule", "", "cron expression in UTC; empty for no backups by schedule (required)")
				f.DurationVar(&spread, "spread", 6*time.Hour, "over how long the backups of one moment are spread")
				f.IntVar(&in.KeepDaily, "days", 0, "keep the newest backup of so many days")
				f.IntVar(&in.KeepWeekly, "weeks", 0, "keep the newest backup of so many weeks")
				f.IntVar(&in.KeepMonthly, "months", 0, "keep the newest backup of so many months")
				f.BoolVar(&try, "dry-run", false, "check it and show the next turns, without writing anything")
				required(cmd, "schedule")
			},
			Body: func(*call) (any, error) {
				seconds := int(spread.Seconds())
				in.SpreadSeconds = &seconds
				return in, nil
			},
			Query: func(*call) url.Values {
				if try {
					return url.Values{"dry_run": {"true"}}
				}
				return nil
			},
		},
		Action[api.BackupPolicy]{Use: "delete OWNER", Short: "Return a tenant to the policy of its plan", Method: http.MethodDelete, Path: path, Destroys: "deletes the policy of tenant", Table: backupPolicyTable},
		Action[api.BackupPolicy]{
			Use: "hold OWNER", Short: "Set a hold on all backups of a tenant or a volume: nothing deletes them before they are released", Method: http.MethodPut, Path: path + "/hold", Table: backupPolicyTable,
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&why, "reason", "", "why, for whoever wants to release them (required)")
				required(cmd, "reason")
			},
			Body: func(*call) (any, error) { return api.HoldBackup{Reason: why}, nil },
		},
		Action[api.BackupPolicy]{Use: "release OWNER", Short: "Release the backups of a tenant that is held", Method: http.MethodDelete, Path: path + "/hold", Table: backupPolicyTable},
	)
}

var backupSpaceTable = Table[api.BackupSpace]{
	ID: "org_id", Columns: "org_id, used_bytes: used, limit_bytes: limit, source, over",
	Computed: map[string]func(api.BackupSpace) any{
		"used_bytes":  func(s api.BackupSpace) any { return diskText(s.UsedBytes) },
		"limit_bytes": func(s api.BackupSpace) any { return diskText(s.LimitBytes) },
	},
}

func backupSpaceCommand(c *CLI) *cobra.Command {
	path := "/v1/orgs/{org}/backup-space"
	var limit int64
	var why string
	return c.group("space", "Manage how much the backups of orgs may occupy",
		Show[api.BackupSpace]{
			Use: "show ORG…", Short: "Show what the backups of orgs occupy, and which tenants have most", Path: path, Table: backupSpaceTable,
			After: func(in *call, s api.BackupSpace) {
				for _, t := range s.Largest {
					in.pairs(in.w, [2]string{cmp.Or(deref(t.TenantId), deref(t.VolumeId)), fmt.Sprintf("%s in %d backups", diskText(t.Bytes), t.Backups)})
				}
			},
		},
		Action[api.BackupSpace]{
			Use: "set ORG", Short: "Set an org's own limit", Method: http.MethodPut, Path: path, Table: backupSpaceTable, Example: "  prego backup space set acme --limit 700GB --reason \"contract 4711\"",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.Var(sizeFlag{&limit, disk, diskText}, "limit", "in units of disks, like 700GB or 2T")
				f.StringVar(&why, "reason", "", "reason for the org's events")
				required(cmd, "limit", "reason")
			},
			Body: func(*call) (any, error) { return api.SetBackupLimit{LimitBytes: limit, Reason: why}, nil },
		},
		Action[api.BackupSpace]{Use: "unset ORG", Short: "Return an org to the limit that follows from its quota", Method: http.MethodDelete, Path: path, Table: backupSpaceTable},
	)
}
