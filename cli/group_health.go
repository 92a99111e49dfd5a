package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/workload"
)

// healthFlags describe the health check of a release. A flag of another kind replaces
// the check, the others change it.
type healthFlags struct {
	path                           string
	command                        []string
	tcp, port, retries             int
	interval, timeout, startPeriod time.Duration
	none                           bool
}

func (h *healthFlags) add(cmd *cobra.Command, f *pflag.FlagSet) {
	f.StringVar(&h.path, "health-http", "", "it is healthy when GET of this path answers with 200 to 399")
	f.IntVar(&h.tcp, "health-tcp", 0, "it is healthy when a connection to this port can be opened")
	f.StringSliceVar(&h.command, "health-command", nil, "it is healthy when this program in the container, with its arguments after commas, exits with 0")
	f.IntVar(&h.port, "health-port", 0, "port of --health-http; the first --port if absent")
	f.DurationVar(&h.interval, "health-interval", 0, "time between two checks (5s if absent)")
	f.DurationVar(&h.timeout, "health-timeout", 0, "time that one check may take (5s if absent)")
	f.IntVar(&h.retries, "health-retries", 0, "failures in a row after which it is unhealthy (3 if absent)")
	f.DurationVar(&h.startPeriod, "health-start-period", 0, "time after the start in which failures don't count")
	f.BoolVar(&h.none, "no-health", false, "no check: it is healthy once it has run for a few seconds")
	cmd.MarkFlagsMutuallyExclusive("health-http", "health-tcp", "health-command", "no-health")
	for _, name := range []string{"health-http", "health-tcp", "health-command", "no-health"} {
		cmd.MarkFlagsMutuallyExclusive("file", name)
	}
}

// given reports whether any of the flags was given.
func (h *healthFlags) given(in *call) bool {
	found := false
	in.Flags().Visit(func(f *pflag.Flag) { found = found || strings.HasPrefix(f.Name, "health-") || f.Name == "no-health" })
	return found
}

// change changes the health check of a spec by the given flags.
func (h *healthFlags) change(in *call, s *workload.Spec) error {
	if !h.given(in) {
		return nil
	}
	if h.none {
		s.Health = nil
		return nil
	}
	var c workload.HealthCheck
	if s.Health != nil {
		c = *s.Health
	}
	kind := func(k workload.HealthKind) {
		c.Kind, c.Path, c.Port, c.Command = k, "", 0, nil
	}
	switch {
	case in.given("health-http"):
		kind(workload.HealthHTTP)
		c.Path = h.path
	case in.given("health-tcp"):
		kind(workload.HealthTCP)
		c.Port = h.tcp
	case in.given("health-command"):
		kind(workload.HealthCommand)
		c.Command = h.command
	case s.Health == nil:
		return usagef("there is no health check to change; give --health-http, --health-tcp or --health-command")
	}
	in.apply(changes{
		"health-port": set(&c.Port, &h.port), "health-retries": set(&c.Retries, &h.retries), "health-interval": wholeSeconds(&c.IntervalSeconds, &h.interval),
		"health-timeout": wholeSeconds(&c.TimeoutSeconds, &h.timeout), "health-start-period": wholeSeconds(&c.StartPeriodSeconds, &h.startPeriod),
	})
	s.Health = &c
	return nil
}

// wholeSeconds is the change that copies a duration, rounded up.
func wholeSeconds(to *int, flag *time.Duration) func() {
	return func() { *to = int((*flag + time.Second - 1) / time.Second) }
}
