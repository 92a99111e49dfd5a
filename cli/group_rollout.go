package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/workload"
)

// rolloutFlags change a group's rollout policy.
type rolloutFlags struct {
	surge, unavailable string
	deadline           time.Duration
	failures           int
	rollback           bool
}

func (r *rolloutFlags) add(f *pflag.FlagSet) {
	f.StringVar(&r.surge, "max-surge", "", "instances in addition to the replicas during a rollout, as 2 or 25% (1 at first)")
	f.StringVar(&r.unavailable, "max-unavailable", "", "replicas that may be missing during a rollout, as 2 or 25% (0 at first)")
	f.DurationVar(&r.deadline, "progress-deadline", 0, "a rollout fails after this time without another healthy instance (10m at first)")
	f.IntVar(&r.failures, "max-failures", 0, "a rollout fails when more of its instances than this have failed (2 at first)")
	f.BoolVar(&r.rollback, "auto-rollback", true, "go back to the last good release when a rollout fails")
}

// change is what the given flags change, nil for nothing.
func (r *rolloutFlags) change(in *call) (*workload.RolloutChange, error) {
	var c workload.RolloutChange
	var surge, unavailable workload.Share
	var deadline int
	flags := changes{
		"max-surge":         func() { c.MaxSurge = &surge },
		"max-unavailable":   func() { c.MaxUnavailable = &unavailable },
		"progress-deadline": func() { wholeSeconds(&deadline, &r.deadline)(); c.ProgressDeadlineSeconds = &deadline },
		"max-failures":      func() { c.MaxFailures = &r.failures },
		"auto-rollback":     func() { c.AutoRollback = &r.rollback },
	}
	if !in.changed(flags) {
		return nil, nil
	}
	in.apply(flags)
	for name, to := range map[string]*workload.Share{"max-surge": c.MaxSurge, "max-unavailable": c.MaxUnavailable} {
		if to == nil {
			continue
		}
		s, err := workload.ParseShare(in.Flags().Lookup(name).Value.String())
		if err != nil {
			return nil, usagef("--%s: %w", name, err)
		}
		*to = s
	}
	return &c, nil
}

var rolloutTable = Table[api.Rollout]{
	ID: "rollout", Columns: "release, kind, outcome, image, created_by: by, created_at: age, why", Spare: "why, by, image", More: "rollout, reason, spec_digest, ended_at, created_at",
	Computed: map[string]func(api.Rollout) any{
		"image": func(r api.Rollout) any { return r.Spec.Image },
		"why":   func(r api.Rollout) any { return strings.Trim(deref(r.Reason)+": "+deref(r.Message), ": ") },
	},
}

// rolloutVerbs are those about what a group ran, and runs next.
func rolloutVerbs() []verb {
	to := 0
	return []verb{
		List[api.Rollout]{
			Use: "rollouts GROUP", Short: "List the rollouts of a process group, newest first", Path: "/v1/groups/{group}/rollouts", Items: "rollouts",
			Filters: "outcome", Sorts: "created_at", Table: rolloutTable,
		},
		Action[api.ProcessGroup]{
			Use: "rollback GROUP", Short: "Bring an earlier release back", Path: "/v1/groups/{group}/rollback", Table: groupTable, Watch: groupWatch,
			Example: "  prego group rollback web --to 3 --watch",
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.IntVar(&to, "to", 0, "release to go back to (the last good one before the present one if absent)")
			},
			Body: func(*call) (any, error) {
				if to == 0 {
					return api.RollBackGroup{}, nil
				}
				return api.RollBackGroup{Release: &to}, nil
			},
		},
		Action[api.ProcessGroup]{Use: "restart GROUP", Short: "Replace all instances by others of the same release, as in a deploy", Path: "/v1/groups/{group}/restart", Table: groupTable, Watch: groupWatch},
		Action[api.ProcessGroup]{Use: "pause GROUP", Short: "Stop replacing instances until the group is resumed", Path: "/v1/groups/{group}/pause", Table: groupTable},
		Action[api.ProcessGroup]{Use: "resume GROUP", Short: "Resume the rollouts of a paused process group", Path: "/v1/groups/{group}/resume", Table: groupTable, Watch: groupWatch},
	}
}
