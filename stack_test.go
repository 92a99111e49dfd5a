package prego

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func stackOf(c ...ContainerSpec) Stack {
	s := Stack{RoleApp: c}
	for _, r := range Roles() {
		if r != RoleApp {
			s[r] = []ContainerSpec{{Name: "x", Image: "y"}}
		}
	}
	return s
}

func TestStacksThatAreRefused(t *testing.T) {
	t.Parallel()
	require.NoError(t, stackOf(ContainerSpec{Name: "a", Image: "b", Volumes: []string{"data:/data", "/srv/x:/x:ro"}, Ports: []string{"127.0.0.1:80:80"}}).Validate())
	require.ErrorContains(t, Stack{RoleApp: {{Name: "a", Image: "b"}}}.Validate(), "no container")
	with := stackOf(ContainerSpec{Name: "a", Image: "b"})
	with["web"] = with[RoleApp]
	require.ErrorContains(t, with.Validate(), "no role")
	for name, c := range map[string]ContainerSpec{
		"name":        {Name: "A b", Image: "b"},
		"image":       {Name: "a"},
		"memory":      {Name: "a", Image: "b", MemoryMB: 1},
		"restart":     {Name: "a", Image: "b", Restart: "often"},
		"label":       {Name: "a", Image: "b", Labels: map[string]string{"prego.spec": "x"}},
		"env":         {Name: "a", Image: "b", Env: map[string]string{"A B": ""}},
		"open port":   {Name: "a", Image: "b", Ports: []string{"80:80"}},
		"socket":      {Name: "a", Image: "b", Volumes: []string{"/var/run/docker.sock:/s"}},
		"root":        {Name: "a", Image: "b", Volumes: []string{"/:/host"}},
		"identity":    {Name: "a", Image: "b", Volumes: []string{"/var/lib/prego-agent:/x"}},
		"dots":        {Name: "a", Image: "b", Volumes: []string{"/srv/../etc:/x"}},
		"after":       {Name: "a", Image: "b", After: []string{"z"}},
		"circle":      {Name: "a", Image: "b", After: []string{"a"}},
		"probe kind":  {Name: "a", Image: "b", Probe: &ContainerProbe{Kind: "shell"}},
		"probe port":  {Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeRedis}},
		"a shell":     {Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeProgram, Program: "/bin/sh"}},
		"bench":       {Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeProgram, Program: "/usr/local/bin/bench"}},
		"two things":  {Name: "a", Image: "b", Probe: &ContainerProbe{Kind: ProbeTCP, Port: 1, Program: "/x"}},
		"no health":   {Name: "a", Image: "b", Health: &ContainerHealth{}},
		"stop timout": {Name: "a", Image: "b", StopTimeout: Duration(1e12)},
	} {
		require.Error(t, stackOf(c).Validate(), name)
	}
	require.ErrorContains(t, stackOf(ContainerSpec{Name: "a", Image: "b"}, ContainerSpec{Name: "a", Image: "c"}).Validate(), "two containers")
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
		require.Error(t, dec.Decode(&got), p)
	}
	for _, program := range []string{"/probe -c", "probe", "/a/../bin/sh", "/usr/bin/env", "/usr/bin/python3"} {
		p := ContainerProbe{Kind: ProbeProgram, Program: program}
		if program == "/probe -c" {
			require.Equal(t, []string{program}, p.Argv(), "one word, however it looks")
			continue
		}
		require.Error(t, p.validate(), program)
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
	got, err := s.For(RoleApp, map[string]string{"bench_image": "b:1", "role": "app"}, secret)
	require.NoError(t, err)
	require.Equal(t, []string{"cache", "db", "web"}, []string{got[0].Name, got[1].Name, got[2].Name})
	require.Equal(t, []string{"run", "app"}, got[0].Command)
	require.Equal(t, "b:1", got[2].Image)
	require.Equal(t, "xhidden-db", got[2].Env["P"])
	require.Equal(t, "it said x"+Redacted, got[2].Redact("it said xhidden-db"))
	require.Equal(t, "x${secret:db}", s[RoleApp][0].Env["P"], "the declaration stays as it is")
	require.Equal(t, "${role}", s[RoleApp][1].Command[1])
	_, err = s.For(RoleApp, map[string]string{"role": "app"}, secret)
	require.ErrorContains(t, err, "nothing is called ${bench_image}")
}
