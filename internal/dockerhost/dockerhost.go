// Package dockerhost starts containers on a host over the Docker Remote API with
// mTLS (direct-provisioning §1, path C).
package dockerhost

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/prego/prego"
)

// LabelSpec holds the hash of what a container was made from.
const LabelSpec = "prego.spec"

// Config says how to reach hosts.
type Config struct {
	TLS  func(serverID string) *tls.Config // the server's id is verified, not its address
	Port int
	// CheckAddr refuses addresses that no provider gave to a server.
	CheckAddr func(addr string) error
}

// Hosts starts containers on hosts.
type Hosts struct {
	cfg Config
}

// New makes Hosts.
func New(cfg Config) *Hosts { return &Hosts{cfg: cfg} }

// Spec is a container to run.
type Spec struct {
	Name   string            `json:"name"`
	Image  string            `json:"image"`
	Env    []string          `json:"env,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

func (s Spec) hash() string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("dockerhost: a Spec always marshals: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Start makes the containers run: one that is there and was made from the same
// spec is adopted, one that was made from another is replaced. A failure that
// repeating can't mend is a *prego.ContainerError.
func (h *Hosts) Start(ctx context.Context, serverID, addr string, specs []Spec) error {
	if err := h.cfg.CheckAddr(addr); err != nil {
		return &prego.ContainerError{Container: "all", Message: err.Error()}
	}
	transport := &http.Transport{
		TLSClientConfig: h.cfg.TLS(serverID), DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, ResponseHeaderTimeout: 2 * time.Minute,
	}
	defer transport.CloseIdleConnections()
	c, err := client.New(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost("tcp://"+net.JoinHostPort(addr, strconv.Itoa(h.cfg.Port))), client.WithScheme("https"))
	if err != nil {
		return fmt.Errorf("docker client: %w", err)
	}
	defer func() { _ = c.Close() }()
	for _, spec := range specs {
		if err := start(ctx, c, serverID, spec); err != nil {
			return sort(spec.Name, err)
		}
	}
	return nil
}

func start(ctx context.Context, c *client.Client, serverID string, spec Spec) error {
	name := "prego-" + serverID + "-" + spec.Name
	id, err := ensure(ctx, c, name, spec)
	if err != nil {
		return err
	}
	if _, err := c.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	for {
		got, err := c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			return fmt.Errorf("inspect: %w", err)
		}
		switch state := got.Container.State; {
		case state == nil:
			return errors.New("inspect: the host tells no state")
		case state.Running:
			return nil
		case state.Status == container.StateExited || state.Status == container.StateDead:
			return &prego.ContainerError{Container: spec.Name, Message: fmt.Sprintf("ended with status %d: %s", state.ExitCode, lastLines(ctx, c, id))}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// ensure finds the container of a name, or makes it.
func ensure(ctx context.Context, c *client.Client, name string, spec Spec) (string, error) {
	labels := map[string]string{LabelSpec: spec.hash()}
	for k, v := range spec.Labels {
		labels[k] = v
	}
	opts := client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: spec.Image, Env: spec.Env, Labels: labels},
		HostConfig: &container.HostConfig{RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyUnlessStopped}},
	}
	for {
		made, err := c.ContainerCreate(ctx, opts)
		switch {
		case err == nil:
			return made.ID, nil
		case cerrdefs.IsNotFound(err): // the image
			pull, err := c.ImagePull(ctx, spec.Image, client.ImagePullOptions{})
			if err != nil {
				return "", fmt.Errorf("pull %s: %w", spec.Image, err)
			}
			_, err = io.Copy(io.Discard, pull)
			_ = pull.Close()
			if err != nil {
				return "", fmt.Errorf("pull %s: %w", spec.Image, err)
			}
			made, err := c.ContainerCreate(ctx, opts)
			if cerrdefs.IsNotFound(err) {
				return "", &prego.ContainerError{Container: spec.Name, Message: "there is no image " + spec.Image}
			}
			if err != nil && !cerrdefs.IsConflict(err) {
				return "", fmt.Errorf("create: %w", err)
			}
			if err == nil {
				return made.ID, nil
			}
		case !cerrdefs.IsConflict(err):
			return "", fmt.Errorf("create: %w", err)
		}
		there, err := c.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if cerrdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return "", fmt.Errorf("inspect: %w", err)
		}
		if cfg := there.Container.Config; cfg != nil && cfg.Labels[LabelSpec] == spec.hash() {
			return there.Container.ID, nil
		}
		if _, err := c.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true}); err != nil && !cerrdefs.IsNotFound(err) {
			return "", fmt.Errorf("replace: %w", err)
		}
	}
}

func lastLines(ctx context.Context, c *client.Client, id string) string {
	logs, err := c.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "10"})
	if err != nil {
		return "no logs"
	}
	defer func() { _ = logs.Close() }()
	b, err := io.ReadAll(io.LimitReader(logs, 4096))
	if err != nil {
		return "no logs"
	}
	return prego.Redact(string(b))
}

// sort tells what repeating can't mend: a peer that is not the host, and what the
// daemon itself says is wrong. A daemon that can't be reached may come back.
func sort(name string, err error) error {
	var done *prego.ContainerError
	if errors.As(err, &done) {
		return err
	}
	var cert *tls.CertificateVerificationError
	var op *net.OpError
	switch {
	case errors.As(err, &cert), errors.As(err, &op) && op.Op == "remote error":
		return &prego.ContainerError{Container: name, Message: "the host and the control plane do not accept each other's certificates"}
	case client.IsErrConnectionFailed(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), cerrdefs.IsUnavailable(err):
		return fmt.Errorf("container %s: %w", name, err)
	case cerrdefs.IsInternal(err), cerrdefs.IsInvalidArgument(err), cerrdefs.IsNotFound(err), cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err):
		return &prego.ContainerError{Container: name, Message: prego.Redact(err.Error())}
	}
	return fmt.Errorf("container %s: %w", name, err)
}
