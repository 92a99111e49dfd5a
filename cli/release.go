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

// benchLine reports the state of a server's update.
func benchLine(s api.ReleaseServer) string {
	text := fmt.Sprintf("  %-22s %-10s %s", s.ServerId, s.Ring, s.Status)
	if s.Phase != nil {
		text += ", " + *s.Phase
	}
	if s.Sites > 0 && s.OfflineSeconds > 0 {
		text += fmt.Sprintf(", %d sites, offline %.1f s", s.Sites, s.OfflineSeconds)
	}
	return text + why(s.Reason, s.Message)
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
	Wanted: func(_ *call, r api.StackRelease) bool { return r.Status != string(server.ReleaseStopped) },
	Is: func(r api.StackRelease) standing {
		return standing{fmt.Sprint("release ", r.Name), r.Status, r.Reason, r.Message}
	},
	Done: func(_ *call, r api.StackRelease) string { return fmt.Sprintf("release %s is %s", r.Name, r.Status) },
}

var releaseColumns = computed(map[string]func(api.StackRelease) string{
	"updated": func(r api.StackRelease) string {
		return updated(r.Servers, func(s api.ReleaseServer) bool {
			return s.Status == string(server.BenchDone) || s.Status == string(server.BenchSkipped)
		})
	},
	"ring_names": func(r api.StackRelease) string {
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
		return strings.Join(out, ", ")
	},
})

var createRelease = hook{
	flags: func(_ *cobra.Command, f *pflag.FlagSet) {
		f.StringSlice("canary", nil, "tenants whose servers come first")
		f.StringSlice("ring", nil, "rings after the canaries, as name=percent; the rest comes last (default: early=5)")
		f.Duration("soak", 0, "how long a ring runs the release before the next ring starts")
	},
	body: func(in *call, body object) (any, error) {
		tenants, _ := in.Flags().GetStringSlice("canary")
		shares, _ := in.Flags().GetStringSlice("ring")
		soak, _ := in.Flags().GetDuration("soak")
		canaries := prego.IDs[prego.TenantID](tenants)
		var rings []server.ReleaseRing
		switch {
		case len(shares) > 0:
			if len(canaries) > 0 {
				rings = append(rings, server.ReleaseRing{Name: "canary", Tenants: canaries})
			}
			for _, text := range shares {
				ring := server.ReleaseRing{}
				name, percent, _ := strings.Cut(text, "=")
				if _, err := fmt.Sscanf(percent, "%d", &ring.Percent); err != nil {
					return nil, usagef("--ring must be name=percent, like early=5")
				}
				ring.Name = name
				rings = append(rings, ring)
			}
			rings = append(rings, server.ReleaseRing{Name: "rest"})
		case len(canaries) > 0 || soak > 0:
			rings = server.DefaultRings(canaries)
		default:
			return body, nil
		}
		for i := range rings[:len(rings)-1] {
			rings[i].SoakSeconds = int(soak / time.Second)
		}
		body["rings"] = rings
		return body, nil
	},
}

var showRelease = hook{watch: watchRelease, after: more(func(in *call, r api.StackRelease) error {
	for _, s := range r.Servers {
		fmt.Fprintln(in.w, benchLine(s))
	}
	return nil
})}
