package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workflows"
)

// views reads the queries that the documentation tells operators to save.
func views(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repo, "docs", "temporal.md"))
	require.NoError(t, err)
	section := regexp.MustCompile(`(?s)\n## Views\n(.*?)\n##+ `).FindSubmatch(page)
	require.NotNil(t, section)
	out := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| ([a-z ]+) \\| `(.+)` \\|$").FindAllStringSubmatch(string(section[1]), -1) {
		out[row[1]] = row[2]
	}
	return out
}

// runsOf are the workflow ids of the cell's runs that a query finds.
func (c *cell) runsOf(query string) (ids []string) {
	c.t.Helper()
	r, err := temporalClient.ListWorkflow(context.Background(), &workflowservice.ListWorkflowExecutionsRequest{
		Query: "TaskQueue = 'e2e-" + c.env + "' AND (" + query + ")", PageSize: 1000,
	})
	require.NoError(c.t, err, query)
	for _, e := range r.GetExecutions() {
		ids = append(ids, e.GetExecution().GetWorkflowId())
	}
	slices.Sort(ids)
	return ids
}

// TestViewsOfTemporal has one of each: a failed server, a waiting server, a waiting tenant, and periodic work. Each
// documented query finds its purpose, and nothing else.
func TestViewsOfTemporal(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 422, Code: "invalid_input", Times: 1})
	c.create("refused", prego.RoleRedisPool, server.Spec{})
	c.awaitFailed("refused", prego.ReasonFailedCreate)
	c.sim.SetStock("*", "*", false)
	c.create("waits", prego.RoleDBShard, server.Spec{})
	c.await("waits", "awaiting capacity", func(s api.Server) bool { return deref(s.StatusReason) == "awaiting_capacity" })
	id := c.tenant("alpha", prego.PlanStarter, nil)
	c.awaitTenant(id, "awaiting capacity", func(tn api.Tenant) bool { return deref(tn.StatusReason) == "awaiting_capacity" })
	require.NoError(t, temporalClient.ScheduleClient().GetHandle(context.Background(), tenant.SweepWorkflowID(c.env)).Trigger(context.Background(), client.ScheduleTriggerOptions{}))

	failed, waits, waiting := server.ProvisionWorkflowID(prego.ServerID(c.id("refused"))), server.ProvisionWorkflowID(prego.ServerID(c.id("waits"))), tenant.ProvisionWorkflowID(prego.TenantID(id))
	today := time.Now().UTC().Truncate(24 * time.Hour).Format(time.RFC3339)
	fill := strings.NewReplacer("TENANT", id, "SERVER", c.id("waits"), "SLUG", c.getTenant(id).Slug, "ORG", "acme", "TODAY", today)
	periodic := regexp.MustCompile(`^(reconcile|sweep-heartbeats|tenant-sweep|sweep-groups|refresh-catalog|measure-sites|certificate-sweep|names)/`)
	of := func(ids ...string) func([]string) bool {
		slices.Sort(ids)
		return func(got []string) bool { return slices.Equal(got, ids) }
	}
	has := func(ids ...string) func([]string) bool {
		return func(got []string) bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(got, id) })
		}
	}
	wants := map[string]func([]string) bool{
		"all but periodic work": func(got []string) bool {
			return has(failed, waits, waiting)(got) && !slices.ContainsFunc(got, periodic.MatchString)
		},
		"all about a tenant":     of(waiting),
		"under way for a tenant": of(), // it waits without a run
		"under way on a server":  of(waits),
		"under way for an org":   of(),
		"failed today":           of(failed),
		"servers that wait for stock": func(got []string) bool { // and those that are made for the tenant
			return has(waits)(got) && !slices.Contains(got, failed) && !slices.Contains(got, waiting)
		},
		"not done for long": of(),
		"periodic work": func(got []string) bool {
			return slices.ContainsFunc(got, func(id string) bool { return strings.Contains(id, "tenant-sweep/"+c.env+"/scheduled") }) &&
				slices.Contains(got, server.CatalogWorkflowID(c.env)) && !slices.ContainsFunc(got, func(id string) bool { return !periodic.MatchString(id) })
		},
	}
	queries := views(t)
	require.Len(t, queries, len(wants))
	for view, ok := range wants {
		require.Contains(t, queries, view)
		query := fill.Replace(queries[view])
		var got []string
		eventually(t, func() bool { got = c.runsOf(query); return ok(got) }, patience, 100*time.Millisecond, "%s: %s", view, query)
		t.Logf("%s: %v", view, got)
	}

	// No run claims to wait any more when it doesn't.
	c.sim.SetStock("*", "*", true)
	c.settledTenant(id, tenant.Active)
	c.awaitStatus("waits", server.Active)
	eventually(t, func() bool { return len(c.runsOf(queries["servers that wait for stock"])) == 0 }, patience,
		100*time.Millisecond)
	eventually(t, func() bool { // one until it waited, and one from its place on
		return len(c.runsOf("ExecutionStatus = 'Completed' AND tenant_id = '"+id+"'")) == 2
	}, patience, 100*time.Millisecond)
}

// TestSearchAttributesAreDocumented: each is a row of the table, and Temporal on Postgres
// has room for them.
func TestSearchAttributesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(repo, "docs", "temporal.md"))
	require.NoError(t, err)
	table := regexp.MustCompile(`(?s)\n## Search attributes\n(.*?)\n##+ `).FindSubmatch(page)
	require.NotNil(t, table)
	require.LessOrEqual(t, len(workflows.SearchAttributes()), 10, "keywords of a namespace")
	for _, name := range workflows.SearchAttributes() {
		require.Regexp(t, "(?m)^\\| [^|]*`"+name+"`[^|]* \\|", string(table[1]))
	}
}
