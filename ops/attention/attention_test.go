package attention_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/attention"
)

var at = time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)

func TestTheMostUrgentComesFirst(t *testing.T) {
	t.Parallel()
	items := attention.List([]attention.Finding{
		{Kind: attention.OrgNearQuota, Subject: "org", ID: "acme", Reason: "max_apps", Since: at},
		{Kind: attention.TenantFailed, Subject: "tenant", ID: "t-2", Reason: "failed_site", Since: at.Add(time.Minute)},
		{Kind: attention.TenantFailed, Subject: "tenant", ID: "t-3", Reason: "failed_site", Since: at},
		{Kind: attention.TenantFailed, Subject: "tenant", ID: "t-1", Reason: "failed_site", Since: at},
		{Kind: attention.ServerFailed, Subject: "server", ID: "app-1", Reason: "failed_boot", Since: at},
		{
			Kind: attention.ServerFailed, Subject: "server", ID: "app-2", Reason: "heartbeat_lost", Since: at,
			Affected: attention.Affected{TenantCount: 1},
		},
		{Kind: attention.ReconcileBreaker, Subject: "installation", ID: "prego", Reason: "breaker_hit", Since: at.Add(time.Hour)},
		{Kind: "no_such_kind", ID: "x"},
	})
	var ids []string
	for _, i := range items {
		ids = append(ids, string(i.Severity)+" "+i.ID)
	}
	require.Equal(t, []string{
		"critical reconcile_breaker/prego", "critical server_failed/app-2", "warning server_failed/app-1",
		"warning tenant_failed/t-1", "warning tenant_failed/t-3", "warning tenant_failed/t-2", "info org_near_quota/acme/max_apps",
	}, ids)
	require.Equal(t, map[attention.Severity]int{attention.Critical: 2, attention.Warning: 4, attention.Info: 1}, attention.Counts(items))
	require.Len(t, attention.Only(items, nil, nil, 3), 3)
	require.Len(t, attention.Only(items, []attention.Severity{attention.Critical, attention.Info}, nil, 100), 3)
	require.Len(t, attention.Only(items, []attention.Severity{attention.Critical}, []attention.Kind{attention.ServerFailed}, 100), 1)
}

func TestAnItemSaysWhatToDo(t *testing.T) {
	t.Parallel()
	i := attention.List([]attention.Finding{{Kind: attention.ServerFailed, Subject: "server", ID: "app-1", Reason: "heartbeat_lost", Message: "  a\n\tb " + strings.Repeat("é", 300), Since: at, Count: 1}})[0]
	require.Equal(t, "app-1", i.Subject.Name)
	require.Contains(t, i.Todo, "A reboot restarts the host")
	require.True(t, strings.HasPrefix(i.Message, "a b éé") && strings.HasSuffix(i.Message, "é…"), i.Message)
	require.Less(t, len(i.Message), 410)
	i = attention.List([]attention.Finding{{
		Kind: attention.ServerFailed, Subject: "server", ID: "app-1", Reason: "failed_boot", Since: at, Count: 1, Empty: true,
	}})[0]
	require.Equal(t, attention.Action{
		Label: "Provision it again", Method: "POST", Path: "/v1/servers/app-1/retry", CLI: "prego server retry app-1", Destroys: true,
	}, i.Actions[2])
	i = attention.List([]attention.Finding{{
		Kind: attention.ServerFailed, Subject: "server", ID: "app-1", Reason: "heartbeat_lost", Since: at, Count: 1,
		Dead: true, Losses: "shop 12 min",
	}})[0]
	require.Contains(t, i.Todo, "is lost: shop 12 min.")
	require.Equal(t, "prego server lose app-1", i.Actions[len(i.Actions)-1].CLI)

	i = attention.List([]attention.Finding{{Kind: attention.TenantFailed, Subject: "tenant", ID: "t-1", Name: "shop", OrgID: "acme", Reason: "failed_site", Message: "boom", Since: at, By: "region", ByID: "eu", Count: 7}})[0]
	require.Equal(t, "tenant_failed/eu/failed_site", i.ID)
	require.Equal(t, attention.Subject{Kind: "region", ID: "eu", Name: "eu"}, i.Subject)
	require.Equal(t, "7 tenants failed; the oldest is shop: boom", i.Message)
	require.Empty(t, i.OrgID, "it is of several orgs")
	require.Equal(t, "prego tenant list --region eu --state failed", i.Actions[0].CLI)

	i = attention.List([]attention.Finding{{Kind: attention.TenantFailed, Subject: "tenant", ID: "t-1", By: "region", ByID: "eu", Since: at, Count: attention.Many}})[0]
	require.Equal(t, "tenant_failed/t-1", i.ID, "a few are reported one by one")
	require.Equal(t, 1, i.Count)
	require.Equal(t, "it failed", i.Message, "no reason is known")

	i = attention.List([]attention.Finding{{Kind: attention.OperationStuck, Subject: "fleet", ID: "a/b c", Reason: "running", Since: at}})[0]
	require.Equal(t, "/v1/fleets/a%2Fb%20c/actions", i.Actions[0].Path)
}

// TestItemsSummarizeWhoIsAffected by name, apart from the message.
func TestItemsSummarizeWhoIsAffected(t *testing.T) {
	t.Parallel()
	named := func(names ...string) (out []attention.Customer) {
		for _, n := range names {
			out = append(out, attention.Customer{ID: "x-" + n, Name: n, OrgID: "me"})
		}
		return out
	}
	me := []prego.OrgID{"me"}
	for want, a := range map[string]attention.Affected{
		"":                      {},
		"1 tenant: shop":        {TenantCount: 1, Tenants: named("shop"), OrgCount: 1, Orgs: me},
		"2 tenants: a, b":       {TenantCount: 2, Tenants: named("a", "b"), OrgCount: 1, Orgs: me},
		"1 instance; 1 org: me": {InstanceCount: 1, Instances: named("web"), OrgCount: 1, Orgs: me},
		"1 org: me":             {OrgCount: 1, Orgs: me},
		"9 tenants: a, b, c and 6 more; 40 instances; 4 orgs: x, y, z and 1 more": {
			TenantCount: 9, Tenants: named("a", "b", "c", "d"), InstanceCount: 40, OrgCount: 4,
			Orgs: []prego.OrgID{"x", "y", "z", "zz"},
		},
	} {
		f := attention.Finding{Kind: attention.AgentSilent, Subject: "server", ID: "app-1", Affected: a}
		i := attention.List([]attention.Finding{f})[0]
		require.Equal(t, "its agent is silent", i.Message)
		require.Equal(t, want == "", i.Affected == nil, want)
		if i.Affected != nil {
			require.Equal(t, want, i.Affected.Summary)
		}
	}
}

// TestEveryKindIsWhole: each kind states the problem, the remedy, and a link to an existing
// page of the documentation.
func TestEveryKindIsWhole(t *testing.T) {
	t.Parallel()
	about := attention.Subjects()
	for _, kind := range attention.Kinds() {
		require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, string(kind))
		require.NotEmpty(t, about[kind], kind)
		for _, subject := range about[kind] {
			for _, count := range []int{1, attention.Many + 1} {
				if one := []attention.Kind{attention.Recovering, attention.BreakGlass, attention.DeletionsFrozen, attention.ReconcileBreaker, attention.SweepFrozen}; count > 1 && slices.Contains(one, kind) {
					continue // there is one
				}
				i := attention.List([]attention.Finding{{Kind: kind, Subject: subject, ID: "x-1", Name: "x", OrgID: "acme", Reason: "why", Since: at, By: "region", ByID: "eu", Count: count}})[0]
				require.NotEmpty(t, i.Actions, "%s of a %s, %d of it", kind, subject, count)
				require.NotContains(t, i.Message+i.Todo, "{", kind)
				require.Regexp(t, `^[A-Z].*\.$`, i.Todo, kind)
				require.NotContains(t, i.Message, "  ", kind)
				requireHeading(t, i.Docs)
			}
		}
	}
}

// TestNothingWithDataIsProposedForDestruction: rows may show data on a finding's subject. Then no action is
// proposed that provisions it again, deletes it or gives it up, and the advice does not ask for one either.
func TestNothingWithDataIsProposedForDestruction(t *testing.T) {
	t.Parallel()
	verbs := regexp.MustCompile(`^prego server (retry|delete|lose|replace) `)
	reasons := []string{
		"heartbeat_lost", "agent_degraded", "agent_disconnected", "server_missing", "failed_bootstrap",
		"failed_container", "decommission_requested", "provisioning", "why",
	}
	offered := map[attention.Kind]bool{}
	for kind, subjects := range attention.Subjects() {
		for _, subject := range subjects {
			for _, reason := range reasons {
				for _, count := range []int{1, attention.Many + 1} {
					f := attention.Finding{
						Kind: kind, Subject: subject, ID: "x-1", Owner: "y", OrgID: "acme", Reason: reason, Since: at,
						By: "region", ByID: "eu", Count: count,
					}
					for _, a := range attention.List([]attention.Finding{f})[0].Actions {
						require.False(t, a.Destroys || verbs.MatchString(a.CLI), "%s, %s: %s", kind, reason, a.CLI)
					}
					require.NotRegexp(t, `provision it again|delete it`, strings.ToLower(serverTodo(f)), "%s, %s", kind, reason)
					f.Empty = true
					for _, a := range attention.List([]attention.Finding{f})[0].Actions {
						offered[kind] = offered[kind] || verbs.MatchString(a.CLI)
					}
				}
			}
		}
	}
	require.Equal(t, map[attention.Kind]bool{attention.ServerFailed: true, attention.ServerStuck: true}, only(offered),
		"empty values")

	for kind, wants := range map[attention.Kind][]string{
		attention.AgentSilent: {
			"prego server show app-1", "prego tenant list --server app-1", "prego server reboot app-1 --keep-tenants",
		},
		attention.ServerFailed: {
			"prego server show app-1", "prego tenant list --server app-1", "prego server reboot app-1 --keep-tenants",
		},
	} {
		i := attention.List([]attention.Finding{{
			Kind: kind, Subject: "server", ID: "app-1", Reason: "heartbeat_lost", Since: at, Count: 1,
		}})[0]
		var got []string
		for _, a := range i.Actions {
			got = append(got, a.CLI)
		}
		require.Equal(t, wants, got)
	}
}

// serverTodo is the advice about a server, "" for another finding.
func serverTodo(f attention.Finding) string {
	if f.Subject != "server" {
		return ""
	}
	return attention.List([]attention.Finding{f})[0].Todo
}

func only(set map[attention.Kind]bool) map[attention.Kind]bool {
	out := map[attention.Kind]bool{}
	for k, ok := range set {
		if ok {
			out[k] = true
		}
	}
	return out
}

var punctuation = regexp.MustCompile(`[^a-z0-9 _-]`)

// requireHeading requires that a file of the documentation, and its heading, are there.
func requireHeading(t *testing.T, docs string) {
	t.Helper()
	file, anchor, _ := strings.Cut(docs, "#")
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
	require.NoError(t, err, docs)
	if anchor == "" {
		return
	}
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(strings.TrimSpace(line), "#"), " "); ok && strings.HasPrefix(line, "#") &&
			strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(heading), ""), " ", "-") == anchor {
			return
		}
	}
	t.Errorf("%s has no heading for %s", file, docs)
}

// TestRebootsKeepTenants: without that, a reboot of a server whose tenants cannot be moved is refused.
func TestRebootsKeepTenants(t *testing.T) {
	t.Parallel()
	proposed := 0
	for kind, actions := range attention.AllActions() {
		for _, a := range actions {
			if strings.HasSuffix(a.Path, "/reboot") {
				proposed++
				require.Equal(t, map[string]any{"keep_tenants": true}, a.Body, kind)
				require.Contains(t, a.CLI, " --keep-tenants", kind)
			}
		}
	}
	require.Equal(t, 3, proposed, "of a silent agent, a stopped dockerd and a failed server")
}

// TestSeverityIsHarmToCustomers: which customer is harmed now, for each kind. always are the reasons that make a kind
// critical, harmed those that do while tenants or instances are affected.
func TestSeverityIsHarmToCustomers(t *testing.T) {
	t.Parallel()
	type harm struct {
		severity       attention.Severity
		who            string
		always, harmed string
	}
	const critical, warning, info = attention.Critical, attention.Warning, attention.Info
	harms := map[attention.Kind]harm{
		attention.Recovering:          {critical, "none whose site serves: all that wait for a change", "", ""},
		attention.BreakGlass:          {critical, "all: an operator may do anything with them", "", ""},
		attention.DeletionsFrozen:     {warning, "none by an operator's freeze; by the breaker, those whose data was deleted", "breaker", ""},
		attention.DeletionRefused:     {critical, "it would have lost its data", "", ""},
		attention.ReconcileBreaker:    {critical, "all: the database may be another one, or older than the world", "", ""},
		attention.DNSBreaker:          {critical, "all: the database may be another one, or older than the world", "", ""},
		attention.SweepFrozen:         {critical, "those of a fifth of all hosts", "", ""},
		attention.ProcessDown:         {warning, "all that wait: nothing is done", "no_worker no_agentgw", ""},
		attention.LookLate:            {warning, "none yet: what it would find is found within 15 minutes", "", ""},
		attention.LookFailing:         {warning, "none yet: what it would find is found within 15 minutes", "", ""},
		attention.ProviderBlocked:     {warning, "those that wait for a new server", "", ""},
		attention.CatalogStale:        {warning, "none yet: new servers may be refused", "", ""},
		attention.ServerFailed:        {warning, "its tenants, if any", "failed_bootstrap", "heartbeat_lost server_missing"},
		attention.ServerStuck:         {warning, "those that wait for it", "", ""},
		attention.ServerAwaitingStock: {warning, "those that wait for it", "", ""},
		attention.AgentSilent:         {warning, "its tenants, if it stays away", "", "agent_disconnected"},
		attention.ClockSkewed:         {warning, "its tenants: commands for them are refused", "", ""},
		attention.DockerStopped:       {warning, "its tenants: what ends there does not start again", "", "docker_stopped"},
		attention.TenantLost:          {critical, "it has no site", "", ""},
		attention.TenantFailed:        {warning, "one that never had its site", "", ""},
		attention.TenantStuck:         {warning, "its change is not made", "", ""},
		attention.TenantsWaiting:      {warning, "it waits", "", ""},
		attention.GroupUnschedulable:  {warning, "one org's wish is not met", "", ""},
		attention.GroupOverQuota:      {info, "none: its org decides", "", ""},
		attention.RolloutFailed:       {warning, "none: the former release runs", "", ""},
		attention.WarmPoolLow:         {warning, "the next ones wait longer", "", ""},
		attention.SitePoolLow:         {warning, "the next ones wait longer", "", ""},
		attention.FleetActionFailed:   {warning, "none", "", ""},
		attention.MaintenanceFailed:   {warning, "none: they are where they were", "", ""},
		attention.MaintenanceStuck:    {warning, "none: they are where they were", "", ""},
		attention.MoveFailed:          {warning, "none: it is where it was", "", ""},
		attention.RebalanceStopped:    {warning, "none", "", ""},
		attention.ReleaseStopped:      {warning, "those whose sites are offline for it", "", "rollback_failed why"},
		attention.AgentReleaseStopped: {warning, "none: hosts went back", "", ""},
		attention.ImageFailed:         {warning, "none: the former image is used", "", ""},
		attention.BackupLate:          {critical, "it loses what it wrote since then with the next fault", "", ""},
		attention.BackupMissing:       {critical, "it loses data with the next fault, and perhaps all do", "", ""},
		attention.BackupFailed:        {warning, "none before the next one is late", "", ""},
		attention.BackupLimit:         {warning, "its requests are refused", "", ""},
		attention.RestoreFailed:       {warning, "it has not what it asked for", "", ""},
		attention.DrillFailed:         {critical, "it loses data with the next fault", "", ""},
		attention.BackupUnverified:    {warning, "none as far as is known", "", ""},
		attention.CertificateEnding:   {warning, "its visitors, when it ends", "ends_in_days", ""},
		attention.CertificateFailing:  {warning, "its visitors, if it is new", "", ""},
		attention.DomainFailing:       {warning, "its visitors, when it is given up", "", ""},
		attention.VolumeFailed:        {warning, "it has not what it asked for", "", ""},
		attention.AddressFailed:       {warning, "it has not what it asked for", "", ""},
		attention.SiteReadOnly:        {warning, "its users enter nothing", "", ""},
		attention.SiteOverQuota:       {info, "none yet", "", ""},
		attention.OrgAtQuota:          {warning, "its requests are refused", "", ""},
		attention.OrgNearQuota:        {info, "none yet", "", ""},
		attention.LimitRequested:      {warning, "it waits for an answer", "", ""},
		attention.PatchesMissing:      {warning, "none yet", "", ""},
		attention.OperationStuck:      {warning, "it has not what it asked for", "", ""},
		attention.QuotaDrifted:        {warning, "its requests were held against a wrong usage", "", ""},
		attention.PeersBehind:         {warning, "sites whose parts may not reach each other", "", ""},
		attention.SiteDown:            {warning, "one whose site does not answer, or most of a region", "region_down", ""},
		attention.EdgeBehind:          {warning, "new ones at this edge, or at every edge", "no_edge_opens", ""},
		attention.EdgeRejectedName:    {warning, "the one with that name", "", ""},
		attention.DNSRecordFailing:    {warning, "names that are not found", "", ""},
		attention.ProviderUntracked:   {warning, "none, unless it was in use", "protected", ""},
	}
	about := attention.Subjects()
	severity := func(kind attention.Kind, reason string, tenants int) attention.Severity {
		f := attention.Finding{
			Kind: kind, Subject: about[kind][0], ID: "x", Reason: reason, Since: at,
			Affected: attention.Affected{TenantCount: tenants, OrgCount: tenants},
		}
		return attention.List([]attention.Finding{f})[0].Severity
	}
	reasons := map[string]bool{"other": true}
	for _, h := range harms {
		for r := range strings.FieldsSeq(h.always + " " + h.harmed) {
			reasons[r] = true
		}
	}
	for _, kind := range attention.Kinds() {
		h, ok := harms[kind]
		require.True(t, ok && h.who != "", "%s: which customer is harmed by it?", kind)
		for reason := range reasons {
			want, affected := h.severity, h.severity
			if slices.Contains(strings.Fields(h.always), reason) {
				want, affected = critical, critical
			}
			if slices.Contains(strings.Fields(h.harmed), reason) {
				affected = critical
			}
			require.Equal(t, want, severity(kind, reason, 0), "%s, %s", kind, reason)
			if kind != attention.DockerStopped && kind != attention.ReleaseStopped { // which have one cause
				require.Equal(t, affected, severity(kind, reason, 1), "%s, %s", kind, reason)
			}
		}
		for reason := range strings.FieldsSeq(h.harmed) {
			require.Equal(t, critical, severity(kind, reason, 1), "%s, %s", kind, reason)
		}
	}
}
