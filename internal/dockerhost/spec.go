package dockerhost

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/prego/prego/server"
)

// Labels of our containers.
const (
	LabelSpec     = "prego.spec"      // the hash of its spec
	LabelServerID = "prego.server_id" // its server
	LabelOnce     = "prego.once"      // "true" on containers that run to their end
)

// Hash identifies the spec that a container is created from.
func Hash(spec server.ContainerSpec) string {
	b, err := json.Marshal(spec)
	if err != nil {
		panic("dockerhost: a spec always marshals: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// options are the options of the request to the engine.
func (h *Host) options(spec server.ContainerSpec) (client.ContainerCreateOptions, error) {
	// Ours are written last, so that no other label replaces them.
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[LabelSpec], labels[LabelServerID] = Hash(spec), string(h.serverID)
	restart := cmp.Or(spec.Restart, server.RestartUnlessStopped)
	if spec.Once {
		labels[LabelOnce], restart = "true", server.RestartNo
	}
	env := make([]string, 0, len(spec.Env))
	for _, k := range slices.Sorted(maps.Keys(spec.Env)) {
		env = append(env, k+"="+spec.Env[k])
	}
	cfg := &container.Config{Image: spec.Image, User: spec.User, Cmd: spec.Command, Env: env, Labels: labels}
	if spec.StopTimeout > 0 {
		seconds := int((spec.StopTimeout.D() + time.Second - 1) / time.Second)
		cfg.StopTimeout = &seconds
	}
	if c := spec.Health; c != nil {
		cfg.Healthcheck = &container.HealthConfig{
			Test: append([]string{"CMD"}, c.Command...), Interval: cmp.Or(c.Interval.D(), 5*time.Second),
			Timeout: cmp.Or(c.Timeout.D(), 5*time.Second),
			Retries: cmp.Or(c.Retries, 3), StartPeriod: c.Grace.D(),
		}
	}
	host := &container.HostConfig{
		Binds: spec.Volumes, NetworkMode: container.NetworkMode(spec.Network),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyMode(restart)},
		SecurityOpt:   []string{"no-new-privileges"},
		// A container that logs a lot must not fill the disk.
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "10m", "max-file": "3"}},
		Resources: container.Resources{Memory: spec.MemoryMB << 20, NanoCPUs: nanoCPUs(spec)},
	}
	for _, m := range spec.Mounts {
		source, target, _ := strings.Cut(m, ":")
		// Unlike a bind, it is refused if the source does not exist: a volume that is not mounted must not become a
		// directory of the host's own disk.
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: source, Target: target,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationPrivate},
		})
	}
	if spec.MemoryBytes > 0 {
		host.Memory, host.MemorySwap = spec.MemoryBytes, spec.MemoryBytes
	}
	host.CPUShares = spec.CPUShares
	if spec.Pids > 0 {
		host.PidsLimit = &spec.Pids
	}
	opts := client.ContainerCreateOptions{Name: h.name(spec.Name), Config: cfg, HostConfig: host}
	for _, p := range spec.Ports {
		i := strings.LastIndex(p, ":")
		port, err := network.ParsePort(p[i+1:])
		ip, hostPort, splitErr := net.SplitHostPort(p[:i])
		addr, addrErr := netip.ParseAddr(ip)
		if err := cmp.Or(err, splitErr, addrErr); err != nil {
			return opts, &server.ContainerError{Container: spec.Name, Message: "port " + p + ": " + err.Error()}
		}
		if cfg.ExposedPorts == nil {
			cfg.ExposedPorts, host.PortBindings = network.PortSet{}, network.PortMap{}
		}
		cfg.ExposedPorts[port] = struct{}{}
		host.PortBindings[port] = append(host.PortBindings[port], network.PortBinding{HostIP: addr, HostPort: hostPort})
	}
	if ownNetwork(spec.Network) {
		// The stack's containers find each other by these names.
		opts.NetworkingConfig = &network.NetworkingConfig{
			EndpointsConfig: map[string]*network.EndpointSettings{spec.Network: {Aliases: []string{spec.Name}}},
		}
	}
	return opts, nil
}

func nanoCPUs(spec server.ContainerSpec) int64 { return int64(spec.CPUs * 1e9) }

func ownNetwork(name string) bool { return name != "" && name != "none" && name != "host" }

// changes names the differences between a container and the options that it should have. Values are left out: they
// may be secrets.
func changes(got container.InspectResponse, want client.ContainerCreateOptions) []string {
	var out []string
	differs := func(what string, is bool) {
		if is {
			out = append(out, what)
		}
	}
	gc, gh, wc, wh := got.Config, got.HostConfig, want.Config, want.HostConfig
	if gc == nil || gh == nil {
		return []string{"everything"}
	}
	differs("image", gc.Image != wc.Image)
	differs("user", wc.User != "" && gc.User != wc.User)
	differs("command", len(wc.Cmd) > 0 && !slices.Equal(gc.Cmd, wc.Cmd))
	for _, e := range wc.Env { // the image adds its own
		if !slices.Contains(gc.Env, e) {
			name, _, _ := strings.Cut(e, "=")
			differs("env "+name, true)
		}
	}
	for k, v := range wc.Labels {
		differs("label "+k, gc.Labels[k] != v)
	}
	if wc.Healthcheck != nil {
		differs("health", gc.Healthcheck == nil || !slices.Equal(gc.Healthcheck.Test, wc.Healthcheck.Test))
	}
	differs("volumes", !slices.Equal(slices.Sorted(slices.Values(gh.Binds)), slices.Sorted(slices.Values(wh.Binds))) ||
		!sameMounts(gh.Mounts, wh.Mounts) || len(gh.VolumesFrom) > 0)
	differs("network", wh.NetworkMode != "" && gh.NetworkMode != wh.NetworkMode)
	differs("ports", !samePorts(gh.PortBindings, wh.PortBindings) || gh.PublishAllPorts)
	differs("memory", gh.Memory != wh.Memory)
	differs("cpu shares", gh.CPUShares != wh.CPUShares)
	differs("cpus", gh.NanoCPUs != wh.NanoCPUs || gh.CPUQuota != 0)
	differs("pids", pids(gh.PidsLimit) != pids(wh.PidsLimit))
	differs("restart", gh.RestartPolicy.Name != wh.RestartPolicy.Name)
	differs("privileges", gh.Privileged || len(gh.CapAdd) > 0 || len(gh.Devices) > 0 || gh.PidMode.IsHost() ||
		gh.IpcMode.IsHost() || !slices.Equal(gh.SecurityOpt, wh.SecurityOpt))
	slices.Sort(out)
	return out
}

func pids(p *int64) int64 {
	if p == nil || *p < 0 {
		return 0
	}
	return *p
}

// sameMounts compares sources and targets; engines fill in the options.
func sameMounts(a, b []mount.Mount) bool {
	return slices.EqualFunc(a, b, func(x, y mount.Mount) bool {
		return x.Type == y.Type && x.Source == y.Source && x.Target == y.Target && x.ReadOnly == y.ReadOnly
	})
}

func samePorts(a, b network.PortMap) bool {
	return maps.EqualFunc(a, b, slices.Equal[[]network.PortBinding])
}
