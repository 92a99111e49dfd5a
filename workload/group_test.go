package workload_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

func TestIDsOfInstances(t *testing.T) {
	t.Parallel()
	group := workload.NewGroupID("0123456789ab")
	for _, n := range []int64{1, 10_000, 999_999_999_999_999} {
		id := workload.NewInstanceID(prego.GroupID(group), n)
		require.NoError(t, workload.ValidateInstanceID(id))
		require.LessOrEqual(t, len(id), 32, "it is also a container's name")
	}
	for _, bad := range []string{"", "ins-", "ins-0123456789ab-0", "ins-0123456789ab-01", "grp-0123456789ab", "ins-0123456789AB-1"} {
		require.ErrorContains(t, workload.ValidateInstanceID(bad), "instance_id must be the id of an instance", bad)
	}
}

func TestWorkloadSpec(t *testing.T) {
	t.Parallel()
	good := func() workload.Spec {
		return workload.Spec{Image: "r.example.com:5000/web@sha256:" + strings.Repeat("ab", 32), MemoryLimitBytes: 64 << 20, CPURequest: 0.5, Ports: []int{80}, Volumes: []string{"/data"}, Constraint: &prego.Constraint{Require: []string{"GPU"}}}
	}
	s := good()
	require.NoError(t, s.Validate("spec"))
	require.Equal(t, []string{"gpu"}, s.Constraint.Require)
	for field, break1 := range map[string]func(*workload.Spec){
		"spec.image":                 func(s *workload.Spec) { s.Image = "a b" },
		"spec.memory_limit_bytes":    func(s *workload.Spec) { s.MemoryLimitBytes = 0 },
		"spec.cpu_request":           func(s *workload.Spec) { s.CPURequest = -0.1 },
		"spec.ports[0]":              func(s *workload.Spec) { s.Ports = []int{0} },
		"spec.ports[1]":              func(s *workload.Spec) { s.Ports = []int{80, 80} },
		"spec.volumes[0]":            func(s *workload.Spec) { s.Volumes = []string{"/data/../etc"} },
		"spec.volumes[1]":            func(s *workload.Spec) { s.Volumes = []string{"/data", "/da:ta"} },
		"spec.command[0]":            func(s *workload.Spec) { s.Command = []string{"a\x00"} },
		"spec.drain_seconds":         func(s *workload.Spec) { s.DrainSeconds = 3601 },
		"spec.stop_timeout_seconds":  func(s *workload.Spec) { s.StopTimeoutSeconds = 301 },
		"spec.start_timeout_seconds": func(s *workload.Spec) { s.StartTimeoutSeconds = 601 },
		"spec.constraint.require":    func(s *workload.Spec) { s.Constraint.Require = []string{"a", "A"} },
	} {
		s := good()
		break1(&s)
		var invalid *prego.Error
		require.ErrorAs(t, s.Validate("spec"), &invalid, field)
		require.Equal(t, field, invalid.Field)
	}
	other := good()
	other.Constraint = nil
	require.True(t, good().Equal(other), "the constraint is the group's")
	other.Command = []string{"x"}
	require.False(t, good().Equal(other))
}

func TestTheContainerOfAnInstance(t *testing.T) {
	t.Parallel()
	s := workload.Spec{Image: "web:1", MemoryLimitBytes: 64<<20 + 1, CPURequest: 1.5, Health: &workload.HealthCheck{Kind: workload.HealthCommand, Command: []string{"/check"}, StartPeriodSeconds: 7}}
	c := s.Container("ins-0123456789ab-1", "grp-0123456789ab", []workload.PortBinding{{ContainerPort: 80, HostPort: 20_000}}, []string{"/mnt/HC_Volume_1:/data"})
	require.Equal(t, "ins-0123456789ab-1", c.Name)
	require.Equal(t, c.Name, c.Labels[workload.LabelInstance])
	require.EqualValues(t, 64<<20+1, c.MemoryBytes, "to the byte")
	require.EqualValues(t, 1536, c.CPUShares)
	require.Equal(t, server.RestartNo, c.Restart)
	require.Equal(t, []string{"0.0.0.0:20000:80/tcp"}, c.Ports)
	require.Equal(t, 7*time.Second, c.Health.Grace.D())
	require.Equal(t, 90*time.Second, c.StartTimeout.D())
	require.True(t, strings.HasPrefix(c.Mounts[0], "/mnt/"))
	require.Equal(t, 10*time.Second, c.StopTimeout.D())
	s.CPURequest, s.StopTimeoutSeconds = 0, 45
	require.Equal(t, 45*time.Second, s.Container("ins-0123456789ab-1", "g", nil, nil).StopTimeout.D())
	require.EqualValues(t, 2, s.Container("ins-0123456789ab-1", "g", nil, nil).CPUShares, "the engine's least")
}

func TestInstancesListenOnThePrivateAddress(t *testing.T) {
	t.Parallel()
	c := workload.Spec{Image: "web:1"}.Container("ins-0123456789ab-1", "grp-a", []workload.PortBinding{{ContainerPort: 80, HostPort: 20_000}}, nil)
	on := workload.OnHost(c, "env-a", "10.64.0.2")
	require.Equal(t, []any{[]string{"10.64.0.2:20000:80/tcp"}, "prego-env-env-a", "prego-env-env-a"}, []any{on.Ports, on.Network, on.Labels[server.LabelNetwork]})
	c.Ports = []string{"0.0.0.0:20000:80/tcp"}
	require.Equal(t, []string{"0.0.0.0:20000:80/tcp"}, workload.OnHost(c, "env-a", "").Ports, "a server without one")
}

// TestAStackOfAGroupIsARequiredTag: both forms are the same spec.
func TestAStackOfAGroupIsARequiredTag(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		constraint *prego.Constraint
		stack      string
		want       []string
		refused    string // field
	}{
		"alone":             {nil, "Lucid64", []string{"stack:lucid64"}, ""},
		"beside another":    {&prego.Constraint{Require: []string{"gpu"}}, "blue", []string{"gpu", "stack:blue"}, ""},
		"required already":  {&prego.Constraint{Require: []string{"stack:blue"}}, "blue", []string{"stack:blue"}, ""},
		"none":              {&prego.Constraint{Require: []string{"gpu"}}, "", []string{"gpu"}, ""},
		"not printable":     {nil, "a b", nil, "spec.stack"},
		"longer than a tag": {nil, strings.Repeat("x", 58), nil, "spec.stack"},
	} {
		s := workload.Spec{Image: "web:1", MemoryLimitBytes: 64 << 20, CPURequest: 0.5, Constraint: tc.constraint, Stack: tc.stack}
		err := s.Validate("spec")
		if tc.refused != "" {
			var invalid *prego.Error
			require.ErrorAs(t, err, &invalid, name)
			require.Equal(t, tc.refused, invalid.Field, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, tc.want, s.Constraint.Require, name)
		require.Empty(t, s.Stack, name)
	}
}
