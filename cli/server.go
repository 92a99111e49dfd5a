package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var serverTable = Table[api.Server]{
	ID:      "server_id",
	Columns: "server_id, role, region, status, agent, host",
	More: "infra_provider: provider, provider.provider_server_id: provider id, provider.server_type: type, provider.location: location, provider.ipv4: address, provider.network: network, provider.private_address: private address, holds, cost, fleet_id, tags, cordoned, patches, reboot, " +
		"workflow_id, run_url: run, created_at",
	Computed: map[string]func(api.Server) any{
		"status": func(s api.Server) any { return string(s.Status) + reasons(s.StatusReason, s.StatusMessage) },
		"agent":  func(s api.Server) any { return string(s.Agent.Status) + " " + deref(s.Agent.Version) },
		"host":   func(s api.Server) any { return hostOf(s) },
		"holds": func(s api.Server) any {
			return textOf(s.Holds, func(u api.ServerUse) string {
				return server.Use{Tenants: u.Tenants, Instances: u.Instances, Volumes: u.Volumes}.String()
			})
		},
		"cost":    func(s api.Server) any { return textOf(s.Cost, costOf) },
		"tags":    func(s api.Server) any { return tagsOf(s) },
		"patches": func(s api.Server) any { return textOf(s.Patches, patchesOf) },
		"reboot": func(s api.Server) any {
			if s.Patches == nil || s.Patches.RebootSince == nil {
				return nil
			}
			return "required since " + s.Patches.RebootSince.Format(time.RFC3339) + ": " + deref(s.Patches.RebootFor)
		},
		"cordoned": func(s api.Server) any {
			if s.CordonedAt == nil {
				return nil
			}
			if s.CordonedBy == nil {
				return "by the control plane"
			}
			return "by " + *s.CordonedBy + reasons(s.CordonReason, nil)
		},
	},
}

// watchServer follows a server until it has a status.
func watchServer(wanted server.Status) Watch[api.Server] {
	return Watch[api.Server]{
		Use: "watch SERVER", Short: "Follow a server until its operations are done", Path: "/v1/servers/{server}", Again: "prego server watch {server}",
		Lines: serverLines, Doing: func(s api.Server) string { return s.ServerId + " is " + string(s.Status) },
		Rests: func(s api.Server) bool {
			return s.Status == wanted || serverRests(s)
		},
		Outcome: func(_ *call, s api.Server) error {
			if wanted != "" && s.Status != wanted {
				return serverFailure(s)
			}
			return nil
		},
		Done: func(_ *call, s api.Server) string { return fmt.Sprintf("server %s is %s", s.ServerId, s.Status) },
	}
}

// serverRests reports whether no operation is running on a server.
func serverRests(s api.Server) bool {
	switch s.Status {
	case server.Active, server.Failed, server.Terminated:
		return true
	case server.Provisioning, server.Decommissioning:
	}
	return false
}

// serverFailure says which status a server has instead of the wanted one.
func serverFailure(s api.Server) error {
	return fmt.Errorf("server %s is %s%s", s.ServerId, s.Status, reasons(s.StatusReason, s.StatusMessage))
}

func serverLines(s api.Server) []line {
	lines := make([]line, len(s.Timeline))
	for i, e := range s.Timeline {
		text := fmt.Sprintf("%-22s %s", s.ServerId, e.Step)
		if e.Message != nil {
			text += "  " + oneLine(*e.Message)
		}
		if e.Reason != nil {
			text += "  [" + *e.Reason + "]"
		}
		lines[i] = line{key: strconv.FormatInt(e.Id, 10), at: e.At, text: text}
	}
	return lines
}

// timeline prints a timeline.
func timeline(in *call, lines []line) {
	for i, l := range lines {
		if i == 0 {
			fmt.Fprintln(in.w)
		}
		in.seen[l.key] = true
		fmt.Fprintln(in.w, stamp(l.at.Sub(lines[0].at), l.at)+"  "+l.text)
	}
}

// reasons formats a reason and a message.
func reasons(reason, message *string) string {
	out := ""
	for _, s := range []*string{reason, message} {
		if s != nil && *s != "" {
			out += map[bool]string{true: ": ", false: ", "}[out == ""] + oneLine(*s)
		}
	}
	return out
}

// hostOf sums up the host's condition.
func hostOf(s api.Server) string {
	docker := deref(s.Agent.DockerState)
	if docker == "" {
		return ""
	}
	out := "docker " + docker
	if ahead := s.Agent.ClockAheadSeconds; ahead != nil {
		out += fmt.Sprintf(", clock %+.1f s", *ahead)
		if deref(s.Agent.ClockSkewed) {
			out += " (clock_skew: tokens and certificates may be refused)"
		}
	}
	return out
}

// costOf formats a cost.
func costOf(c api.Cost) string {
	return fmt.Sprintf("%s %s per month (%s gross), for %s", c.Monthly.Net, c.Currency, c.Monthly.Gross, strings.Join(c.Parts, ", "))
}

// patchesOf sums up which security updates a host lacks.
func patchesOf(p api.Patches) string {
	if p.Failed != nil {
		return "not known: " + *p.Failed
	}
	if p.Pending == 0 {
		return string(p.State)
	}
	names := make([]string, 0, len(p.Packages)+1)
	for _, u := range p.Packages {
		names = append(names, u.Name)
	}
	if more := p.Pending - len(p.Packages); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%d pending: %s", p.Pending, strings.Join(names, ", "))
}

// tagsOf formats a server's tags, with those that its host reports if they differ.
func tagsOf(s api.Server) string {
	tags := strings.Join(s.Tags, ", ")
	if deref(s.Agent.TagsDiffer) && s.Agent.Tags != nil {
		tags += " (its agent says: " + strings.Join(*s.Agent.Tags, ", ") + ")"
	}
	return tags
}

// specFlags are the flags of a server's spec.
func specFlags(f *pflag.FlagSet, s *server.Spec) {
	f.StringVar(&s.ServerType, "type", "", "machine type (default: the configured ones)")
	f.StringVar(&s.Location, "location", "", "provider location (default: the region's)")
	f.StringVar((*string)(&s.Network), "network", "", "private network (default: one of the location's zone)")
	f.StringVar(&s.Image, "image", "", "operating system image (default: the configured one)")
	f.IntVar(&s.VolumeGB, "volume-gb", 0, "size of a data volume in GB; 0 for none")
	f.StringSliceVar(&s.Tags, "tag", nil, "placement tag; may be repeated")
}

func serverCommand(c *CLI) *cobra.Command {
	accepted := func(_ *call, a api.Accepted) string {
		return fmt.Sprintf("accepted: server %s, workflow %s", a.ServerId, a.WorkflowId)
	}
	return c.group("server", "Manage servers",
		serverCreate(accepted), serverImport(),
		List[api.ServerSummary]{
			Short: "List servers, newest first", Path: "/v1/servers", Items: "servers", All: true,
			Example: "  prego server list --region eu --state active,draining\n  prego server list -l gpu --columns server,tags,age",
			Sorts:   "created_at, server_id", Filters: "region, role, status, tag, fleet: fleet_id, provider: infra_provider, agent: agent_status, patches: patch_state", Values: map[string][]string{"status": words(server.Statuses()), "patches": words(server.PatchStates())},
			Table: Table[api.ServerSummary]{
				ID: "server_id", Columns: "server_id, role, region, status, agent_status: agent, created_at: age, status_reason: reason", Spare: "age, agent, role, region, reason",
				More: "host: address, status_message: message, patch_state: patches, fleet_id, tags, infra_provider: provider, cordoned_at, cordoned_by, cordon_reason, created_at",
			},
		},
		Show[api.Server]{
			Use: "show SERVER…", Short: "Show servers and their timelines", Path: "/v1/servers/{server}", Table: serverTable,
			After: func(in *call, s api.Server) { timeline(in, serverLines(s)) }, Watch: watchServer(""),
		},
		watchServer(""),
		Action[api.Accepted]{
			Use: "retry SERVER…", Short: "Provision failed servers again, each on a new, empty machine",
			Long: "Provision failed servers again, each on a new, empty machine. Refused while tenants, instances or volumes are on the server: such a server\n" +
				"is active again when its agent is heard of, and one that cannot be brought back is given up with `prego server lost`.\n" +
				"An imported server keeps its machine and what is on it.",
			Path: "/v1/servers/{server}/retry", Table: Table[api.Accepted]{ID: "server_id"},
			Say: accepted, Watch: watchServer(server.Active),
		},
		serverCordon(),
		Action[api.ServerSummary]{
			Use: "uncordon SERVER…", Short: "Open cordoned servers to new tenants and instances again", Path: "/v1/servers/{server}/uncordon", Table: Table[api.ServerSummary]{ID: "server_id"},
			Say: func(_ *call, s api.ServerSummary) string {
				return fmt.Sprintf("server %s takes new tenants and instances", s.ServerId)
			},
		},
		serverLost(accepted),
		serverMaintenance(server.MaintenanceDrain), serverMaintenance(server.MaintenanceReboot), serverMaintenance(server.MaintenancePatch), serverMaintenance(server.MaintenanceReplace), serverMaintenance(server.MaintenanceResize), serverMaintenanceCancel(), showMaintenance,
		serverDelete(accepted),
		List[api.Command]{
			Use: "commands SERVER", Short: "List the commands run on a server's host, newest first", Path: "/v1/servers/{server}/commands", Items: "commands", Limit: 50, Sorts: "requested_at",
			Table: Table[api.Command]{
				ID: "audit_id", Columns: "requested_at, by, kind, exit, duration_ms: ms, args", More: "audit_id, actor, stdout, stderr, finished_at", Spare: "ms, by",
				Computed: map[string]func(api.Command) any{
					"by": func(v api.Command) any {
						for _, by := range []*string{v.RequestedBy, v.WorkflowId} {
							if by != nil {
								return *by
							}
						}
						return v.Actor
					},
					"exit": func(v api.Command) any {
						if v.ExitCode == nil {
							return "?"
						}
						return *v.ExitCode
					},
				},
			},
		},
		serverSamples{},
		List[api.PeersBehind]{
			Use: "peers", Short: "List servers whose host's firewall is not as it should be", Path: "/v1/server-peers", Items: "servers", Whole: true,
			Table: Table[api.PeersBehind]{
				ID: "server_id", Columns: "server_id, role, status, agent_status: agent, changed_at: since, refused", More: "version, applied_version, applied_at", Spare: "role, status",
			},
		},
		List[api.ActivationStats]{
			Use: "stats", Short: "Show how long servers took to become active", Path: "/v1/server-stats", Items: "activations", Whole: true, Filters: "days",
			Table: Table[api.ActivationStats]{
				Columns: "role, location, image, servers, p50_seconds: p50 s, p95_seconds: p95 s, p99_seconds: p99 s, max_seconds: max s, in time", Spare: "max-s, p95-s",
				Computed: map[string]func(api.ActivationStats) any{
					"in time": func(s api.ActivationStats) any {
						return fmt.Sprintf("%.1f %%", 100*float64(s.InTime)/float64(s.Servers))
					},
				},
			},
		},
	)
}

func serverCreate(accepted func(*call, api.Accepted) string) Action[api.Accepted] {
	var in server.CreateRequest
	return Action[api.Accepted]{
		Use: "create NAME", Short: "Create a server", Path: "/internal/servers/create", Example: "  prego server create app-7 --role app --region eu --watch",
		Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
			pick(f, &in.Role, "role", prego.RoleNode, "", sets["role"])
			pick(f, &in.Region, "region", "", "", sets["region"])
			f.StringVar((*string)(&in.InfraProvider), "provider", "hetzner", "infrastructure provider")
			specFlags(f, &in.Spec)
			required(cmd, "region")
		},
		Body: func(v *call) (any, error) {
			in.ServerID = prego.ServerID(v.typed)
			return in, nil
		},
		Table: Table[api.Accepted]{ID: "server_id"}, Say: accepted, Watch: watchServer(server.Active),
	}
}

func serverCordon() Action[api.ServerSummary] {
	var in server.CordonRequest
	return Action[api.ServerSummary]{
		Use: "cordon SERVER…", Short: "Close servers to new tenants and instances; what is there stays", Path: "/v1/servers/{server}/cordon",
		Example: "  prego server cordon app-7 --reason \"disk errors\"",
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&in.Reason, "reason", "", "reason for the timeline")
		},
		Body: func(*call) (any, error) {
			if in.Reason == "" {
				return nil, nil //nolint:nilnil // no body
			}
			return in, nil
		},
		Table: Table[api.ServerSummary]{ID: "server_id"},
		Say:   func(_ *call, s api.ServerSummary) string { return fmt.Sprintf("server %s is cordoned", s.ServerId) },
	}
}

func serverLost(accepted func(*call, api.Accepted) string) Action[api.Accepted] {
	var in server.CordonRequest
	return Action[api.Accepted]{
		Use: "lost SERVER…", Short: "Give servers up as lost: their tenants are restored elsewhere, what is left of them is destroyed", Path: "/v1/servers/{server}/lost",
		Destroys: "gives up server", Table: Table[api.Accepted]{ID: "server_id"}, Say: accepted, Watch: watchServer(server.Terminated),
		Example: "  prego server lost app-7 --reason \"its disk died\"",
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&in.Reason, "reason", "", "reason for the timeline")
		},
		Body: func(*call) (any, error) {
			if in.Reason == "" {
				return nil, nil //nolint:nilnil // no body
			}
			return in, nil
		},
	}
}

func serverDelete(accepted func(*call, api.Accepted) string) Action[api.Accepted] {
	force := false
	return Action[api.Accepted]{
		Use: "delete SERVER…", Short: "Delete servers in any state", Method: http.MethodDelete, Path: "/v1/servers/{server}",
		Destroys: "deletes server", Table: Table[api.Accepted]{ID: "server_id"}, Say: accepted, Watch: watchServer(server.Terminated),
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.BoolVar(&force, "force", false, "delete it even if tenants are on it; their data is lost")
		},
		Query: func(*call) url.Values {
			if !force {
				return nil
			}
			return url.Values{"force": {"true"}}
		},
	}
}

func serverImport() Action[api.ImportAccepted] {
	var in server.ImportRequest
	return Action[api.ImportAccepted]{
		Use: "import NAME", Short: "Import an existing server, and print what to run on it", Path: "/v1/servers/import",
		Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
			pick(f, &in.Role, "role", "", "", sets["role"])
			pick(f, &in.Region, "region", "", "", sets["region"])
			f.StringVar((*string)(&in.InfraProvider), "provider", "hetzner", "infrastructure provider")
			f.StringVar(&in.ProviderServerID, "provider-server-id", "", "the provider's id of the server")
			f.StringVar((*string)(&in.ManagedBy), "managed-by", "worker_direct", "who created it: worker_direct or pulumi")
			f.StringSliceVar(&in.Tags, "tag", nil, "placement tag; may be repeated")
			required(cmd, "role", "region", "provider-server-id")
		},
		Body: func(v *call) (any, error) {
			in.ServerID = prego.ServerID(v.typed)
			return in, nil
		},
		Table: Table[api.ImportAccepted]{ID: "server_id"},
		Say: func(v *call, a api.ImportAccepted) string {
			fmt.Fprintf(v.ErrOrStderr(), "accepted: server %s, workflow %s; apply this cloud-init document on the host:\n", a.ServerId, a.WorkflowId)
			return strings.TrimSuffix(a.Bootstrap, "\n")
		},
	}
}
