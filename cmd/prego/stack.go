package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/internal/pki"
)

// containers runs the declared stack on hosts.
type containers struct {
	hosts *dockerhost.Hosts
	stack prego.Stack
	image string
	key   []byte // the secrets in stacks are derived from it
}

func newContainers(p *process, ca *pki.Authority) (*containers, error) {
	w := p.cfg.Worker
	if err := ca.Need([]pki.Purpose{pki.DockerClient}, []pki.Purpose{pki.DockerServer}); err != nil {
		return nil, err
	}
	stack, err := w.Stack()
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(w.MasterKey)
	if err != nil || len(key) < 32 {
		return nil, fmt.Errorf("PREGO_MASTER_KEY must be at least 32 bytes, written as hex")
	}
	c := &containers{hosts: dockerHosts(p.cfg, ca), stack: stack, image: w.ContainerImage, key: key}
	// What a stack refers to and is not there is said now, not at the first server.
	for _, role := range prego.Roles() {
		if _, err := c.specs("check", role); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// dockerHosts reaches the engines of hosts. It needs no stack and no master key,
// so that a process that only looks at containers can do without.
func dockerHosts(cfg config.Config, ca *pki.Authority) *dockerhost.Hosts {
	client := ca.DockerClientTLS()
	return dockerhost.New(dockerhost.Config{
		TLS: func(id string) *tls.Config { return client(id) }, Port: cfg.Worker.DockerPort,
		CheckAddr: func(addr string) error { return hetzner.CheckHostAddr(addr, cfg.Hetzner.Simulated) },
	})
}

// specs are the containers of one server.
func (c *containers) specs(serverID string, role prego.Role) ([]prego.ContainerSpec, error) {
	vars := map[string]string{"server_id": serverID, "role": string(role), "bench_image": c.image}
	specs, err := c.stack.For(role, vars, func(name string) string {
		// The same server gets the same secrets again, so that they are kept nowhere.
		mac := hmac.New(sha256.New, c.key)
		mac.Write([]byte("prego stack secret v1\x00" + serverID + "\x00" + name))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	})
	if err != nil {
		return nil, &prego.ContainerError{Container: "all", Message: err.Error()}
	}
	return specs, nil
}

// on calls f with a server's engine and declaration.
func (c *containers) on(serverID, addr string, role prego.Role, f func(*dockerhost.Host, []prego.ContainerSpec) error) error {
	specs, err := c.specs(serverID, role)
	if err != nil {
		return err
	}
	h, err := c.hosts.Host(serverID, addr)
	if err != nil {
		return err
	}
	defer h.Close()
	return f(h, specs)
}

func (c *containers) StartContainers(ctx context.Context, serverID, addr string, role prego.Role) error {
	return c.on(serverID, addr, role, func(h *dockerhost.Host, specs []prego.ContainerSpec) error { return h.Up(ctx, specs) })
}

func (c *containers) CheckContainers(ctx context.Context, serverID, addr string, role prego.Role) (drift []prego.ContainerDrift, err error) {
	err = c.on(serverID, addr, role, func(h *dockerhost.Host, specs []prego.ContainerSpec) error {
		drift, err = h.Check(ctx, specs)
		return err
	})
	return drift, err
}

func (c *containers) RepairContainers(ctx context.Context, serverID, addr string, role prego.Role) (drift []prego.ContainerDrift, err error) {
	err = c.on(serverID, addr, role, func(h *dockerhost.Host, specs []prego.ContainerSpec) error {
		drift, err = h.Repair(ctx, specs)
		return err
	})
	return drift, err
}
