package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

var tenantTable = Table[api.Tenant]{
	ID: "tenant_id", Columns: "tenant_id, slug, org_id, parent_org_id: part of, region, plan, state, site_url: site",
	More: "waiting_since, waiting_roles: waiting for, deadline_at: until, allocation.app_server_id: server, allocation.db_shard_id: shard, allocation.redis_pool_id: redis pool, " +
		"allocation.dedicated, allocation.database_name: database, admin_email: first user, mail, storage, last_restorable: last restorable, backup_due_since: backup due, loss, restore_from: restored from, muted, workflow_id, run_url: run, created_at",
	Computed: map[string]func(api.Tenant) any{
		"state": func(t api.Tenant) any {
			state := string(t.State) + reasons(t.StatusReason, t.StatusMessage)
			if t.ConvergedState != "" && t.ConvergedState != string(t.State) {
				state += " (in effect: " + t.ConvergedState + ")"
			}
			return state
		},
		"mail":    func(t api.Tenant) any { return textOf(t.Mail, mailText) },
		"storage": func(t api.Tenant) any { return textOf(t.Storage, storageText) },
		"loss": func(t api.Tenant) any {
			return textOf(t.Loss, func(l api.TenantLoss) string {
				text := "with server " + l.ServerId + " at " + l.LostAt.UTC().Format("2006-01-02 15:04 MST")
				if l.LostMinutes != nil {
					text += fmt.Sprintf(", back; %d min lost", *l.LostMinutes)
				}
				return text
			})
		},
		"last_restorable": func(t api.Tenant) any {
			return textOf(t.LastRestorable, func(r api.LastRestorable) string {
				return r.At.UTC().Format("2006-01-02 15:04 MST") + map[bool]string{true: ", verified", false: ", not verified yet"}[r.Verified]
			})
		},
	},
}

// textOf formats an optional value, "" if it is nil.
func textOf[T any](v *T, text func(T) string) string {
	if v == nil {
		return ""
	}
	return text(*v)
}

// watchTenant follows a tenant; wanted checks the outcome, nil accepts any.
func watchTenant(wanted func(in *call, t api.Tenant) bool) Watch[api.Tenant] {
	return Watch[api.Tenant]{
		Use: "watch TENANT", Short: "Follow a tenant until its operations are done", Path: "/v1/tenants/{tenant}", Again: "prego tenant watch {tenant}",
		Lines: tenantLines, Rests: tenantRests, Doing: func(t api.Tenant) string { return t.Slug + " is " + cmp.Or(deref(t.StatusReason), string(t.State)) },
		Outcome: func(in *call, t api.Tenant) error {
			if wanted != nil && !wanted(in, t) {
				return tenantFailure(t)
			}
			return nil
		},
		Done: func(_ *call, t api.Tenant) string {
			text := fmt.Sprintf("tenant %s is %s", t.TenantId, strings.ReplaceAll(string(t.State), "_", " "))
			switch t.State {
			case tenant.Active:
				text += map[bool]string{true: ": "}[t.SiteUrl != nil] + deref(t.SiteUrl)
			case tenant.GracePeriod:
				text = fmt.Sprintf("tenant %s is now in its grace period", t.TenantId)
			}
			return text
		},
	}
}

// tenantRests reports whether no operation is running, and the state's effects are in
// place.
func tenantRests(t api.Tenant) bool {
	s := t.State
	return s != tenant.Trial && s != tenant.Provisioning && t.ConvergedState == string(t.State)
}

// tenantFailure says which state a tenant has instead of the wanted one.
func tenantFailure(t api.Tenant) error {
	return fmt.Errorf("tenant %s is %s%s", t.TenantId, t.State, reasons(t.StatusReason, t.StatusMessage))
}

func tenantLines(t api.Tenant) []line {
	lines := make([]line, len(t.Timeline))
	for i, e := range t.Timeline {
		text := fmt.Sprintf("%-16s %s", t.Slug, e.Step)
		if e.FromState != e.ToState {
			text += "  " + cmp.Or(e.FromState, "new") + " → " + e.ToState
		}
		for _, s := range []*string{e.Message, e.Reason} {
			if s != nil {
				text += "  " + oneLine(*s)
			}
		}
		lines[i] = line{key: strconv.FormatInt(e.Id, 10), at: e.At, text: text + "  [" + e.Actor + "]"}
	}
	return lines
}

// decidedRows explains a tenant's placement, as names and values.
func decidedRows(d api.Decision) [][2]string {
	outcome := d.Outcome + " by " + d.Algorithm
	if d.Code != nil {
		outcome += " (" + *d.Code + ")"
	}
	rows := append([][2]string{{"decision", outcome + ", " + d.At.Format(time.RFC3339)}}, explained(d.DecisionLog)...)
	return slices.DeleteFunc(rows, func(row [2]string) bool { return row[1] == "" })
}

// explained says why a place was chosen, and how many others were rejected.
func explained(e placement.Explanation) [][2]string {
	looked := fmt.Sprintf("%d candidates", e.CandidatesEvaluated)
	if e.Score > 0 || e.ConfidenceScore > 0 { // a place was chosen
		looked += fmt.Sprintf(", score %.3f, confidence %.3f", e.Score, e.ConfidenceScore)
	}
	var counts []string
	for _, reason := range slices.Sorted(maps.Keys(e.RejectedCounts)) {
		counts = append(counts, fmt.Sprintf("%s %d", reason, e.RejectedCounts[reason]))
	}
	constraint := ""
	if c := e.Constraint; c != nil {
		constraint = c.String() + map[bool]string{true: "; an override ignored it"}[c.Ignored]
	}
	return [][2]string{{"why", e.SelectionReason}, {"looked at", looked}, {"rejected", strings.Join(counts, ", ")}, {"constraint", constraint}}
}

func mailText(m api.TenantMail) string {
	text := fmt.Sprintf("%s by %s:%d", m.Sender, m.Server, m.Port)
	if m.Login != nil {
		text += " as " + *m.Login
	}
	return text + map[bool]string{true: ", STARTTLS"}[m.Tls]
}

// storageText describes a site's usage, quota and level.
func storageText(s api.TenantStorage) string {
	gb := func(n int64) string { return fmt.Sprintf("%.2f", float64(n)/1e9) }
	text := fmt.Sprintf("%s of %s GB (%.0f %%): database %s, files %s; backups %s GB extra; %s", gb(s.UsedBytes), gb(s.QuotaBytes), s.UsedPct,
		gb(s.DatabaseBytes), gb(s.FilesBytes), gb(s.BackupsBytes), s.Level)
	if s.OverSince != nil {
		text += ", over since " + s.OverSince.Format(time.RFC3339)
	}
	text += map[bool]string{true: ", the site is read-only"}[s.ReadOnly] + "; measured " + s.MeasuredAt.Format(time.RFC3339)
	if s.Message != nil {
		text += ", the last try failed: " + oneLine(*s.Message)
	}
	return text
}

func tenantAccepted(_ *call, a api.TenantAccepted) string {
	return fmt.Sprintf("accepted: tenant %s is %s, workflow %s", a.TenantId, a.State, a.WorkflowId)
}

func tenantCommand(c *CLI) *cobra.Command {
	cmd := c.group("tenant", "Manage tenants and their sites", tenantCreate(),
		List[api.TenantSummary]{
			Short: "List tenants, newest first", Path: "/v1/tenants", Items: "tenants", All: true,
			Example: "  prego tenant list --state active,suspended --org acme",
			Sorts:   "created_at, slug", Filters: "region, plan, state, org: org_id, parent: parent_org_id, slug", Values: map[string][]string{"state": words(tenant.States())},
			Table: Table[api.TenantSummary]{
				ID: "tenant_id", Columns: "tenant_id, slug, org_id, region, plan, state, created_at: age, status_reason: reason", Spare: "age, plan, region, org, reason",
				More: "site_url: site, status_message: message, parent_org_id, converged_state, waiting_since, created_at",
			},
		},
		Show[api.Tenant]{
			Use: "show TENANT…", Short: "Show tenants with their placement, its reasons and their timelines", Path: "/v1/tenants/{tenant}", Table: tenantTable,
			After: func(in *call, t api.Tenant) {
				if t.Decision != nil {
					fmt.Fprintln(in.w)
					in.pairs(in.w, decidedRows(*t.Decision)...)
				}
				timeline(in, tenantLines(t))
			}, Watch: watchTenant(nil),
		},
		watchTenant(nil), tenantClone(), Action[api.TenantSummary]{
			Use: "unmute TENANT…", Short: "Resume mail and scheduled jobs of clones", Path: "/v1/tenants/{tenant}/unmute", Table: Table[api.TenantSummary]{ID: "tenant_id"},
			Say: func(_ *call, t api.TenantSummary) string {
				return fmt.Sprintf("tenant %s sends mail and runs its jobs", t.TenantId)
			},
		})
	for _, v := range []struct {
		action                 tenant.Action
		use, destroys, example string
	}{
		{tenant.ActionSuspend, "Take active tenants offline", "", ""},
		{tenant.ActionResume, "Bring suspended tenants back online", "", ""},
		{tenant.ActionCancel, "Cancel tenants; their grace period begins", "", "  prego tenant cancel acme-eu --reason \"moves away\" --watch"},
		{tenant.ActionReactivate, "Reactivate cancelled tenants", "", ""},
		{tenant.ActionTerminate, "Terminate tenants now; their data is kept for the retention window", "terminates tenant", ""},
		{tenant.ActionRetry, "Provision failed tenants again", "", ""},
	} {
		cmd.AddCommand(tenantChange(v.action, v.use, v.destroys, v.example).command(c))
	}
	for _, sub := range append(tenantMoves(c), tenantSiteCommands(c)...) {
		cmd.AddCommand(sub)
	}
	return cmd
}

func tenantCreate() Action[api.TenantAccepted] {
	var in tenant.CreateRequest
	return Action[api.TenantAccepted]{
		Use: "create SLUG", Short: "Create a tenant", Path: "/v1/tenants",
		Example: "  prego tenant create acme-eu --org acme --region eu --plan starter --apps erpnext --watch",
		Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
			f.StringVar((*string)(&in.OrgID), "org", "", "owning org")
			pick(f, &in.Region, "region", "", "", sets["region"])
			pick(f, &in.Plan, "plan", "", "", sets["plan"])
			f.StringVar((*string)(&in.ParentOrgID), "parent", "", "the org's parent (default: the current one)")
			f.StringVar(&in.DataResidency, "residency", "", "ISO 3166 country whose data residency rules apply")
			f.StringSliceVar(&in.Constraint.Require, "require", nil, "tag that its server must have; may be repeated")
			f.StringSliceVar(&in.Constraint.Disallow, "disallow", nil, "tag that its server must not have; may be repeated")
			f.StringVar(&in.Stack, "stack", "", "the same as --require stack:NAME")
			f.StringSliceVar(&in.Apps, "apps", nil, "apps to install, in this order")
			f.IntVar(&in.ExpectedUsers, "users", 0, "expected users; 0 takes the plan's")
			f.IntVar(&in.StorageQuotaGB, "storage-gb", 0, "storage quota in GB; 0 takes the plan's")
			f.BoolVar(&in.DedicatedRedis, "dedicated-redis", false, "give it a Redis pool of its own")
			pick(f, &in.Policy, "policy", "", "placement policy (default: the configured one)", []string{string(tenant.ModeShared), string(tenant.ModeOneTenantOneServer)})
			f.StringVar(&in.AdminEmail, "admin-email", "", "email of the site's first user, a System Manager")
			f.StringVar(&in.AdminName, "admin-name", "", "the first user's name (default: the email)")
			required(cmd, "org", "region", "plan")
		},
		Body: func(v *call) (any, error) {
			in.Slug = v.typed
			return in, nil
		},
		Table: Table[api.TenantAccepted]{ID: "tenant_id"}, Say: tenantAccepted, Watch: watchTenant(tenantIs(tenant.Active)),
	}
}

func tenantClone() Action[api.TenantAccepted] {
	var in tenant.CloneRequest
	return Action[api.TenantAccepted]{
		Use: "clone TENANT SLUG", Short: "Create a tenant with a copy of a tenant's site, from a backup; its mail and jobs are held back", Path: "/v1/tenants/{tenant}/clones",
		Example: "  prego tenant clone acme-eu acme-test --watch",
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar((*string)(&in.BackupID), "backup", "", "backup to copy; the newest by default")
			pick(f, &in.Plan, "plan", "", "plan of the copy (default: the tenant's)", sets["plan"])
		},
		Body: func(v *call) (any, error) {
			in.Slug = v.typed
			return in, nil
		},
		Table: Table[api.TenantAccepted]{ID: "tenant_id"}, Say: tenantAccepted, Watch: watchTenant(tenantIs(tenant.Active)),
	}
}

func tenantIs(state tenant.State) func(*call, api.Tenant) bool {
	return func(_ *call, t api.Tenant) bool { return t.State == state }
}

func tenantChange(action tenant.Action, short, destroys, example string) Action[api.TenantAccepted] {
	reason := ""
	wanted := func(in *call, t api.Tenant) bool {
		switch accepted := idOf(in.answer, "state"); {
		case action == tenant.ActionRetry:
			return tenantIs(tenant.Active)(in, t)
		case accepted == string(tenant.Provisioning): // cancelled: it ends as failed, as requested
			return tenantIs(tenant.Failed)(in, t) && prego.Reason(deref(t.StatusReason)) == prego.ReasonCancelled
		default:
			return string(t.State) == accepted
		}
	}
	return Action[api.TenantAccepted]{
		Use: string(action) + " TENANT…", Short: short, Example: example, Path: "/v1/tenants/{tenant}/" + string(action), Destroys: destroys,
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&reason, "reason", "", "reason for the timeline")
		},
		Body: func(*call) (any, error) {
			if reason == "" {
				return nil, nil //nolint:nilnil // no body
			}
			return api.TenantChange{Reason: &reason}, nil
		},
		Table: Table[api.TenantAccepted]{ID: "tenant_id"}, Say: tenantAccepted, Watch: watchTenant(wanted),
	}
}

// siteWait is how long to wait for a site's host, whose commands may take a minute.
const siteWait = 2 * time.Minute

// passwordOnce warns that a password is printed only once.
func passwordOnce(in *call) {
	fmt.Fprintln(in.ErrOrStderr(), "This password is not stored and will not be shown again.")
}

func tenantSiteCommands(c *CLI) []*cobra.Command {
	var name, file, login, sender string
	var none, tls bool
	var mail api.PutTenantMail
	var quota api.PutStorageQuota
	credentials := "user, password, site_url: site"
	var size int64
	return []*cobra.Command{
		Action[api.AdminPassword]{
			Use: "password TENANT", Short: "Set the Administrator's password of a tenant's site, and show it once", Path: "/v1/tenants/{tenant}/admin-password",
			Patience: siteWait, Table: Table[api.AdminPassword]{ID: "user", Columns: credentials}, After: func(in *call, _ api.AdminPassword) { passwordOnce(in) },
		}.command(c),
		c.group("user", "Manage users of tenants' sites", Action[api.TenantUser]{
			Use: "add TENANT EMAIL", Short: "Add a System Manager to a tenant's site, and show the password once", Path: "/v1/tenants/{tenant}/users", Patience: siteWait,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&name, "name", "", "the user's name (default: the email)")
				f.BoolVar(&none, "no-password", false, "set none: the user requests one from the site by mail")
			},
			Body: func(in *call) (any, error) {
				body := api.AddTenantUser{Email: in.typed, Name: optional(name)}
				if none {
					body.Password = new(api.AddTenantUserPassword("none"))
				}
				return body, nil
			},
			Table: Table[api.TenantUser]{ID: "email", Columns: "email: user, name, password, site_url: site"},
			After: func(in *call, u api.TenantUser) {
				if u.Password != nil {
					passwordOnce(in)
				}
			},
		}),
		c.group("mail", "Manage how tenants' sites send mail", Action[api.TenantMail]{
			Use: "set TENANT", Short: "Set a tenant's mail server", Method: http.MethodPut, Path: "/v1/tenants/{tenant}/mail", Patience: siteWait,
			Long:    "Set a tenant's mail server. The password of --login is read from a file or from standard input.",
			Example: "  prego tenant mail set acme-eu --server smtp.example.com --login erp --sender erp@example.com < password",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&mail.Server, "server", "", "the mail server's name")
				f.IntVar(&mail.Port, "port", 587, "its port; not 465, since Frappe 15 does not support implicit TLS here")
				f.BoolVar(&tls, "tls", true, "use STARTTLS; a login needs it")
				f.StringVar(&login, "login", "", "user to log in as (default: no login)")
				f.StringVar(&mail.Sender, "sender", "", "sender's address")
				f.StringVar(&sender, "sender-name", "", "sender's name")
				f.StringVar(&file, "password-file", "", "file that holds the password (default: standard input)")
				required(cmd, "server", "sender")
			},
			Body: func(in *call) (any, error) {
				mail.Tls, mail.Login, mail.SenderName = &tls, optional(login), optional(sender)
				if login != "" {
					secret, err := c.secret(in.InOrStdin(), file)
					if err != nil {
						return nil, err
					}
					mail.Password = &secret
				}
				return mail, nil
			},
			Say: func(_ *call, m api.TenantMail) string { return mailText(m) },
		}, Action[struct{}]{
			Use: "unset TENANT", Short: "Remove the mail settings from a tenant's site", Method: http.MethodDelete, Path: "/v1/tenants/{tenant}/mail", Patience: siteWait,
			Say: func(*call, struct{}) string { return "the site has no mail settings" },
		}),
		Action[api.TenantSummary]{
			Use: "storage-quota TENANT", Short: "Change a tenant's storage quota", Method: http.MethodPut, Path: "/v1/tenants/{tenant}/storage-quota",
			Example: "  prego tenant storage-quota acme-eu --size 50GB",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.IntVar(&quota.Gb, "gb", 0, "the quota in GB")
				f.Var(sizeFlag{&size, disk, diskText}, "size", "the quota, like 50GB; in whole GB")
				cmd.MarkFlagsOneRequired("gb", "size")
				cmd.MarkFlagsMutuallyExclusive("gb", "size")
			},
			Body: func(in *call) (any, error) {
				if in.given("size") {
					quota.Gb = int((size + 1e9 - 1) / 1e9)
				}
				return quota, nil
			},
			Table: Table[api.TenantSummary]{ID: "tenant_id"},
			Say: func(_ *call, t api.TenantSummary) string {
				return fmt.Sprintf("tenant %s has a storage quota of %d GB", t.TenantId, quota.Gb)
			},
		}.command(c),
	}
}

// optional is a flag's value, nil if it is empty.
func optional(v string) *string {
	if v == "" {
		return nil
	}
	return &v
}
