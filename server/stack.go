package server

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Stack declares what runs on the servers of each role (direct-provisioning §2,
// step 8). It is data: see docs/containers.md.
type Stack map[prego.Role][]ContainerSpec

// ContainerSpec declares one container. Env and Command may hold ${name}
// references, see Expand.
type ContainerSpec struct {
	Name    string            `json:"name"`
	Image   string            `json:"image"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// User is whom the program runs as, instead of the image's user.
	User   string            `json:"user,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Volumes are source:target or source:target:ro. The source is the name of a
	// volume, or a directory of the host that a stack may use.
	Volumes []string `json:"volumes,omitempty"`
	// Mounts are directories of the host, source:target, that must exist: the engine
	// creates none. They belong to instances; a stack has Volumes.
	Mounts []string `json:"mounts,omitempty"`
	// Ports are address:port:container-port. The address is required, since the engine
	// opens published ports past the host's own firewall; it may be ${private_address}. Those
	// that are the same on a server without one are published once.
	Ports    []string `json:"ports,omitempty"`
	Network  string   `json:"network,omitempty"` // a bridge of the stack's own, or none or host
	MemoryMB int64    `json:"memory_mb,omitempty"`
	CPUs     float64  `json:"cpus,omitempty"`
	Pids     int64    `json:"pids,omitempty"`
	// MemoryBytes, instead of MemoryMB, is a hard cap that swap does not extend.
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUShares   int64   `json:"cpu_shares,omitempty"` // relative to other containers when CPU is short; 1024 is one CPU
	Restart     Restart `json:"restart,omitempty"`    // unless-stopped when empty
	// StopTimeout is how long the container may take to stop before it is killed.
	StopTimeout prego.Duration `json:"stop_timeout,omitempty"`
	// StartTimeout is how soon it must be healthy after its start.
	StartTimeout prego.Duration   `json:"start_timeout,omitempty"`
	Health       *ContainerHealth `json:"health,omitempty"`
	Probe        *ContainerProbe  `json:"probe,omitempty"`
	After        []string         `json:"after,omitempty"` // started once these are healthy, or done
	// Once runs the container to its end: status 0 is done, within StartTimeout. If its
	// declaration changes, it runs again, and the containers after it are restarted.
	Once bool `json:"once,omitempty"`

	secrets []string // values that no message may show
}

// EnvNetworkPrefix begins the names of environments' own networks, and LabelNetwork is the
// label of the containers in them.
const (
	EnvNetworkPrefix = "prego-env-"
	LabelNetwork     = "prego.network"
)

// MinContainerMemory is the engine's minimum memory of a container, in bytes.
const MinContainerMemory = 6 << 20

// Restart sets when the engine restarts a container by itself.
type Restart string

// The restart policies.
const (
	RestartNo            Restart = "no"
	RestartOnFailure     Restart = "on-failure"
	RestartAlways        Restart = "always"
	RestartUnlessStopped Restart = "unless-stopped"
)

// ContainerHealth is a check that the engine runs in the container.
type ContainerHealth struct {
	Command  []string       `json:"command"`
	Interval prego.Duration `json:"interval,omitempty"` // 5s when empty
	Timeout  prego.Duration `json:"timeout,omitempty"`  // 5s when empty
	Retries  int            `json:"retries,omitempty"`  // 3 when empty
	Grace    prego.Duration `json:"grace,omitempty"`    // failures before it don't count
}

// ContainerProbe is a check that the control plane runs in the container when it starts
// it. There are a few kinds of probes instead of command lines, so that what
// direct-provisioning §1 forbids for path C can't be expressed.
type ContainerProbe struct {
	Kind ProbeKind `json:"kind"`
	Port int       `json:"port,omitempty"`
	// Program is the program of kind program: it gets no arguments and no input.
	Program string         `json:"program,omitempty"`
	Timeout prego.Duration `json:"timeout,omitempty"` // 5s when empty
}

// ProbeKind is the kind of a probe.
type ProbeKind string

// The kinds of probes.
const (
	ProbeRedis   ProbeKind = "redis"   // answers PING
	ProbeMariaDB ProbeKind = "mariadb" // takes connections, and InnoDB is up
	ProbeTCP     ProbeKind = "tcp"     // takes connections, checked with the image's wait-for-it
	ProbeProgram ProbeKind = "program" // a program of the image exits with 0
)

// Argv is the command line of a probe.
func (p ContainerProbe) Argv() []string {
	port := fmt.Sprint(p.Port)
	switch p.Kind {
	case ProbeRedis:
		return []string{"redis-cli", "-p", port, "ping"}
	case ProbeMariaDB:
		return []string{"healthcheck.sh", "--connect", "--innodb_initialized"}
	case ProbeTCP:
		return []string{"wait-for-it", "-t", "3", "127.0.0.1:" + port}
	case ProbeProgram:
		return []string{p.Program}
	}
	return nil
}

// shells are programs that can do more than probe, and app-level ones, which are the
// agent's (direct-provisioning §1, path D).
var shells = []string{
	"sh", "bash", "dash", "ash", "zsh", "busybox", "env", "python", "python3", "perl", "ruby", "node", "docker", "nsenter",
	"bench", "mariadb", "mysql", "mariadb-admin", "mysqladmin", "mariadb-dump", "mysqldump", "redis-cli",
}

func (p ContainerProbe) validate() error {
	needsPort := p.Kind == ProbeRedis || p.Kind == ProbeTCP
	switch {
	case p.Argv() == nil:
		return fmt.Errorf("probe: unknown kind %q; it must be redis, mariadb, tcp or program", p.Kind)
	case needsPort && (p.Port < 1 || p.Port > 65535), !needsPort && p.Port != 0:
		return fmt.Errorf("probe: a port, 1 to 65535, is required for kinds redis and tcp, and not allowed for others")
	case (p.Kind == ProbeProgram) != (p.Program != ""):
		return fmt.Errorf("probe: a program is required for kind program, and not allowed for others")
	case p.Kind == ProbeProgram && (!path.IsAbs(p.Program) || path.Clean(p.Program) != p.Program || slices.Contains(shells, path.Base(p.Program))):
		return fmt.Errorf("probe: %q must be the absolute path of a program that is no shell and no client of the application's", p.Program)
	case p.Timeout < 0 || p.Timeout.D() > time.Minute:
		return fmt.Errorf("probe: timeout must be at most 1m")
	}
	return nil
}

var (
	containerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
	volumeSpec    = regexp.MustCompile(`^([a-z0-9][a-z0-9_.-]*|/[^:]*):(/[^:]*)(:ro)?$`)
	portSpec      = regexp.MustCompile(`^(\d+\.\d+\.\d+\.\d+|\$\{private_address\}|\[[0-9a-f:]+\]):(\d{1,5}):(\d{1,5})(/tcp|/udp)?$`)
	envName       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	stackVar      = regexp.MustCompile(`\$\{([^}]*)\}`)
)

// hostDirs are the directories of a host that a stack may mount. The agent's identity,
// the engine's socket and the system are outside of them.
var hostDirs = []string{
	"/srv/", "/mnt/", "/var/lib/prego/", "/run/prego/", "/run/prego-confirmed/", "/run/mysqld/",
	"/run/redis/", "/var/lib/prego-edge/", "/run/prego-edge/",
}

// Validate checks the declaration of every role.
func (s Stack) Validate() error {
	for _, role := range prego.Roles() {
		if len(s[role]) == 0 {
			return fmt.Errorf("stack: role %s has no container", role)
		}
	}
	for role, specs := range s {
		if !role.Valid() {
			return fmt.Errorf("stack: unknown role %q", role)
		}
		for _, c := range specs {
			if err := c.validate(); err != nil {
				return fmt.Errorf("stack: role %s: container %q: %w", role, c.Name, err)
			}
		}
		if _, err := startOrder(specs); err != nil {
			return fmt.Errorf("stack: role %s: %w", role, err)
		}
	}
	return nil
}

func (c ContainerSpec) validate() error {
	switch {
	case !containerName.MatchString(c.Name):
		return fmt.Errorf("the name must be of a-z, 0-9 and dashes, at most 32 characters")
	case len(c.Mounts) > 0:
		return fmt.Errorf("mounts are of instances; use volumes")
	case c.MemoryMB != 0 && c.MemoryMB < 6:
		return fmt.Errorf("memory_mb must be at least 6, or 0 for no limit")
	case c.MemoryBytes != 0 && (c.MemoryBytes < MinContainerMemory || c.MemoryMB != 0):
		return fmt.Errorf("memory_bytes must be 0 or at least 6291456, and excludes memory_mb")
	case c.CPUs < 0 || c.Pids < 0 || c.CPUShares < 0:
		return fmt.Errorf("cpus, cpu_shares and pids must not be negative")
	case c.Restart != "" && !slices.Contains([]Restart{RestartNo, RestartOnFailure, RestartAlways, RestartUnlessStopped}, c.Restart):
		return fmt.Errorf("restart must be no, on-failure, always or unless-stopped")
	case c.Once && ((c.Restart != "" && c.Restart != RestartNo) || c.Health != nil || c.Probe != nil):
		return fmt.Errorf("once: requires restart no, and allows neither health nor probe")
	case c.StopTimeout < 0 || c.StopTimeout.D() > 90*time.Second:
		return fmt.Errorf("stop_timeout must be at most 90s")
	case c.StartTimeout < 0:
		return fmt.Errorf("start_timeout must not be negative")
	case c.Network != "" && !containerName.MatchString(c.Network):
		return fmt.Errorf("network must be a name")
	case c.Health != nil && (len(c.Health.Command) == 0 || c.Health.Retries < 0):
		return fmt.Errorf("health must have a command")
	}
	// Of what a reference stands for, nothing is known here.
	if _, err := ParseImage(stackVar.ReplaceAllString(c.Image, "name")); err != nil {
		return fmt.Errorf("image %w", err)
	}
	for name := range c.Env {
		if !envName.MatchString(name) {
			return fmt.Errorf("env: %q is not a valid variable name", name)
		}
	}
	for name := range c.Labels {
		if strings.HasPrefix(name, "prego.") {
			return fmt.Errorf("labels: names that begin with prego. are reserved")
		}
	}
	for _, p := range c.Ports {
		if !portSpec.MatchString(p) {
			return fmt.Errorf("ports: %q must be address:port:container-port", p)
		}
	}
	for _, v := range c.Volumes {
		m := volumeSpec.FindStringSubmatch(v)
		if m == nil {
			return fmt.Errorf("volumes: %q must be source:target or source:target:ro", v)
		}
		inside := func(dir string) bool { return strings.HasPrefix(path.Clean(m[1])+"/", dir) }
		if path.IsAbs(m[1]) && (path.Clean(m[1]) != m[1] || !slices.ContainsFunc(hostDirs, inside)) {
			return fmt.Errorf("volumes: %q: a directory of the host must be below %s", v, strings.Join(hostDirs, ", "))
		}
	}
	if c.Probe != nil {
		return c.Probe.validate()
	}
	return nil
}

// startOrder sorts containers so that each comes after its dependencies, and otherwise
// in the order of the declaration.
func startOrder(specs []ContainerSpec) ([]ContainerSpec, error) {
	known := make(map[string]bool, len(specs))
	for _, c := range specs {
		if known[c.Name] {
			return nil, fmt.Errorf("duplicate container %q", c.Name)
		}
		known[c.Name] = true
	}
	for _, c := range specs {
		for _, a := range c.After {
			if !known[a] {
				return nil, fmt.Errorf("container %q depends on %q, which does not exist", c.Name, a)
			}
		}
	}
	out := make([]ContainerSpec, 0, len(specs))
	placed := make(map[string]bool, len(specs))
	for len(out) < len(specs) {
		before := len(out)
		for _, c := range specs {
			ready := !slices.ContainsFunc(c.After, func(a string) bool { return !placed[a] })
			if ready && !placed[c.Name] {
				out, placed[c.Name] = append(out, c), true
			}
		}
		if len(out) == before {
			return nil, fmt.Errorf("the containers' dependencies are circular")
		}
	}
	return out, nil
}

// For returns the containers of one server in their start order, with the references in
// image, environment, command and ports expanded: ${name} by vars["name"], ${secret:name} by
// secret(name), which no message shows.
func (s Stack) For(role prego.Role, vars map[string]string, secret func(name string) string) ([]ContainerSpec, error) {
	specs, err := startOrder(s[role])
	if err != nil {
		return nil, err
	}
	for i := range specs {
		if specs[i], err = specs[i].expand(vars, secret); err != nil {
			return nil, fmt.Errorf("stack: role %s: container %q: %w", role, specs[i].Name, err)
		}
	}
	return specs, nil
}

// Refers reports whether the containers of a role refer to ${name}.
func (s Stack) Refers(role prego.Role, name string) bool {
	ref := "${" + name + "}"
	return slices.ContainsFunc(s[role], func(c ContainerSpec) bool {
		has := func(text string) bool { return strings.Contains(text, ref) }
		return has(c.Image) || slices.ContainsFunc(c.Command, has) || slices.ContainsFunc(c.Ports, has) || slices.ContainsFunc(slices.Collect(maps.Values(c.Env)), has)
	})
}

// What a word of a command may begin with: it is there only on servers in a private network,
// or only on others.
const (
	ifPrivate = "${private?}"
	ifLocal   = "${local?}"
)

func (c ContainerSpec) expand(vars map[string]string, secret func(string) string) (ContainerSpec, error) {
	var err error
	fill := func(text string) string {
		return stackVar.ReplaceAllStringFunc(text, func(m string) string {
			name := m[2 : len(m)-1]
			if of, ok := strings.CutPrefix(name, "secret:"); ok && of != "" {
				v := secret(of)
				c.secrets = append(c.secrets, v)
				return v
			}
			v, ok := vars[name]
			if !ok {
				err = fmt.Errorf("unknown reference %s", m)
			}
			return v
		})
	}
	c.Image = fill(c.Image)
	command := make([]string, 0, len(c.Command))
	for _, word := range c.Command {
		drop := ifPrivate
		if vars["private"] != "" {
			drop = ifLocal
		}
		if strings.HasPrefix(word, drop) {
			continue
		}
		command = append(command, fill(strings.TrimPrefix(strings.TrimPrefix(word, ifPrivate), ifLocal)))
	}
	c.Command = command
	c.Ports = slices.Clone(c.Ports)
	for i := range c.Ports {
		c.Ports[i] = fill(c.Ports[i])
	}
	slices.Sort(c.Ports)
	c.Ports = slices.Compact(c.Ports) // without a private address, two may be the same
	env := make(map[string]string, len(c.Env))
	for k, v := range c.Env {
		env[k] = fill(v)
	}
	c.Env = env
	slices.Sort(c.secrets)
	c.secrets = slices.Compact(c.secrets)
	return c, err
}

// Redact masks this container's own secrets and what looks like one.
func (c ContainerSpec) Redact(text string) string {
	for _, s := range c.secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, prego.Redacted)
		}
	}
	return prego.Redact(text)
}
