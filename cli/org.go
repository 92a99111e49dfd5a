package cli

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
)

var orgTable = Table[api.Org]{ID: "org_id", Columns: "org_id, tier, parent_org_id: part of, created_by, created_at", Spare: "created-by, created, part-of"}

func orgCommand(c *CLI) *cobra.Command {
	var parent, tier string
	return c.group("org", "Manage orgs, which are customers",
		Action[api.Org]{
			Use: "set ORG", Aliases: []string{"put"}, Short: "Create an org, or change its parent or tier", Method: http.MethodPut, Path: "/v1/orgs/{org}", Table: orgTable,
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&parent, "parent", "", "the org that it is part of; empty for none (default: unchanged)")
				pick(f, &tier, "tier", "", "tier, which sets the org's limits", sets["tier"])
			},
			Body: func(in *call) (any, error) {
				body := api.PutOrg{Tier: optional(tier)}
				if in.given("parent") {
					body.ParentOrgId = &parent
				}
				return body, nil
			},
		},
		Show[api.Org]{Use: "show ORG…", Short: "Show orgs", Path: "/v1/orgs/{org}", Table: orgTable},
		List[api.Org]{Short: "List orgs, newest first", Path: "/v1/orgs", Items: "orgs", Filters: "tier, parent: parent_org_id", Sorts: "created_at, org_id", Table: orgTable},
		List[api.OrgEvent]{
			Use: "events ORG", Short: "List the events of an org's resources and limits, newest first", Path: "/v1/orgs/{org}/events", Items: "events",
			Filters: "type, subject, actor", Sorts: "at", Limit: 100, Example: "  prego org events acme --type org.",
			Table: Table[api.OrgEvent]{ID: "event_id", Columns: "at, type, subject, actor: by, reason, payload: data", Spare: "by, data", More: "event_id"},
		},
	)
}

var quotaTable = Table[api.OrgQuota]{
	ID: "dimension", Columns: "dimension, limit, source: from, usage: used, headroom: left, reason: why, updated_by: by", Spare: "by, why, from", More: "reserved, updated_at",
	Computed: map[string]func(api.OrgQuota) any{
		"limit": func(q api.OrgQuota) any { return amount(q, q.Limit) }, "usage": func(q api.OrgQuota) any { return amount(q, q.Usage) },
		"headroom": func(q api.OrgQuota) any { return amount(q, q.Headroom) }, "reserved": func(q api.OrgQuota) any { return amount(q, q.Reserved) },
	},
}

// amount formats an amount of a dimension, with its unit if that is bytes.
func amount(q api.OrgQuota, n float64) string {
	switch {
	case !strings.HasSuffix(q.Dimension, "_bytes"):
		return number(n)
	case strings.Contains(q.Dimension, "memory"):
		return bytesText(int64(n))
	}
	return diskText(int64(n))
}

// limitOf parses a limit; one in bytes may have a unit.
func limitOf(dimension, text string) (float64, error) {
	if limit, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(limit) && !math.IsInf(limit, 0) {
		return limit, nil
	}
	read := disk
	if strings.Contains(dimension, "memory") {
		read = memory
	}
	n, err := read(text)
	if err != nil || !strings.HasSuffix(dimension, "_bytes") {
		return 0, usagef("LIMIT must be a number, or a size like 64G where it is in bytes, not %q", text)
	}
	return float64(n), nil
}

func quotaCommand(c *CLI) *cobra.Command {
	reason := ""
	why := func(_ *cobra.Command, f *pflag.FlagSet) {
		f.StringVar(&reason, "reason", "", "reason for the org's events")
	}
	return c.group("quota", "Manage what orgs may use",
		List[api.OrgQuota]{Use: "show ORG", Short: "Show each limit of an org, its source and its usage", Path: "/v1/orgs/{org}/quotas", Items: "quotas", Whole: true, Table: quotaTable},
		Action[api.OrgQuota]{
			Use: "set ORG DIMENSION LIMIT", Short: "Override one of an org's limits", Method: http.MethodPut, Path: "/v1/orgs/{org}/quotas/{dimension}", Table: quotaTable,
			Example: "  prego quota set acme max_apps 40 --reason \"contract 4711\"",
			Flags:   func(cmd *cobra.Command, f *pflag.FlagSet) { why(cmd, f); required(cmd, "reason") },
			Body: func(in *call) (any, error) {
				limit, err := limitOf(in.args["dimension"], in.typed)
				return api.SetQuota{Limit: limit, Reason: reason}, err
			},
		},
		Action[api.OrgQuota]{
			Use: "unset ORG DIMENSION", Short: "Return an org's limit to its tier's", Method: http.MethodDelete, Path: "/v1/orgs/{org}/quotas/{dimension}", Table: quotaTable,
			Flags: why, Body: func(*call) (any, error) { return api.QuotaReason{Reason: optional(reason)}, nil },
		},
	)
}

var appTable = Table[api.App]{ID: "app_id", Columns: "app_id, name, org_id, created_at: age", Spare: "age, org", More: "created_by, created_at, deleted_at"}

func appCommand(c *CLI) *cobra.Command {
	org := ""
	return c.group("app", "Manage apps of orgs",
		Action[api.App]{
			Use: "create NAME", Short: "Create an app", Path: "/v1/apps", Table: appTable, Example: "  prego app create shop --org acme",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&org, "org", "", "owning org")
				required(cmd, "org")
			},
			Body: func(in *call) (any, error) { return api.CreateApp{OrgId: api.OrgID(org), Name: in.typed}, nil },
		},
		List[api.App]{Short: "List apps, newest first", Path: "/v1/apps", Items: "apps", Filters: "org: org_id, name", Sorts: "created_at, name", All: true, Table: appTable},
		Show[api.App]{Use: "show APP…", Short: "Show apps", Path: "/v1/apps/{app}", Table: appTable},
		Delete("delete APP…", "app", "/v1/apps/{app}"),
	)
}

var envTable = Table[api.Env]{ID: "env_id", Columns: "env_id, name, region, app_id, org_id, created_at: age", Spare: "age, org, region, app", More: "created_by, created_at, deleted_at"}

func envCommand(c *CLI) *cobra.Command {
	app, region := "", ""
	return c.group("env", "Manage envs of apps, each in a region",
		Action[api.Env]{
			Use: "create NAME", Short: "Create an env", Path: "/v1/apps/{app}/envs", Table: envTable, Example: "  prego env create prod --app shop --region eu",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&app, "app", "", "app of the env")
				pick(f, &region, "region", "", "", sets["region"])
				required(cmd, "app", "region")
			},
			Body: func(in *call) (body any, err error) {
				in.args["app"], err = in.resolve("app", app)
				return api.CreateEnv{Name: in.typed, Region: api.Region(region)}, err
			},
		},
		List[api.Env]{Short: "List envs, newest first", Path: "/v1/envs", Items: "envs", Filters: "app: app_id, org: org_id, region, name", Sorts: "created_at, name", All: true, Table: envTable},
		Show[api.Env]{Use: "show ENV…", Short: "Show envs", Path: "/v1/envs/{env}", Table: envTable},
		Delete("delete ENV…", "env", "/v1/envs/{env}"),
	)
}

// noneBelow0 formats a limit; a negative one means none.
func noneBelow0(n int64) string {
	if n < 0 {
		return "none"
	}
	return fmt.Sprint(n)
}
