package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var agentReleaseTable = Table[api.AgentRelease]{
	ID: "version", Columns: "version, status, updated, created_at: age, reason, message", Spare: "message, age",
	More: "serial, sha256, created_by, created_at, started_at, finished_at",
	Computed: map[string]func(api.AgentRelease) any{
		"updated": func(r api.AgentRelease) any {
			if len(r.Servers) == 0 {
				return ""
			}
			done := 0
			for _, s := range r.Servers {
				if s.Status == string(server.AgentUpdated) {
					done++
				}
			}
			return fmt.Sprintf("%d of %d servers", done, len(r.Servers))
		},
	},
}

func agentLine(s api.AgentReleaseServer) string {
	text := fmt.Sprintf("%-22s %-10s %-8s runs %s", s.ServerId, s.Ring, s.Status, deref(s.AgentVersion))
	if s.Message != nil {
		text += ": " + *s.Message
	}
	return text
}

var watchAgentRelease = Watch[api.AgentRelease]{
	Use: "watch AGENT-RELEASE", Short: "Follow a release of the agent until it rests", Path: "/v1/agent-releases/{agent-release}", Again: "prego agent release watch {agent-release}",
	Lines: func(r api.AgentRelease) []line {
		var out []line
		for _, s := range r.Servers {
			out = append(out, line{key: s.ServerId + " " + s.Status, at: time.Now(), text: agentLine(s)})
		}
		return out
	},
	Doing: func(r api.AgentRelease) string { return fmt.Sprintf("%s is %s", r.Version, r.Status) },
	Rests: func(r api.AgentRelease) bool { return server.ReleaseStatus(r.Status).Rests() },
	Outcome: func(_ *call, r api.AgentRelease) error {
		if r.Status == string(server.ReleaseStopped) {
			return fmt.Errorf("release %s of the agent is %s%s", r.Version, r.Status, reasons(r.Reason, r.Message))
		}
		return nil
	},
}

func agentReleaseTurn(verb, short string) Action[api.AgentRelease] {
	return Action[api.AgentRelease]{
		Use: verb + " AGENT-RELEASE", Short: short, Path: "/v1/agent-releases/{agent-release}/" + verb, Table: agentReleaseTable, Watch: watchAgentRelease,
		Say: func(_ *call, r api.AgentRelease) string {
			return fmt.Sprintf("release %s of the agent is %s", r.Version, r.Status)
		},
	}
}

func agentCommand(c *CLI) *cobra.Command {
	var file string
	var percents []int
	var soak time.Duration
	cmd := &cobra.Command{Use: "agent", Short: "Manage the program that runs on hosts"}
	cmd.AddCommand(c.group("release", "Deploy releases of the agent, in rings",
		Action[api.AgentRelease]{
			Use: "create", Short: "Create a release of the agent from what prego keys sign-agent printed", Path: "/v1/agent-releases", Table: agentReleaseTable,
			Example: "  prego agent release create --signed signed.json --percent 5,50 --soak 1h",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&file, "signed", "", "file with the signed release")
				f.IntSliceVar(&percents, "percent", nil, "rings, as percentages of the servers; the rest comes last (default: 5)")
				f.DurationVar(&soak, "soak", 0, "how long a ring runs the release before the next one begins")
				required(cmd, "signed")
			},
			Body: func(*call) (any, error) {
				var in server.CreateAgentReleaseRequest
				b, err := os.ReadFile(file)
				if err == nil {
					err = json.Unmarshal(b, &in.Signed)
				}
				if err != nil {
					return nil, fmt.Errorf("--signed: %w", err)
				}
				if len(percents) == 0 {
					percents = []int{5}
				}
				for _, n := range percents {
					in.Rings = append(in.Rings, server.ReleaseRing{Name: fmt.Sprintf("first-%d", n), Percent: n, SoakSeconds: int(soak / time.Second)})
				}
				in.Rings = append(in.Rings, server.ReleaseRing{Name: "rest"})
				return in, nil
			},
			Say: func(_ *call, r api.AgentRelease) string {
				return strings.TrimSpace(fmt.Sprintf("created: release %s of the agent; start it with prego agent release start %s", r.Version, r.Version))
			},
		},
		List[api.AgentRelease]{Short: "List releases of the agent, newest first", Path: "/v1/agent-releases", Items: "agent_releases", Filters: "status", Values: map[string][]string{"status": words(server.ReleaseStatuses())}, Sorts: "created_at", Table: agentReleaseTable},
		Show[api.AgentRelease]{
			Use: "show AGENT-RELEASE…", Short: "Show releases of the agent with their servers", Path: "/v1/agent-releases/{agent-release}", Table: agentReleaseTable, Watch: watchAgentRelease,
			After: func(in *call, r api.AgentRelease) {
				for _, s := range r.Servers {
					fmt.Fprintln(in.w, "  "+agentLine(s))
				}
			},
		},
		watchAgentRelease,
		agentReleaseTurn("start", "Deploy a release of the agent, ring by ring; also one that was paused or has stopped"),
		agentReleaseTurn("pause", "Stop a release of the agent before the next server"),
		agentReleaseTurn("cancel", "Cancel a release of the agent; servers that run it keep it"),
	))
	return cmd
}
