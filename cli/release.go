package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

var releaseTable = Table[api.StackRelease]{
	ID: "name", Columns: "name, image, status, updated, current, created_at: age, reason, message", Spare: "message, age, current",
	More: "apps, ring_names: rings, run_url: run, created_by, created_at, started_at, finished_at",
	Computed: map[string]func(api.StackRelease) any{
		"updated": func(r api.StackRelease) any {
			if len(r.Servers) == 0 {
				return ""
			}
			done := 0
			for _, s := range r.Servers {
				if s.Status == string(server.BenchDone) || s.Status == string(server.BenchSkipped) {
					done++
				}
			}
			return fmt.Sprintf("%d of %d servers", done, len(r.Servers))
		},
		"ring_names": func(r api.StackRelease) any {
			var out []string
			for _, ring := range r.Rings {
				text := ring.Name
				switch {
				case ring.Percent != nil:
					text += fmt.Sprintf(" %d%%", *ring.Percent)
				case ring.Tenants != nil:
					text += " " + strings.Join(prego.Strings(*ring.Tenants), " ")
				}
				out = append(out, text)
			}
			return out
		},
	},
}

// benchLine says about a server how its update goes.
func benchLine(s api.ReleaseServer) string {
	text := fmt.Sprintf("  %-22s %-10s %s", s.ServerId, s.Ring, s.Status)
	if s.Phase != nil {
		text += ", " + *s.Phase
	}
	if s.Sites > 0 && s.OfflineSeconds > 0 {
		text += fmt.Sprintf(", %d sites, offline %.1f s", s.Sites, s.OfflineSeconds)
	}
	return text + reasons(s.Reason, s.Message)
}

var watchRelease = Watch[api.StackRelease]{
	Use: "watch RELEASE", Short: "Follow a release until it rests", Path: "/v1/releases/{release}", Again: "prego release watch {release}",
	Lines: func(r api.StackRelease) []line {
		var out []line
		for _, s := range r.Servers {
			text := benchLine(s)
			key := fmt.Sprintf("%s %s %s", s.ServerId, s.Status, deref(s.Phase))
			out = append(out, line{key: key, at: time.Now(), text: strings.TrimSpace(text)})
		}
		return out
	},
	Doing: func(r api.StackRelease) string { return fmt.Sprintf("%s is %s", r.Name, r.Status) },
	Rests: func(r api.StackRelease) bool {
		for _, s := range r.Servers {
			if s.Status == string(server.BenchUpdating) {
				return false
			}
		}
		return server.ReleaseStatus(r.Status).Rests()
	},
	Outcome: func(_ *call, r api.StackRelease) error {
		if r.Status == string(server.ReleaseStopped) {
			return fmt.Errorf("release %s is %s%s", r.Name, r.Status, reasons(r.Reason, r.Message))
		}
		return nil
	},
	Done: func(_ *call, r api.StackRelease) string { return fmt.Sprintf("release %s is %s", r.Name, r.Status) },
}

func releaseTurn(verb, short string) Action[api.StackRelease] {
	return Action[api.StackRelease]{
		Use: verb + " RELEASE", Short: short, Path: "/v1/releases/{release}/" + verb, Table: releaseTable, Watch: watchRelease,
		Say: func(_ *call, r api.StackRelease) string { return fmt.Sprintf("release %s is %s", r.Name, r.Status) },
	}
}

func releaseCommand(c *CLI) *cobra.Command {
	var in server.CreateReleaseRequest
	var canaries, rings []string
	var soak time.Duration
	return c.group("release", "Deploy new images to the benches of the fleet, in rings",
		Action[api.StackRelease]{
			Use: "create RELEASE", Short: "Create a release of the stack", Path: "/v1/releases", Table: releaseTable,
			Example: "  prego release create 15.80 --image frappe/erpnext:v15.80.0 --apps frappe=15.80.1,erpnext=15.80.0 --canary t-6vq3nf4w2k8z --soak 1h",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&in.Image, "image", "", "container image of the benches")
				f.StringToStringVar(&in.Apps, "apps", nil, "versions that sites must have afterwards, as app=version")
				f.StringSliceVar(&canaries, "canary", nil, "tenants whose servers come first")
				f.StringSliceVar(&rings, "ring", nil, "rings after the canaries, as name=percent; the rest comes last (default: early=5)")
				f.DurationVar(&soak, "soak", 0, "how long a ring runs the release before the next one begins")
				required(cmd, "image")
			},
			Body: func(call *call) (any, error) {
				in.Name = server.ReleaseName(call.args["release"])
				in.Rings = nil
				if len(rings) > 0 {
					if len(canaries) > 0 {
						in.Rings = append(in.Rings, server.ReleaseRing{Name: "canary", Tenants: prego.IDs[prego.TenantID](canaries)})
					}
					for _, text := range rings {
						ring := server.ReleaseRing{}
						name, percent, _ := strings.Cut(text, "=")
						if _, err := fmt.Sscanf(percent, "%d", &ring.Percent); err != nil {
							return nil, usagef("--ring must be name=percent, like early=5")
						}
						ring.Name = name
						in.Rings = append(in.Rings, ring)
					}
					in.Rings = append(in.Rings, server.ReleaseRing{Name: "rest"})
				} else if len(canaries) > 0 || soak > 0 {
					in.Rings = server.DefaultRings(prego.IDs[prego.TenantID](canaries))
				}
				for i := range in.Rings {
					if i < len(in.Rings)-1 {
						in.Rings[i].SoakSeconds = int(soak / time.Second)
					}
				}
				return in, nil
			},
			Say: func(_ *call, r api.StackRelease) string {
				return fmt.Sprintf("created: release %s of %s; start it with prego release start %s", r.Name, r.Image, r.Name)
			},
		},
		List[api.StackRelease]{Short: "List releases, newest first", Path: "/v1/releases", Items: "releases", Filters: "status", Values: map[string][]string{"status": words(server.ReleaseStatuses())}, Sorts: "created_at", Table: releaseTable},
		Show[api.StackRelease]{
			Use: "show RELEASE…", Short: "Show releases with their servers", Path: "/v1/releases/{release}", Table: releaseTable, Watch: watchRelease,
			After: func(in *call, r api.StackRelease) {
				for _, s := range r.Servers {
					fmt.Fprintln(in.w, benchLine(s))
				}
			},
		},
		watchRelease,
		releaseTurn("start", "Deploy a release, ring by ring"),
		releaseTurn("pause", "Stop a release before the next server; those under way end"),
		releaseTurn("resume", "Resume a release that is paused or has stopped"),
		releaseTurn("cancel", "Cancel a release; servers that have it keep it"),
	)
}
