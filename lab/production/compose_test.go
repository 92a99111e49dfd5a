package production

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// composeFile is docker-compose.yml as Compose renders it: anchors, defaults, variables
// and files of environment are resolved.
type composeFile struct {
	Services map[string]service                 `yaml:"services"`
	Networks map[string]struct{ Internal bool } `yaml:"networks"`
	Secrets  map[string]struct{ File string }   `yaml:"secrets"`
}

// service is a service's declaration.
type service struct {
	Image       string
	User        string
	GroupAdd    []string `yaml:"group_add"`
	Entrypoint  words
	Command     words
	Environment map[string]*string
	Secrets     []secretRef
	Volumes     []mount
	Tmpfs       words
	Networks    map[string]any
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct {
		Test     words
		Disable  bool
		Interval duration
		Timeout  duration
		Retries  int
		Start    duration `yaml:"start_period"`
	}
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	StopGrace   duration `yaml:"stop_grace_period"`
	Restart     string
	Ports       []any
	Deploy      struct{ Replicas int }
}

// words is a list that may be written as one word.
type words []string

func (w *words) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*w = words{n.Value}
		return nil
	}
	return n.Decode((*[]string)(w))
}

type duration time.Duration

func (d *duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	*d = duration(v)
	return err
}

// secretRef and mount are written in two ways, by the older and the newer Compose.
type secretRef string

func (s *secretRef) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*s = secretRef(n.Value)
		return nil
	}
	var v struct{ Source, Target string }
	if err := n.Decode(&v); err != nil {
		return err
	}
	if v.Target != "" && v.Target != v.Source && v.Target != "/run/secrets/"+v.Source {
		return fmt.Errorf("the secret %s is mounted as %s, which this test does not do", v.Source, v.Target)
	}
	*s = secretRef(v.Source)
	return nil
}

type mount struct {
	Source, Target string
	ReadOnly       bool
	Volume         bool // of Docker's, not a path
}

func (m *mount) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		parts := strings.Split(n.Value, ":")
		m.Source, m.Target = parts[0], parts[1]
		m.ReadOnly = len(parts) > 2 && parts[2] == "ro"
	} else {
		var v struct {
			Type, Source, Target string
			ReadOnly             bool `yaml:"read_only"`
		}
		if err := n.Decode(&v); err != nil {
			return err
		}
		*m = mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly}
	}
	m.Volume = !filepath.IsAbs(m.Source)
	return nil
}

// render has Compose, in any installed form, resolve the file with the variables of .env.
func render(t *testing.T, repo, envFile string) composeFile {
	t.Helper()
	compose := []string{"docker", "compose"}
	if exec.CommandContext(t.Context(), "docker", "compose", "version").Run() != nil {
		compose = []string{"docker-compose"}
	}
	cmd := exec.CommandContext(t.Context(), compose[0], append(compose[1:], "--env-file", envFile, "-f", filepath.Join(repo, "docker-compose.yml"), "config")...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")} // this environment must not affect the test
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	var c composeFile
	require.NoError(t, yaml.Unmarshal(out, &c))
	require.NotEmpty(t, c.Services)
	return c
}

// imageEnv is what the image itself sets, and imageEntrypoint what it starts: from the
// Dockerfile.
func dockerfile(t *testing.T, repo string) (env []string, entrypoint words, user string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repo, "Dockerfile"))
	require.NoError(t, err)
	for line := range strings.SplitSeq(string(b), "\n") {
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "ENV":
			env = append(env, strings.Fields(rest)...)
		case "ENTRYPOINT":
			require.NoError(t, yaml.Unmarshal([]byte(rest), &entrypoint))
		case "USER":
			user = rest
		case "FROM":
			require.Equal(t, "scratch", rest, "this test knows images without a base only")
		case "COPY", "", "#":
		default:
			if !strings.HasPrefix(verb, "#") {
				t.Fatalf("Dockerfile: %s is not known to this test", verb)
			}
		}
	}
	return env, entrypoint, user
}
