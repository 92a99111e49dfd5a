package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// HealthKind is what a health check does.
type HealthKind string

// The kinds of health checks.
const (
	HealthHTTP    HealthKind = "http"    // GET the path; 200 to 399 is healthy
	HealthTCP     HealthKind = "tcp"     // open a connection
	HealthCommand HealthKind = "command" // run a program in the container; 0 is healthy
)

// HealthCheck describes how a host checks the health of an instance. Validate fills
// in the defaults, so that a stored check has them all.
type HealthCheck struct {
	Kind HealthKind `json:"kind"` // command if absent and there is one
	// Path is of kind http, "/" if absent.
	Path string `json:"path,omitempty"`
	// Port is of kinds http and tcp: a port of the spec, the first if absent.
	Port int `json:"port,omitempty"`
	// Command is of kind command: a program with its arguments, no shell's line.
	Command         []string `json:"command,omitempty"`
	IntervalSeconds int      `json:"interval_seconds,omitempty"` // between two checks, 5 if absent
	TimeoutSeconds  int      `json:"timeout_seconds,omitempty"`  // of one check, 5 if absent
	// Retries is how many checks in a row must fail before the instance is unhealthy, 3
	// if absent.
	Retries int `json:"retries,omitempty"`
	// StartPeriodSeconds is the time after the start when failures don't count.
	StartPeriodSeconds int `json:"start_period_seconds,omitempty"`
}

// Limits and defaults of health checks.
const (
	maxHealthInterval     = 300
	maxHealthTimeout      = 60
	maxHealthRetries      = 20
	maxHealthPath         = 1024
	defaultHealthInterval = 5
	defaultHealthTimeout  = 5
	defaultHealthRetries  = 3
)

// Interval is the time between two checks.
func (h HealthCheck) Interval() time.Duration { return seconds(h.IntervalSeconds) }

// Timeout is how long one check may take.
func (h HealthCheck) Timeout() time.Duration { return seconds(h.TimeoutSeconds) }

// StartPeriod is the time after the start when failures don't count.
func (h HealthCheck) StartPeriod() time.Duration { return seconds(h.StartPeriodSeconds) }

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// validate checks a health check of a spec with these ports, and fills in the
// defaults. Names of fields start with field.
func (h *HealthCheck) validate(field string, ports []int) error {
	if h.Kind == "" && len(h.Command) > 0 {
		h.Kind = HealthCommand
	}
	if err := h.validateKind(field, ports); err != nil {
		return err
	}
	for _, f := range []struct {
		name             string
		of               *int
		least, most, def int
	}{
		{"interval_seconds", &h.IntervalSeconds, 1, maxHealthInterval, defaultHealthInterval},
		{"timeout_seconds", &h.TimeoutSeconds, 1, maxHealthTimeout, defaultHealthTimeout},
		{"retries", &h.Retries, 1, maxHealthRetries, defaultHealthRetries},
		{"start_period_seconds", &h.StartPeriodSeconds, 0, maxStartTimeout, 0},
	} {
		*f.of = cmp.Or(*f.of, f.def)
		if *f.of < f.least || *f.of > f.most {
			return prego.Invalid(field+"."+f.name, fmt.Sprintf("must be %d to %d", f.least, f.most))
		}
	}
	return nil
}

// validateKind checks the fields that depend on the kind.
func (h *HealthCheck) validateKind(field string, ports []int) error {
	network := h.Kind == HealthHTTP || h.Kind == HealthTCP
	switch {
	case !network && h.Kind != HealthCommand:
		return prego.Invalid(field+".kind", "must be http, tcp or command")
	case h.Kind != HealthHTTP && h.Path != "":
		return prego.Invalid(field+".path", "is only for kind http")
	case !network && h.Port != 0:
		return prego.Invalid(field+".port", "is only for kinds http and tcp")
	case network && len(h.Command) > 0:
		return prego.Invalid(field+".command", "is only for kind command")
	case !network && len(h.Command) == 0:
		return prego.Invalid(field+".command", "is required")
	case !network:
		return validateArguments(field+".command", h.Command)
	case len(ports) == 0:
		return prego.Invalid(field+".port", "requires the spec to have ports")
	}
	h.Port = cmp.Or(h.Port, ports[0])
	if !slices.Contains(ports, h.Port) {
		return prego.Invalid(field+".port", "must be one of the spec's ports")
	}
	if h.Kind == HealthTCP {
		return nil
	}
	h.Path = cmp.Or(h.Path, "/")
	visible := func(r rune) bool { return r <= ' ' || r > '~' }
	if !strings.HasPrefix(h.Path, "/") || len(h.Path) > maxHealthPath || strings.ContainsFunc(h.Path, visible) {
		return prego.Invalid(field+".path", "must begin with / and be at most 1024 visible ASCII characters, escaped as in a URL")
	}
	return nil
}
