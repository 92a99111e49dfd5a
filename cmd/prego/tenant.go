package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

func newTenantCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tenant", Short: "Create, list and show tenants, and change their states"}
	output := outputFlag(cmd)
	cmd.AddCommand(tenantCreate(output), tenantList(output), tenantShow(output), tenantPassword(output), newTenantUserCommand(output), newTenantMailCommand(output), tenantQuota(output))
	for _, v := range []struct {
		action tenant.Action
		short  string
	}{
		{tenant.ActionSuspend, "Take an active tenant offline"},
		{tenant.ActionResume, "Put a suspended tenant online again"},
		{tenant.ActionCancel, "End a tenant; its grace period begins"},
		{tenant.ActionReactivate, "Take back a cancellation"},
		{tenant.ActionTerminate, "End a tenant now; its data is kept for the retention window"},
		{tenant.ActionRetry, "Provision a failed tenant again"},
	} {
		cmd.AddCommand(tenantChange(output, v.action, v.short))
	}
	return cmd
}

// outputFlag gives a command and those below it the flag --output.
func outputFlag(cmd *cobra.Command) *string {
	output := cmd.PersistentFlags().StringP("output", "o", "table", "table or json")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		if *output != "table" && *output != "json" {
			return fmt.Errorf("--output must be table or json, not %q", *output)
		}
		return nil
	}
	return output
}

func tenantCreate(output *string) *cobra.Command {
	var in tenant.CreateRequest
	var key string
	var watch bool
	cmd := &cobra.Command{
		Use: "create SLUG", Short: "Request a tenant", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			in.Slug = args[0]
			header := http.Header{}
			if key != "" {
				header.Set("Idempotency-Key", key)
			}
			var a api.TenantAccepted
			if err := c.send(cmd.Context(), http.MethodPost, "/v1/tenants", nil, header, in, &a); err != nil {
				return err
			}
			return followTenant(cmd.Context(), cmd, c, a, *output, watch, 0, is(tenant.Active))
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.OrgID, "org", "", "the customer")
	f.StringVar((*string)(&in.Region), "region", "", "sg, eu or us")
	f.StringVar((*string)(&in.Plan), "plan", "", "trial, starter, business or enterprise")
	f.StringVar(&in.ParentOrgID, "parent", "", "the org's parent; empty takes the one that is known")
	f.StringVar(&in.DataResidency, "residency", "", "ISO 3166 country whose rules on data hold")
	f.StringSliceVar(&in.Constraint.Require, "require", nil, "tag that its server must have; may be repeated")
	f.StringSliceVar(&in.Constraint.Disallow, "disallow", nil, "tag that its server must not have; may be repeated")
	f.StringVar(&in.Stack, "stack", "", "the same as --require stack:NAME")
	f.StringSliceVar(&in.Apps, "apps", nil, "apps to install, in this order")
	f.IntVar(&in.ExpectedUsers, "users", 0, "expected users; 0 is what the plan includes")
	f.IntVar(&in.StorageQuotaGB, "storage-gb", 0, "storage quota in GB; 0 is what the plan includes")
	f.BoolVar(&in.DedicatedRedis, "dedicated-redis", false, "a Redis pool of its own")
	f.StringVar((*string)(&in.Policy), "policy", "", "shared or one_tenant_one_server; empty takes the configured one")
	f.StringVar(&in.AdminEmail, "admin-email", "", "the first user of its site, a System Manager")
	f.StringVar(&in.AdminName, "admin-name", "", "the first user's name; the email when left out")
	f.StringVar(&key, "idempotency-key", "", "makes sending the same request again harmless")
	f.BoolVar(&watch, "watch", false, "show the progress until the tenant is active or failed")
	for _, required := range []string{"org", "region", "plan"} {
		_ = cmd.MarkFlagRequired(required)
	}
	return cmd
}

// is matches tenants that rest in a state.
func is(state tenant.State) func(api.Tenant) bool {
	return func(t api.Tenant) bool { return tenant.State(t.State) == state }
}

// followTenant prints an acceptance and, when asked to, the progress after an event
// until the tenant rests; wanted tells success.
func followTenant(ctx context.Context, cmd *cobra.Command, c *apiClient, a api.TenantAccepted, output string, watch bool, after int64, wanted func(api.Tenant) bool) error {
	w := cmd.OutOrStdout()
	if !watch {
		if output == "json" {
			return printJSON(w, a)
		}
		fmt.Fprintf(w, "accepted: tenant %s is %s, workflow %s\n", a.TenantId, a.State, a.WorkflowId)
		return nil
	}
	progress := w
	if output == "json" {
		progress = cmd.ErrOrStderr()
	} else {
		fmt.Fprintf(w, "accepted: tenant %s\n", a.TenantId)
	}
	t, err := c.watchTenant(ctx, progress, a.TenantId, after)
	if err != nil {
		return err
	}
	if output == "json" {
		if err := printJSON(w, t); err != nil {
			return err
		}
	}
	if !wanted(t) {
		return &exitError{code: exitOutcome, err: fmt.Errorf("tenant %s is %s%s", t.TenantId, t.State, whyTenant(t))}
	}
	if output != "json" {
		site := ""
		if t.SiteUrl != nil && is(tenant.Active)(t) { // another state's may be offline
			site = ": " + *t.SiteUrl
		}
		fmt.Fprintf(w, "tenant %s is %s%s\n", t.TenantId, t.State, site)
	}
	return nil
}

func tenantChange(output *string, action tenant.Action, short string) *cobra.Command {
	var reason string
	var watch bool
	cmd := &cobra.Command{
		Use: string(action) + " TENANT_ID", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			return changeTenant(cmd, c, args[0], action, reason, *output, watch)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the timeline")
	cmd.Flags().BoolVar(&watch, "watch", false, "show the progress until the tenant rests")
	return cmd
}

func changeTenant(cmd *cobra.Command, c *apiClient, id string, action tenant.Action, reason, output string, watch bool) error {
	var after int64
	if watch {
		t, err := c.tenant(cmd.Context(), id)
		if err != nil {
			return err
		}
		if n := len(t.Timeline); n > 0 {
			after = t.Timeline[n-1].Id
		}
	}
	var in any
	if reason != "" {
		in = api.TenantChange{Reason: &reason}
	}
	var a api.TenantAccepted
	if err := c.do(cmd.Context(), http.MethodPost, "/v1/tenants/"+url.PathEscape(id)+"/"+string(action), nil, in, &a); err != nil {
		return err
	}
	wanted := is(tenant.State(a.State))
	switch {
	case action == tenant.ActionRetry:
		wanted = is(tenant.Active)
	case is(tenant.Provisioning)(api.Tenant{State: a.State}): // cancelled: it ends as failed, and that is what was asked for
		wanted = func(t api.Tenant) bool {
			return is(tenant.Failed)(t) && prego.Reason(deref(t.StatusReason)) == prego.ReasonCancelled
		}
	}
	return followTenant(cmd.Context(), cmd, c, a, output, watch, after, wanted)
}

func tenantList(output *string) *cobra.Command {
	var region, plan, state, org string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List tenants, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, "/v1/tenants", filters(map[string]string{"region": region, "plan": plan, "state": state, "org_id": org}), limit,
				func(p api.TenantPage) ([]api.TenantSummary, *string) { return p.Tenants, p.NextCursor })
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "TENANT\tSLUG\tORG\tREGION\tPLAN\tSTATE\tAGE\tREASON\tSITE")
			for _, t := range all {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.TenantId, t.Slug, t.OrgId, t.Region, t.Plan, t.State,
					time.Since(t.CreatedAt).Round(time.Second), deref(t.StatusReason), deref(t.SiteUrl))
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	f.StringVar(&region, "region", "", "only this region")
	f.StringVar(&plan, "plan", "", "only on this plan")
	f.StringVar(&state, "state", "", "only in this state")
	f.StringVar(&org, "org", "", "only of this org")
	f.IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}
