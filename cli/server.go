package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var serverColumns = computed(map[string]func(api.Server) string{
	"host": hostOf,
	"holds": func(s api.Server) string {
		return textOf(s.Holds, func(u api.ServerUse) string {
			return server.Use{Tenants: u.Tenants, Instances: u.Instances, Volumes: u.Volumes}.String()
		})
	},
	"tags":    tagsOf,
	"patches": func(s api.Server) string { return textOf(s.Patches, patchesOf) },
})

var activationColumns = computed(map[string]func(api.ActivationStats) string{
	"in time": func(s api.ActivationStats) string {
		return fmt.Sprintf("%.1f %%", 100*float64(s.InTime)/float64(s.Servers))
	},
})

// watchServer follows a server until it has a status.
func watchServer(wanted server.Status) Watch[api.Server] {
	return Watch[api.Server]{
		Use: "watch SERVER", Short: "Follow a server until its operations are done", Path: "/v1/servers/{server}", Again: "prego server watch {server}",
		Lines: serverLines, Doing: func(s api.Server) string { return s.ServerId + " is " + string(s.Status) },
		Rests: func(s api.Server) bool {
			return s.Status == wanted || s.Status != server.Provisioning && s.Status != server.Decommissioning
		},
		Wanted: func(_ *call, s api.Server) bool { return wanted == "" || s.Status == wanted },
		Is: func(s api.Server) standing {
			return standing{"server " + s.ServerId, string(s.Status), s.StatusReason, s.StatusMessage}
		},
		Done: func(_ *call, s api.Server) string { return fmt.Sprintf("server %s is %s", s.ServerId, s.Status) },
	}
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

// why formats a reason and a message, each if there is one.
func why(parts ...*string) string {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = deref(p)
	}
	return reasons(texts...)
}

func reasons(parts ...string) string {
	out := ""
	for _, s := range parts {
		if s != "" {
			out += map[bool]string{true: ": ", false: ", "}[out == ""] + oneLine(s)
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

// tagsOf formats a server's tags, and the host's tags if they differ.
func tagsOf(s api.Server) string {
	tags := strings.Join(s.Tags, ", ")
	if deref(s.Agent.TagsDiffer) && s.Agent.Tags != nil {
		tags += " (its agent reports: " + strings.Join(*s.Agent.Tags, ", ") + ")"
	}
	return tags
}

var showServer = hook{watch: watchServer(""), after: more(func(in *call, s api.Server) error {
	timeline(in, serverLines(s))
	return nil
})}

// importText prints the document that a host needs, and the accepted differences.
func importText(in *call, a api.ImportAccepted) string {
	fmt.Fprintf(in.ErrOrStderr(), "accepted: server %s, workflow %s; apply this cloud-init document on the host:\n", a.ServerId, a.WorkflowId)
	return strings.TrimSuffix(a.Bootstrap, "\n")
}
