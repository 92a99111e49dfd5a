package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

// kind describes how to find things of a kind: their list, the field of its answer with the
// items, and the id's field. If they have names, name is their field, and prefix
// starts each id. Words are also ids.
type kind struct {
	path, items, id, name, prefix string
	words                         []string
}

// kinds are keyed by the names of arguments, path placeholders and flags.
var kinds = map[string]kind{
	"server":         {path: "/v1/servers", items: "servers", id: "server_id"},
	"fleet":          {path: "/v1/fleets", items: "fleets", id: "fleet_id"},
	"policy":         {path: "/v1/policies", items: "policies", id: "policy_id"},
	"org":            {path: "/v1/orgs", items: "orgs", id: "org_id"},
	"account":        {path: "/v1/service-accounts", items: "service_accounts", id: "principal_id", name: "name", prefix: "sa-"},
	"token":          {path: "/v1/tokens", items: "tokens", id: "token_id", name: "name", prefix: "token-"},
	"grant":          {path: "/v1/grants", items: "grants", id: "grant_id"},
	"user":           {path: "/v1/users", items: "users", id: "principal_id", name: "name", prefix: "usr-"},
	"login":          {path: "/v1/logins", items: "logins", id: "login_id"},
	"placement-pool": {path: "/v1/placement-pools", items: "placement_pools", id: "name"},
	"registry":       {path: "/v1/registries", items: "registries", id: "host"},
	"release":        {path: "/v1/releases", items: "releases", id: "name"},
	"agent-release":  {path: "/v1/agent-releases", items: "agent_releases", id: "version"},
	"decision":       {path: "/v1/decisions", items: "decisions", id: "id"},
	"patch-wave":     {path: "/v1/patch-waves", items: "patch_waves", id: "wave_id"},
	"image":          {path: "/v1/images", items: "images", id: "image_id"},
	"tenant":         {path: "/v1/tenants", items: "tenants", id: "tenant_id", name: "slug", prefix: "t-"},
	"owner":          {path: "/v1/tenants", items: "tenants", id: "tenant_id", name: "slug", prefix: "t-", words: append(prego.Strings(prego.Plans()), tenant.AllVolumes)}, // of a backup policy
	"app":            {path: "/v1/apps", items: "apps", id: "app_id", name: "name", prefix: "app-"},
	"env":            {path: "/v1/envs", items: "envs", id: "env_id", name: "name", prefix: "env-"},
	"group":          {path: "/v1/groups", items: "groups", id: "group_id", name: "name", prefix: "grp-"},
	"domain":         {path: "/v1/domains", items: "domains", id: "domain_id", name: "name", prefix: "dom-"},
	"volume":         {path: "/v1/volumes", items: "volumes", id: "volume_id", name: "name", prefix: "vol-"},
	"instance":       {path: "/v1/groups/{group}/instances", items: "instances", id: "instance_id"},
	"route":          {path: "/v1/envs/{env}/routes", items: "routes", id: "route_id"},
	"snapshot":       {path: "/v1/tenants/{tenant}/snapshots", items: "snapshots", id: "snapshot_id"},
	"backup":         {path: "/v1/tenants/{tenant}/backups", items: "backups", id: "backup_id"},
	"volume-backup":  {path: "/v1/volumes/{volume}/backups", items: "backups", id: "backup_id"},
	"volume-restore": {path: "/v1/volumes/{volume}/restores", items: "restores", id: "restore_id"},
	"move":           {path: "/v1/tenants/{tenant}/moves", items: "moves", id: "move_id"},
	"restore":        {path: "/v1/tenants/{tenant}/restores", items: "restores", id: "job_id"},
	"action":         {path: "/v1/fleets/{fleet}/actions", items: "actions", id: "seq"},
	"container":      {path: "/v1/servers/{server}/containers", items: "containers", id: "name"},
	"limit-request":  {path: "/v1/limit-requests", items: "limit_requests", id: "limit_request_id"},
	"dimension":      {path: "/v1/orgs/{org}/quotas", items: "quotas", id: "dimension"},
}

// generatedID matches the API's generated ids, which need no look-up.
var generatedID = regexp.MustCompile(`^[a-z]+-[a-z0-9]{12}$`)

// resolve returns the id of a thing given by its id or its name.
func (in *call) resolve(what, given string) (string, error) {
	k, ok := kinds[what]
	if _, err := strconv.ParseUint(given, 10, 63); what == "decision" && err != nil && given != "" {
		return in.lastDecision(given)
	}
	if !ok || k.name == "" || given == "" || slices.Contains(k.words, given) || what == "owner" && isPolicyOwner(given) || strings.HasPrefix(given, k.prefix) && generatedID.MatchString(given) {
		return given, nil
	}
	found, err := in.client.everyPage(in.Context(), k.path, k.items, url.Values{k.name: {given}}, 10*maxPage)
	var refused *Refusal
	if errors.As(err, &refused) && refused.Status < http.StatusInternalServerError && strings.HasPrefix(given, k.prefix) {
		return given, nil // it may not be a name; the API rejects it as an id then
	}
	if err != nil {
		return "", err
	}
	var ids []string
	for _, raw := range found {
		if idOf(raw, k.name) == given {
			ids = append(ids, idOf(raw, k.id))
		}
	}
	switch {
	case len(ids) == 1:
		return ids[0], nil
	case len(ids) > 1:
		return "", usagef("%d %ss are called %q; use an id: %s", len(ids), what, given, strings.Join(ids, ", "))
	case strings.HasPrefix(given, k.prefix):
		return given, nil
	}
	text := "there is no " + what + " " + given
	q := url.Values{k.name: {given}, "all": {"true"}}
	ended, err := in.client.everyPage(in.Context(), k.path, k.items, q, maxPage)
	for _, raw := range ended { // an error means that the list has no ended ones
		if id := idOf(raw, k.id); err == nil && idOf(raw, k.name) == given {
			text = fmt.Sprintf("%s %s is %s: prego %[1]s list --all lists it, and prego %[1]s show %[4]s shows it",
				what, given, cmp.Or(idOf(raw, "state"), idOf(raw, "status"), "deleted"), id)
		}
	}
	return "", &Exit{Code: ExitRefused, Err: errors.New(text)}
}

// lastDecision is a tenant's newest decision.
func (in *call) lastDecision(given string) (string, error) {
	tenant, err := in.resolve("tenant", given)
	if err != nil {
		return "", err
	}
	path := "/v1/tenants/" + url.PathEscape(tenant) + "/decisions"
	found, err := in.client.everyPage(in.Context(), path, kinds["decision"].items, url.Values{}, 0)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", &Exit{Code: ExitRefused, Err: fmt.Errorf("no decision about tenant %s is kept", given)}
	}
	return idOf(found[0], kinds["decision"].id), nil
}

// known refuses the filters of an empty list that name an object which does not exist.
func (in *call) known(v *api.Verb) error {
	for _, fl := range v.Flags {
		what, isID := strings.CutSuffix(fl.Field, "_id")
		k, ok := kinds[strings.ReplaceAll(what, "_", "-")]
		if fl.In != "query" || !isID || !ok || k.name != "" || strings.Contains(k.path, "{") || !in.given(fl.Name) {
			continue
		}
		for id := range strings.SplitSeq(in.text(fl.Name), ",") {
			err := in.client.Do(in.Context(), http.MethodGet, k.path+"/"+url.PathEscape(id), nil, nil, nil)
			if refused, ok := errors.AsType[*Refusal](err); ok && refused.Status == http.StatusNotFound {
				return &Exit{Code: ExitRefused, Err: errors.New("there is no " + what + " " + id)}
			}
		}
	}
	return nil
}

// completion is how long a shell waits for the API.
const completion = 2 * time.Second

// names returns the ids, and the names if there are any, of all things of a kind.
func (c *CLI) names(cmd *cobra.Command, what string, args map[string]string) []string {
	k, ok := kinds[what]
	client, err := c.Client()
	if !ok || err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completion)
	defer cancel()
	in := &call{Command: cmd, client: client, args: args}
	cmd.SetContext(ctx)
	for name := range args {
		if args[name], err = in.resolve(name, args[name]); err != nil {
			return nil
		}
	}
	found, err := client.everyPage(ctx, in.path(k.path), k.items, url.Values{}, maxPage)
	if err != nil {
		return nil
	}
	out := slices.Clone(k.words)
	for _, raw := range found {
		if name := idOf(raw, k.name); name != "" {
			out = append(out, name+"\t"+idOf(raw, k.id))
		} else {
			out = append(out, idOf(raw, k.id))
		}
	}
	return out
}

// completeArgs completes arguments.
func (c *CLI) completeArgs(u usage) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		i := len(args)
		if u.several {
			i = min(i, len(u.names)-1)
		}
		if i == len(u.names) && u.optional != "" {
			return c.names(cmd, u.optional, map[string]string{}), cobra.ShellCompDirectiveNoFileComp
		}
		if i >= len(u.names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if of, ok := sets[u.names[i]]; ok {
			return of, cobra.ShellCompDirectiveNoFileComp
		}
		before := map[string]string{}
		for n := range i {
			before[u.names[n]] = args[n]
		}
		return c.names(cmd, u.names[i], before), cobra.ShellCompDirectiveNoFileComp
	}
}

// sets are the arguments and flags with a closed set of values.
var sets = map[string][]string{
	"region": words(prego.Regions()), "role": words(prego.Roles()), "plan": words(prego.Plans()), "tier": words(prego.Tiers()),
}

// completeFlag completes a flag's value: from its set, or with ids if it is named after
// a kind.
func (c *CLI) completeFlag(cmd *cobra.Command, f *pflag.Flag) {
	if _, done := cmd.GetFlagCompletionFunc(f.Name); done {
		return
	}
	offer := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if v, ok := f.Value.(*choice); ok {
			return v.of, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd, f.Name, map[string]string{}), cobra.ShellCompDirectiveNoFileComp
	}
	_, closed := f.Value.(*choice)
	// The flag --image is an operating system's or a container's image, not a golden
	// one.
	if k, ok := kinds[f.Name]; closed || ok && f.Name != "image" && !strings.Contains(k.path, "{") {
		if err := cmd.RegisterFlagCompletionFunc(f.Name, offer); err != nil {
			panic(err)
		}
	}
}
