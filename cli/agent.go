package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

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
	Doing:  func(r api.AgentRelease) string { return fmt.Sprintf("%s is %s", r.Version, r.Status) },
	Rests:  func(r api.AgentRelease) bool { return server.ReleaseStatus(r.Status).Rests() },
	Wanted: func(_ *call, r api.AgentRelease) bool { return r.Status != string(server.ReleaseStopped) },
	Is: func(r api.AgentRelease) standing {
		return standing{fmt.Sprintf("release %s of the agent", r.Version), r.Status, r.Reason, r.Message}
	},
}

var agentReleaseColumns = computed(map[string]func(api.AgentRelease) string{
	"updated": func(r api.AgentRelease) string {
		return updated(r.Servers, func(s api.AgentReleaseServer) bool { return s.Status == string(server.AgentUpdated) })
	},
})

// updated counts the servers of a release that have it.
func updated[S any](servers []S, done func(S) bool) string {
	if len(servers) == 0 {
		return ""
	}
	n := 0
	for _, s := range servers {
		if done(s) {
			n++
		}
	}
	return fmt.Sprintf("%d of %d servers", n, len(servers))
}

var createAgentRelease = hook{
	flags: func(_ *cobra.Command, f *pflag.FlagSet) {
		f.IntSlice("percent", []int{5}, "rings, as percentages of the servers; the rest comes last")
		f.Duration("soak", 0, "how long a ring runs the release before the next ring starts")
	},
	body: func(in *call, body object) (any, error) {
		percents, err := in.Flags().GetIntSlice("percent")
		if err != nil {
			return nil, err
		}
		soak, err := in.Flags().GetDuration("soak")
		var rings []server.ReleaseRing
		for _, n := range percents {
			rings = append(rings, server.ReleaseRing{Name: fmt.Sprintf("first-%d", n), Percent: n, SoakSeconds: int(soak / time.Second)})
		}
		body["rings"] = append(rings, server.ReleaseRing{Name: "rest"})
		return body, err
	},
}

var showAgentRelease = hook{watch: watchAgentRelease, after: more(func(in *call, r api.AgentRelease) error {
	for _, s := range r.Servers {
		fmt.Fprintln(in.w, "  "+agentLine(s))
	}
	return nil
})}
