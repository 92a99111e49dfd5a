package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func stackOf(c ...ContainerSpec) Stack {
	s := Stack{prego.RoleApp: c}
	for _, r := range prego.Roles() {
		if r != prego.RoleApp {
			s[r] = []ContainerSpec{{Name: "x", Image: "y"}}
		}
	}
	return s
}

func TestStacksThatAreRefused(t *testing.T) {
	t.Parallel()
	require.NoError(t, stackOf(ContainerSpec{Name: "a", Image: "b", Volumes: []string{"data:/data", "/srv/x:/x:ro"}, Ports: []string{"127.0.0.1:80:80"}}).Validate())
	require.ErrorContains(t, Stack{prego.RoleApp: {{Name: "a", Image: "b"}}}.Validate(), "no container")
	with := stackOf(ContainerSpec{Name: "a", Image: "b"})
	with["web"] = with[prego.RoleApp]
	require.ErrorContains(t, with.Validate(), "unknown role")
	for _, tc := range []struct {
		want      string
		container ContainerSpec
	}{
		{"the name must be of a-z, 0-9 and dashes", ContainerSpec{Name: "A b", Image: "b"}},
		{"image must be an image like \"registry.example.com/team/app:v1\": it is empty", ContainerSpec{Name: "a"}},
		{`the name "${bench_image" must be parts`, ContainerSpec{Name: "a", Image: "${bench_image"}},
		{"memory_mb must be at least 6", ContainerSpec{Name: "a", Image: "b", MemoryMB: 1}},
		{"restart must be no, on-failure", ContainerSpec{Name: "a", Image: "b", Restart: "often"}},
		{"labels: names that begin with prego.", ContainerSpec{Name: "a", Image: "b", Labels: map[string]string{"prego.spec": "x"}}},
		{`env: "A B" is not a valid variable name`, ContainerSpec{Name: "a", Image: "b", Env: map[string]string{"A B": ""}}},
		{`ports: "80:80" must be address:port:container-port`, ContainerSpec{Name: "a", Image: "b", Ports: []string{"80:80"}}},
		{`"/var/run/docker.sock:/s": a directory of the host must be below`, ContainerSpec{Name: "a", Image: "b", Volumes: []string{"/var/run/docker.sock:/s"}}},
		{`"/:/host": a directory of the host must be below`, ContainerSpec{Name: "a", Image: "b", Volumes: []string{"/:/host"}}},
		{`"/var/lib/prego-agent:/x": a directory of the host must be below`, ContainerSpec{Name: "a", Image: "b", Volumes: []string{"/var/lib/prego-agent:/x"}}},
		{`"/srv/../etc:/x": a directory of the host must be below`, ContainerSpec{Name: "a", Image: "b", Volumes: []string{"/srv/../etc:/x"}}},
		{`depends on "z", which does not exist`, ContainerSpec{Name: "a", Image: "b", After: []string{"z"}}},
		{"dependencies are circular", ContainerSpec{Name: "a", Image: "b", After: []string{"a"}}},
		{`probe: unknown kind "shell"`, ContainerSpec{Name: "a", Image: "b", Probe: &ContainerProbe{Kind: "shell"}}},
		{"probe: a port, 1 to 65535, is required for kinds redis and tcp", ContainerSpec{Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeRedis}}},
		{`probe: "/bin/sh" must be the absolute path of a program that is no shell`, ContainerSpec{Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeProgram, Program: "/bin/sh"}}},
		{`probe: "/usr/local/bin/bench" must be the absolute path of a program that is no shell and no client of the application`, ContainerSpec{Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeProgram, Program: "/usr/local/bin/bench"}}},
		{"probe: a program is required for kind program, and not allowed for others", ContainerSpec{Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeTCP, Port: 1, Program: "/x"}}},
		{"health must have a command", ContainerSpec{Name: "a", Image: "b", Health: &ContainerHealth{}}},
		{"stop_timeout must be at most 90s", ContainerSpec{Name: "a", Image: "b", StopTimeout: prego.Duration(1e12)}},
	} {
		require.ErrorContains(t, stackOf(tc.container).Validate(), tc.want)
	}
	require.ErrorContains(t, stackOf(ContainerSpec{Name: "a", Image: "b"}, ContainerSpec{Name: "a", Image: "c"}).Validate(), "duplicate container")
}

// TestProbesTakeNoArguments writes down what a general exec would: none of it is
// a probe.
func TestProbesTakeNoArguments(t *testing.T) {
	t.Parallel()
	for _, p := range []string{
		`{"kind":"program","program":"/probe","args":["x"]}`, `{"kind":"exec","command":["bench","migrate"]}`, `{"command":["sh","-c","id"]}`,
	} {
		dec := json.NewDecoder(strings.NewReader(p))
		dec.DisallowUnknownFields()
		var got ContainerProbe
		require.ErrorContains(t, dec.Decode(&got), "unknown field", p)
	}
	for _, program := range []string{"/probe -c", "probe", "/a/../bin/sh", "/usr/bin/env", "/usr/bin/python3"} {
		p := ContainerProbe{Kind: ProbeProgram, Program: program}
		if program == "/probe -c" {
			require.Equal(t, []string{program}, p.Argv(), "one word, however it looks")
			continue
		}
		require.ErrorContains(t, p.validate(), "no shell and no client of the application's", program)
	}
}

func TestAStackIsFilledInInOrder(t *testing.T) {
	t.Parallel()
	s := stackOf(
		ContainerSpec{Name: "web", Image: "${bench_image}", Env: map[string]string{"P": "x${secret:db}"}, After: []string{"db", "cache"}},
		ContainerSpec{Name: "cache", Image: "c", Command: []string{"run", "${role}"}},
		ContainerSpec{Name: "db", Image: "d"},
	)
	secret := func(name string) string { return "hidden-" + name }
	got, err := s.For(prego.RoleApp, map[string]string{"bench_image": "b:1", "role": "app"}, secret)
	require.NoError(t, err)
	require.Equal(t, []string{"cache", "db", "web"}, []string{got[0].Name, got[1].Name, got[2].Name})
	require.Equal(t, []string{"run", "app"}, got[0].Command)
	require.Equal(t, "b:1", got[2].Image)
	require.Equal(t, "xhidden-db", got[2].Env["P"])
	require.Equal(t, "it said x"+prego.Redacted, got[2].Redact("it said xhidden-db"))
	require.Equal(t, "x${secret:db}", s[prego.RoleApp][0].Env["P"], "the declaration stays as it is")
	require.Equal(t, "${role}", s[prego.RoleApp][1].Command[1])
	_, err = s.For(prego.RoleApp, map[string]string{"role": "app"}, secret)
	require.ErrorContains(t, err, "unknown reference ${bench_image}")
}

func TestStacksKnowThePrivateAddress(t *testing.T) {
	t.Parallel()
	s := stackOf(ContainerSpec{Name: "db", Image: "b", Ports: []string{"${private_address}:3306:3306", "127.0.0.1:1:1"}, Command: []string{"--bind=${private_address}"}})
	require.NoError(t, s.Validate())
	require.True(t, s.Refers(prego.RoleApp, "private_address"))
	require.False(t, s.Refers(prego.RoleApp, "address"))
	require.False(t, s.Refers(prego.RoleNode, "private_address"))
	for range 2 { // the declaration stays as it is
		specs, err := s.For(prego.RoleApp, map[string]string{"private_address": "10.64.0.2"}, nil)
		require.NoError(t, err)
		require.Equal(t, []string{"10.64.0.2:3306:3306", "127.0.0.1:1:1"}, specs[0].Ports)
		require.Equal(t, []string{"--bind=10.64.0.2"}, specs[0].Command)
	}
	for _, c := range []ContainerSpec{{Image: "${private_address}/x"}, {Env: map[string]string{"A": "${private_address}"}}} {
		require.True(t, stackOf(c).Refers(prego.RoleApp, "private_address"))
	}
	require.Error(t, stackOf(ContainerSpec{Name: "a", Image: "b", Ports: []string{"${other}:1:1"}}).Validate())
}
