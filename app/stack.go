package app

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// containers runs the declared stack on hosts.
type containers struct {
	hosts   *dockerhost.Hosts
	stack   server.Stack
	image   string
	key     []byte // the stack's secrets are derived from it
	digests *store.Store
	// place is a server's private address, "" for none, and its bench's image, "" for the configured one.
	place func(ctx context.Context, id prego.ServerID) (private, bench string, err error)
}

func newContainers(p *Process, ca *pki.Authority) (*containers, error) {
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
	box, err := token.NewBox(w.MasterKey, w.MasterKeysEarlier...)
	if err != nil {
		return nil, err
	}
	logins := store.RegistryLogins{Store: p.db, Opener: box}
	c := &containers{hosts: dockerHosts(p.cfg, ca, logins.RegistryAuth), stack: stack, image: w.ContainerImage, key: key, digests: p.db, place: p.db.ContainerPlace}
	// Missing references of a stack are reported now, not at the first server.
	for _, role := range prego.Roles() {
		if _, err := c.specs("check", role, "", ""); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// dockerHosts reaches the engines of hosts. It needs neither stack nor master key, so
// that a process that only reads containers works without them.
func dockerHosts(cfg config.Config, ca *pki.Authority, login dockerhost.Login) *dockerhost.Hosts {
	client := ca.DockerClientTLS()
	return dockerhost.New(dockerhost.Config{
		TLS: func(id prego.ServerID) *tls.Config { return client(id) }, Port: cfg.Worker.DockerPort,
		CheckAddr: func(addr string) error { return hetzner.CheckHostAddr(addr, cfg.Hetzner.Simulated) }, Login: login,
	})
}

// specs are the containers of one server.
func (c *containers) specs(serverID prego.ServerID, role prego.Role, private, bench string) ([]server.ContainerSpec, error) {
	vars := map[string]string{
		"server_id": string(serverID), "role": string(role), "bench_image": cmp.Or(bench, c.image),
		// What would listen on it is reached from its own host only, as before there were networks.
		"private_address": cmp.Or(private, "127.0.0.1"), "private": private,
	}
	specs, err := c.stack.For(role, vars, func(name string) string {
		// Secrets are derived, so that the same server gets the same ones and none is
		// stored.
		mac := hmac.New(sha256.New, c.key)
		mac.Write([]byte(string("prego stack secret v1\x00"+serverID+"\x00") + name))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	})
	if err != nil {
		return nil, &server.ContainerError{Container: "all", Message: err.Error()}
	}
	return specs, nil
}

// pin replaces resolved images' names by their digests. With a host, it resolves the
// others there: the first host that pulls an image decides for all.
func (c *containers) pin(ctx context.Context, specs []server.ContainerSpec, resolveOn *dockerhost.Host) error {
	known := make(map[string]string)
	for i, spec := range specs {
		digest, ok := known[spec.Image]
		if !ok {
			var err error
			if digest, err = c.digestOf(ctx, spec.Image, resolveOn); err != nil {
				return err
			}
			known[spec.Image] = digest
		}
		specs[i].Image = dockerhost.Pinned(spec.Image, digest)
	}
	return nil
}

func (c *containers) digestOf(ctx context.Context, image string, resolveOn *dockerhost.Host) (string, error) {
	digest, ok, err := c.digests.ImageDigest(ctx, image)
	if err != nil || ok || resolveOn == nil || strings.Contains(image, "@") {
		return digest, err
	}
	if digest, err = resolveOn.Resolve(ctx, image); err != nil || digest == "" {
		return "", err // an image loaded by hand has no digest
	}
	return c.digests.PutImageDigest(ctx, image, digest)
}

// on calls f with a server's engine and declaration.
func (c *containers) on(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role, resolve bool, f func(*dockerhost.Host, []server.ContainerSpec) error) error {
	var private, bench string
	if c.stack.Refers(role, "private_address") || c.stack.Refers(role, "bench_image") { // else the row is not needed
		var err error
		if private, bench, err = c.place(ctx, serverID); err != nil {
			return err
		}
	}
	specs, err := c.specs(serverID, role, private, bench)
	if err != nil {
		return err
	}
	h, err := c.hosts.Host(serverID, addr)
	if err != nil {
		return err
	}
	defer h.Close()
	on := h
	if !resolve {
		on = nil
	}
	if err := c.pin(ctx, specs, on); err != nil {
		return err
	}
	return f(h, specs)
}

// PrepareBench fetches an image to a host, so that its bench can switch to it immediately.
func (c *containers) PrepareBench(ctx context.Context, serverID prego.ServerID, addr, image string) error {
	h, err := c.hosts.Host(serverID, addr)
	if err != nil {
		return err
	}
	defer h.Close()
	digest, err := c.digestOf(ctx, image, h)
	if err != nil {
		return err
	}
	_, err = h.Resolve(ctx, dockerhost.Pinned(image, digest)) // another host may have decided which it is
	return err
}

func (c *containers) StartContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) error {
	return c.on(ctx, serverID, addr, role, true, func(h *dockerhost.Host, specs []server.ContainerSpec) error { return h.Up(ctx, specs) })
}

func (c *containers) CheckContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) ([]server.ContainerDrift, error) {
	return c.drift(ctx, serverID, addr, role, false, (*dockerhost.Host).Check)
}

func (c *containers) RepairContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) ([]server.ContainerDrift, error) {
	return c.drift(ctx, serverID, addr, role, true, (*dockerhost.Host).Repair)
}

func (c *containers) drift(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role, resolve bool,
	look func(*dockerhost.Host, context.Context, []server.ContainerSpec) ([]server.ContainerDrift, error),
) (drift []server.ContainerDrift, err error) {
	err = c.on(ctx, serverID, addr, role, resolve, func(h *dockerhost.Host, specs []server.ContainerSpec) error {
		drift, err = look(h, ctx, specs)
		return err
	})
	return drift, err
}
