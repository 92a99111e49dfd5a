package dockerhost

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// rounds is how often a name conflict is retried before the caller has to wait.
const rounds = 5

// Create creates a container. It adopts an existing container of the same spec that was not changed, and replaces any
// other. It does not start it.
func (h *Host) Create(ctx context.Context, spec server.ContainerSpec) (adopted bool, err error) {
	_, adopted, err = h.ensure(ctx, "", spec)
	return adopted, classify(spec.Name, err)
}

// ensure creates a container unless it is there: of the stack, or of an org's instance.
func (h *Host) ensure(ctx context.Context, org prego.OrgID, spec server.ContainerSpec) (id string, adopted bool, err error) {
	opts, err := h.options(spec)
	if err != nil {
		return "", false, err
	}
	if err := h.ensureNetwork(ctx, spec.Network); err != nil {
		return "", false, err
	}
	pulled := false
	for round := range rounds {
		there, err := h.c.ContainerInspect(ctx, opts.Name, client.ContainerInspectOptions{})
		switch {
		case err == nil && len(changes(there.Container, opts)) == 0:
			return there.Container.ID, true, nil
		case err == nil:
			if err := h.remove(ctx, there.Container.ID); err != nil {
				return "", false, fmt.Errorf("replace: %w", err)
			}
		case !cerrdefs.IsNotFound(err):
			return "", false, fmt.Errorf("inspect: %w", err)
		}
		if org != "" && !pulled {
			if err := h.admit(ctx, org, spec); err != nil {
				return "", false, err
			}
			pulled = true
		}
		made, err := h.c.ContainerCreate(ctx, opts)
		switch {
		case err == nil:
			return made.ID, false, nil
		case cerrdefs.IsConflict(err): // another caller was faster, or a removal is still running: look again
			if err := prego.Sleep(ctx, time.Duration(round+1)*200*time.Millisecond); err != nil {
				return "", false, err
			}
		case cerrdefs.IsNotFound(err) && !pulled: // the image
			if err := h.pull(ctx, org, spec.Image); err != nil {
				return "", false, err
			}
			pulled = true
		case cerrdefs.IsNotFound(err):
			return "", false, &server.ContainerError{Container: spec.Name, Message: "there is no image " + spec.Image}
		default:
			return "", false, fmt.Errorf("create: %w", err)
		}
	}
	return "", false, errors.New("other callers keep replacing it")
}

func (h *Host) ensureNetwork(ctx context.Context, name string) error {
	if !ownNetwork(name) {
		return nil
	}
	_, err := h.c.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err == nil || !cerrdefs.IsNotFound(err) {
		return classifyError("network "+name, err)
	}
	if strings.HasPrefix(name, server.EnvNetworkPrefix) {
		return h.createEnvNetwork(ctx, name)
	}
	// Docker allows parallel creates of the same name; from then on, all find the first. Published ports are bound to
	// an address of the host: "ip" in daemon.json applies to the default bridge only, and older engines have no
	// default for others.
	_, err = h.c.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Driver: "bridge", Labels: map[string]string{LabelServerID: string(h.serverID)},
		Options: map[string]string{"com.docker.network.bridge.host_binding_ipv4": "127.0.0.1", optionMTU: privateMTU},
	})
	if cerrdefs.IsConflict(err) {
		return nil
	}
	return classifyError("network "+name, err)
}

// Hetzner's private interfaces have an MTU of 1450 (docs.hetzner.com, Networks, FAQ). A container with Docker's 1500
// depends on each packet that is too large being reported to it.
const (
	optionMTU  = "com.docker.network.driver.mtu"
	privateMTU = "1450"
)

// envRange is a range that is not routed (RFC 2544), for the networks of environments: Docker's own pool has room for
// about thirty networks, and private networks use the private ranges.
var envRange = netip.MustParsePrefix("198.18.0.0/15")

const (
	envBits = 26 // of one network: 61 containers
	envSlot = 1 << (32 - envBits)
	// envTries is how many ranges are tried if other environments use them.
	envTries = 32
)

// createEnvNetwork creates the network of an environment. The host's rules match the name of its bridge; the engine
// itself isolates its containers from each other.
func (h *Host) createEnvNetwork(ctx context.Context, name string) error {
	sum := sha256.Sum256([]byte(name))
	slots := uint32(1) << (envBits - envRange.Bits())
	first := binary.BigEndian.Uint32(sum[:4])
	var err error
	for n := range uint32(envTries) {
		base := envRange.Addr().As4()
		at := binary.BigEndian.Uint32(base[:]) + (first+n)%slots*envSlot
		binary.BigEndian.PutUint32(base[:], at)
		_, err = h.c.NetworkCreate(ctx, name, client.NetworkCreateOptions{
			Driver: "bridge", Labels: map[string]string{LabelServerID: string(h.serverID)},
			IPAM: &network.IPAM{Config: []network.IPAMConfig{{Subnet: netip.PrefixFrom(netip.AddrFrom4(base), envBits)}}},
			Options: map[string]string{
				"com.docker.network.bridge.host_binding_ipv4": "127.0.0.1", "com.docker.network.bridge.enable_icc": "false", optionMTU: privateMTU,
				"com.docker.network.bridge.name": wire.EnvBridge + hex.EncodeToString(sum[4:])[:9],
			},
		})
		if err == nil || cerrdefs.IsConflict(err) {
			return nil
		}
		if _, there := h.c.NetworkInspect(ctx, name, client.NetworkInspectOptions{}); there == nil {
			return nil // made by another caller, whose bridge has the name
		}
		if !strings.Contains(err.Error(), "overlaps") {
			break
		}
	}
	return classifyError("network "+name, err)
}

func classifyError(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Run creates the container of an org's instance, if need be, and starts it. It does not wait until it is healthy.
func (h *Host) Run(ctx context.Context, org prego.OrgID, spec server.ContainerSpec) error {
	id, _, err := h.ensure(ctx, org, spec)
	if err != nil {
		return classify(spec.Name, err)
	}
	_, err = h.c.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return classify(spec.Name, classifyError("start", err))
}

// Start starts a container; a running one is left alone.
func (h *Host) Start(ctx context.Context, name string) error {
	_, err := h.c.ContainerStart(ctx, h.name(name), client.ContainerStartOptions{})
	return classify(name, classifyError("start", err))
}

// Stop stops a container, by force after its own timeout. A missing one is success.
func (h *Host) Stop(ctx context.Context, name string) error {
	_, err := h.c.ContainerStop(ctx, h.name(name), client.ContainerStopOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return classify(name, classifyError("stop", err))
}

// Remove stops and removes a container. Its volumes stay.
func (h *Host) Remove(ctx context.Context, name string) error {
	there, err := h.c.ContainerInspect(ctx, h.name(name), client.ContainerInspectOptions{})
	bridge := ""
	if err == nil && there.Container.Config != nil {
		bridge = there.Container.Config.Labels[server.LabelNetwork]
	}
	if err := h.remove(ctx, h.name(name)); err != nil {
		return classify(name, err)
	}
	return classify(name, h.leaveNetwork(ctx, bridge))
}

// leaveNetwork removes an environment's network after its last container. The engine refuses to remove a network that
// another container has started to use in the meantime.
func (h *Host) leaveNetwork(ctx context.Context, name string) error {
	if !strings.HasPrefix(name, server.EnvNetworkPrefix) {
		return nil
	}
	filters := client.Filters{}.Add("label", server.LabelNetwork+"="+name)
	left, err := h.c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil || len(left.Items) > 0 {
		return classifyError("containers of network "+name, err)
	}
	_, err = h.c.NetworkRemove(ctx, name, client.NetworkRemoveOptions{})
	if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) || cerrdefs.IsPermissionDenied(err) {
		return nil
	}
	return classifyError("network "+name, err)
}

// remove lets the container stop by itself first: a killed database has to recover.
func (h *Host) remove(ctx context.Context, ref string) error {
	_, err := h.c.ContainerStop(ctx, ref, client.ContainerStopOptions{})
	if err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("stop: %w", err)
	}
	_, err = h.c.ContainerRemove(ctx, ref, client.ContainerRemoveOptions{Force: true})
	if err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// ErrNoContainer means that a container does not exist.
var ErrNoContainer = errors.New("there is no such container")

// Inspect reads one container; ErrNoContainer if it does not exist.
func (h *Host) Inspect(ctx context.Context, name string) (server.ContainerInfo, error) {
	got, err := h.c.ContainerInspect(ctx, h.name(name), client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return server.ContainerInfo{}, fmt.Errorf("container %s: %w", name, ErrNoContainer)
	}
	if err != nil {
		return server.ContainerInfo{}, classify(name, classifyError("inspect", err))
	}
	return h.info(got.Container), nil
}

func (h *Host) info(c container.InspectResponse) server.ContainerInfo {
	name := strings.TrimPrefix(strings.TrimPrefix(c.Name, "/"), h.name(""))
	out := server.ContainerInfo{Name: name, Restarts: c.RestartCount}
	if c.Config != nil {
		out.Image, out.SpecHash = c.Config.Image, c.Config.Labels[LabelSpec]
		out.Instance = c.Config.Labels[workload.LabelInstance]
	}
	if s := c.State; s != nil {
		out.State, out.ExitCode, out.OOMKilled = string(s.Status), s.ExitCode, s.OOMKilled
		if s.Health != nil && s.Health.Status != container.NoHealthcheck {
			out.Health = string(s.Health.Status)
		}
		if at, err := time.Parse(time.RFC3339Nano, s.StartedAt); err == nil && at.Year() > 1 {
			out.StartedAt = at
		}
	}
	return out
}

// List reads all of the server's containers, running or not.
func (h *Host) List(ctx context.Context) ([]server.ContainerInfo, error) {
	list, err := h.c.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", string(LabelServerID+"="+h.serverID)),
	})
	if err != nil {
		return nil, classify("all", classifyError("list", err))
	}
	out := make([]server.ContainerInfo, 0, len(list.Items))
	for _, item := range list.Items {
		got, err := h.c.ContainerInspect(ctx, item.ID, client.ContainerInspectOptions{})
		if cerrdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, classify("all", classifyError("inspect", err))
		}
		out = append(out, h.info(got.Container))
	}
	return out, nil
}
