package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

func (c *apiClient) tenant(ctx context.Context, id string) (api.Tenant, error) {
	var t api.Tenant
	err := c.do(ctx, http.MethodGet, "/v1/tenants/"+url.PathEscape(id), nil, nil, &t)
	return t, err
}

// watchPatience is how long watching goes on without an answer: an API that is
// replaced is back by then.
const (
	watchEvery    = 250 * time.Millisecond
	watchPatience = time.Minute
)

// watchTenant prints a tenant's timeline after an event as it grows, until the
// tenant rests.
func (c *apiClient) watchTenant(ctx context.Context, w io.Writer, id string, after int64) (api.Tenant, error) {
	return c.watchTenantFor(ctx, w, id, after, watchPatience)
}

func (c *apiClient) watchTenantFor(ctx context.Context, w io.Writer, id string, after int64, patience time.Duration) (api.Tenant, error) {
	return watchUntil(ctx, w, patience, func() (api.Tenant, error) { return c.tenant(ctx, id) }, func(t api.Tenant) bool {
		for _, e := range t.Timeline {
			if e.Id > after {
				printTenantEvent(w, t, e)
				after = e.Id
			}
		}
		return tenantRests(t)
	})
}

// watchUntil reads something again and again until seen says that it rests. It goes on
// through an outage of the API of up to patience.
func watchUntil[T any](ctx context.Context, w io.Writer, patience time.Duration, read func() (T, error), seen func(T) (rests bool)) (T, error) {
	heard, away := time.Now(), false
	for {
		v, err := read()
		switch {
		case err == nil:
			heard, away = time.Now(), false
			if seen(v) {
				return v, nil
			}
		case ctx.Err() != nil:
			return v, ctx.Err()
		case !passing(err) || time.Since(heard) > patience:
			return v, err
		case !away:
			away = true
			fmt.Fprintln(w, "the API does not answer; waiting for it:", err)
		}
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(watchEvery):
		}
	}
}

// passing tells errors that another try can end from refusals.
func passing(err error) bool {
	var refused *refusal
	if errors.As(err, &refused) {
		return refused.Status >= http.StatusInternalServerError || refused.Status == http.StatusTooManyRequests
	}
	return true
}

// tenantRests: nothing is under way, and the effects of its state are in place.
func tenantRests(t api.Tenant) bool {
	switch tenant.State(t.State) {
	case tenant.Trial, tenant.Provisioning:
		return false
	case tenant.Active, tenant.Suspended, tenant.GracePeriod, tenant.Terminated, tenant.DataPurged, tenant.Failed:
	}
	return t.ConvergedState == string(t.State)
}

func whyTenant(t api.Tenant) string {
	out := ""
	for _, s := range []*string{t.StatusReason, t.StatusMessage} {
		if s != nil {
			out += map[bool]string{true: ": ", false: ", "}[out == ""] + oneLine(*s)
		}
	}
	return out
}

// printTenantEvent shows the seconds since the request while they say something,
// and later the time.
func printTenantEvent(w io.Writer, t api.Tenant, e api.TenantEvent) {
	at := fmt.Sprintf("%8.2fs", e.At.Sub(t.CreatedAt).Seconds())
	if e.At.Sub(t.CreatedAt) > time.Hour {
		at = e.At.Format(time.RFC3339)
	}
	text := e.Step
	if e.FromState != e.ToState {
		text += "  " + cmp.Or(e.FromState, "new") + " → " + e.ToState
	}
	for _, s := range []*string{e.Message, e.Reason} {
		if s != nil {
			text += "  " + oneLine(*s)
		}
	}
	fmt.Fprintf(w, "%s  %-16s %s  [%s]\n", at, t.Slug, text, e.Actor)
}

// oneLine makes one line of what a host said.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func tenantShow(output *string) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "show TENANT_ID", Short: "Show a tenant, its place, why it is there and its timeline", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			t, err := c.tenant(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if *output == "json" {
				return printJSON(w, t)
			}
			if err := printTenant(w, t); err != nil {
				return err
			}
			fmt.Fprintln(w)
			if watch {
				_, err = c.watchTenant(cmd.Context(), w, args[0], 0)
				return err
			}
			for _, e := range t.Timeline {
				printTenantEvent(w, t, e)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "go on until the tenant rests")
	return cmd
}

func printTenant(w io.Writer, t api.Tenant) error {
	state := string(t.State) + whyTenant(t)
	if t.ConvergedState != "" && t.ConvergedState != string(t.State) {
		state += " (in effect: " + t.ConvergedState + ")"
	}
	rows := [][2]string{
		{"tenant", t.TenantId + " (" + t.Slug + ")"},
		{"org", t.OrgId},
		{"region, plan", string(t.Region) + ", " + string(t.Plan)},
		{"state", state},
		{"site", deref(t.SiteUrl)},
	}
	if t.ParentOrgId != nil {
		rows[1][1] += ", part of " + *t.ParentOrgId
	}
	if t.WaitingSince != nil {
		waiting := "since " + t.WaitingSince.Format(time.RFC3339)
		if len(t.WaitingRoles) > 0 {
			waiting += fmt.Sprintf(" for %v", t.WaitingRoles)
		}
		rows = append(rows, [2]string{"waiting", waiting})
	}
	if t.DeadlineAt != nil {
		rows = append(rows, [2]string{"until", t.DeadlineAt.Format(time.RFC3339)})
	}
	if a := t.Allocation; a != nil {
		alone := ""
		if a.Dedicated {
			alone = ", its own"
		}
		rows = append(rows, [2]string{"place", fmt.Sprintf("%s, shard %s, pool %s at %s%s", a.AppServerId, a.DbShardId, a.RedisPoolId, a.InfraProvider, alone)},
			[2]string{"database", a.DatabaseName})
	}
	if t.AdminEmail != nil {
		rows = append(rows, [2]string{"first user", *t.AdminEmail})
	}
	if t.Mail != nil {
		rows = append(rows, [2]string{"mail", mailText(*t.Mail)})
	}
	if t.Storage != nil {
		rows = append(rows, [2]string{"storage", storageText(*t.Storage)})
	}
	if d := t.Decision; d != nil {
		rows = append(rows, decisionRows(*d)...)
	}
	rows = append(rows, [2]string{"workflow", t.WorkflowId}, [2]string{"run", deref(t.RunUrl)}, [2]string{"created", t.CreatedAt.Format(time.RFC3339)})
	out := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(out, "%s\t%s\n", row[0], row[1])
		}
	}
	return out.Flush()
}

func decisionRows(d api.Decision) [][2]string {
	outcome := d.Outcome + " by " + d.Algorithm
	if d.Code != nil {
		outcome += " (" + *d.Code + ")"
	}
	return append([][2]string{{"decision", outcome + ", " + d.At.Format(time.RFC3339)}}, explanationRows(d.DecisionLog)...)
}

// explanationRows say why a place was taken, and how many others were not.
func explanationRows(e placement.Explanation) [][2]string {
	looked := fmt.Sprintf("%d candidates", e.CandidatesEvaluated)
	if e.Score > 0 || e.ConfidenceScore > 0 { // somebody was chosen
		looked += fmt.Sprintf(", score %.3f, confidence %.3f", e.Score, e.ConfidenceScore)
	}
	rows := [][2]string{{"why", e.SelectionReason}, {"looked at", looked}}
	counts := make([]string, 0, len(e.RejectedCounts))
	for _, reason := range slices.Sorted(maps.Keys(e.RejectedCounts)) {
		counts = append(counts, fmt.Sprintf("%s %d", reason, e.RejectedCounts[reason]))
	}
	if len(counts) > 0 {
		rows = append(rows, [2]string{"rejected", strings.Join(counts, ", ")})
	}
	if c := e.Constraint; c != nil {
		text := c.String()
		if c.Ignored {
			text += "; an override went against it"
		}
		rows = append(rows, [2]string{"constraint", text})
	}
	return rows
}
