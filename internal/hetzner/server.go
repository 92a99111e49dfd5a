package hetzner

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// CreateServer creates a server with one POST, or adopts the server that an earlier call of the same attempt created.
// The answer's root password is discarded.
//
// If the outcome is unknown, the name is looked up: a server of the same attempt and spec is adopted; an older one of
// ours is deleted and the create repeated once. Without such a server the error is InfraAmbiguous: the create may
// still complete, and its name then keeps any other from succeeding.
func (p *Provider) CreateServer(ctx context.Context, params server.CreateParams) (server.Handle, error) {
	opts, err := createOpts(params)
	if err != nil {
		return server.Handle{}, err
	}
	for replaced := false; ; replaced = true {
		result, _, err := p.write.Server.Create(WithLane(ctx, LaneCreate), opts)
		if err == nil && result.Server.ID == 0 {
			err = errors.New("the answer holds no server")
		}
		if err == nil {
			return handleOf(result.Server, actionIDs(result.Action, result.NextActions)), nil
		}
		err = p.classify(err)
		if !mayExist(err) {
			return server.Handle{}, err
		}
		found, findErr := p.byName(ctx, opts.Name)
		if findErr != nil {
			return server.Handle{}, ambiguous(err, findErr)
		}
		if found == nil {
			return server.Handle{}, ambiguous(err, nil)
		}
		h, adopt, err := adoptable(found, params)
		if err != nil || adopt {
			return h, err
		}
		if replaced {
			return server.Handle{}, infraError(server.InfraRetry, "uniqueness_error",
				"the name was taken again while it was being freed")
		}
		if err := p.DestroyServer(ctx, prego.ServerID(h.ProviderServerID)); err != nil {
			return server.Handle{}, err
		}
	}
}

// adoptable decides about an existing server with our name: adopt it, replace it (no error, no adoption), or leave it
// alone.
func adoptable(found *hcloud.Server, params server.CreateParams) (h server.Handle, adopt bool, err error) {
	h = handleOf(found, nil)
	// Without an attempt number it might be taken for an older one, and deleted.
	ours := found.Labels[server.LabelManagedBy] == server.ManagedByPrego && h.Attempt > 0 &&
		found.Labels[server.LabelEnvironment] == params.Environment &&
		prego.ServerID(found.Labels[server.LabelServerID]) == params.ServerID
	switch {
	case !ours:
		return h, false, infraError(server.InfraForeign, "uniqueness_error",
			"the name %s is taken by server %d, which is not ours", found.Name, found.ID)
	case h.Attempt > params.Attempt:
		return h, false, infraError(server.InfraAttempt, "uniqueness_error",
			"server %d belongs to the later attempt %d", found.ID, h.Attempt)
	case h.Attempt == params.Attempt && h.SpecHash == params.SpecHash:
		h.Adopted = true
		return h, true, nil
	}
	return h, false, nil
}

// mayExist reports whether, after this error, a server of that name may exist.
func mayExist(err error) bool {
	e := infraOf(err)
	taken := e.Code == string(hcloud.ErrorCodeUniquenessError)
	return taken || e.Class == server.InfraAmbiguous || unknownOutcome[e.Code]
}

func ambiguous(cause, find error) error {
	message, code := cause.Error(), ""
	if ie, ok := errors.AsType[*server.InfraError](cause); ok {
		message, code = ie.Message, ie.Code
	}
	if find != nil {
		message += "; looking it up: " + find.Error()
	}
	return infraError(server.InfraAmbiguous, code, "%s", message)
}

func createOpts(p server.CreateParams) (hcloud.ServerCreateOpts, error) {
	opts := hcloud.ServerCreateOpts{
		Name:             server.Name(p.Environment, p.ServerID),
		ServerType:       &hcloud.ServerType{Name: p.Candidate.ServerType},
		Image:            imageRef(p.Image),
		Location:         &hcloud.Location{Name: p.Candidate.Location},
		UserData:         p.UserData,
		StartAfterCreate: new(true),
		Labels:           p.Labels(),
		PublicNet:        &hcloud.ServerCreatePublicNet{EnableIPv4: true, EnableIPv6: true},
	}
	var wrong error
	ref := func(text string) int64 {
		id, err := parseID(text)
		wrong = cmp.Or(wrong, err)
		return id
	}
	for _, firewall := range []string{p.FirewallID, p.PublicFirewall} {
		if firewall != "" {
			f := &hcloud.ServerCreateFirewall{Firewall: hcloud.Firewall{ID: ref(firewall)}}
			opts.Firewalls = append(opts.Firewalls, f)
		}
	}
	if p.PlacementGroup != "" {
		opts.PlacementGroup = &hcloud.PlacementGroup{ID: ref(p.PlacementGroup)}
	}
	if p.NetworkID != "" {
		opts.Networks = []*hcloud.Network{{ID: ref(p.NetworkID)}}
	}
	for _, v := range p.VolumeIDs {
		opts.Volumes = append(opts.Volumes, &hcloud.Volume{ID: ref(string(v))})
		opts.Automount = new(false)
	}
	if wrong != nil {
		return opts, wrong
	}
	if err := opts.Validate(); err != nil {
		return opts, infraError(server.InfraPermanent, "invalid_input", "%s", err)
	}
	return opts, nil
}

func handleOf(s *hcloud.Server, actions []int64) server.Handle {
	h := server.Handle{
		ProviderServerID: strconv.FormatInt(s.ID, 10), Name: s.Name, Status: string(s.Status),
		SpecHash: s.Labels[server.LabelSpecHash], CreatedAt: s.Created, ActionIDs: actions,
	}
	h.Attempt, _ = strconv.Atoi(s.Labels[server.LabelAttempt])
	h.ServerType, h.Location = typeName(s.ServerType), locationName(s.Location)
	if !s.PublicNet.IPv4.IsUnspecified() {
		h.IPv4 = s.PublicNet.IPv4.IP.String()
	}
	if s.PublicNet.IPv6.Network != nil {
		h.IPv6 = s.PublicNet.IPv6.Network.String()
	}
	for _, n := range s.PrivateNet {
		if n.Network != nil && n.IP != nil {
			h.Private = append(h.Private, server.PrivateAddress{
				ProviderNetworkID: strconv.FormatInt(n.Network.ID, 10), IP: n.IP.String(),
			})
		}
	}
	for _, id := range []int64{s.PublicNet.IPv4.ID, s.PublicNet.IPv6.ID} {
		if id != 0 {
			h.PrimaryIPIDs = append(h.PrimaryIPIDs, strconv.FormatInt(id, 10))
		}
	}
	return h
}

func actionIDs(first *hcloud.Action, next []*hcloud.Action) []int64 {
	var ids []int64
	for _, a := range append([]*hcloud.Action{first}, next...) {
		if a != nil {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

func (p *Provider) byName(ctx context.Context, name string) (*hcloud.Server, error) {
	servers, _, err := p.read.Server.List(WithLane(ctx, LaneCreate), hcloud.ServerListOpts{Name: name})
	if err != nil {
		return nil, p.classify(err)
	}
	if len(servers) == 0 {
		return nil, nil
	}
	return servers[0], nil
}

// AwaitRunning waits until the server's actions are done and the provider reports it as running. beat is called after
// each poll. ctx limits the wait.
func (p *Provider) AwaitRunning(ctx context.Context, h server.Handle, beat func(status string)) (server.Handle, error) {
	if len(h.ActionIDs) > 0 {
		beat("waiting for the provider's actions")
		if err := p.actions.wait(ctx, h.ActionIDs); err != nil {
			return h, err
		}
	}
	for {
		now, err := p.GetServer(ctx, prego.ServerID(h.ProviderServerID))
		if ended := ctx.Err(); ended != nil {
			// The caller's time is up. In the middle of a read that looks like a provider that does not answer,
			// between two reads it does not: both get the same error.
			return h, ended
		}
		if err != nil {
			return h, err
		}
		beat(now.Status)
		if now.Status == string(hcloud.ServerStatusRunning) {
			return now, nil
		}
		if err := prego.Sleep(ctx, p.poll); err != nil {
			return h, err
		}
	}
}

// GetServer reads one server; InfraNotFound if there is none.
func (p *Provider) GetServer(ctx context.Context, providerServerID prego.ServerID) (server.Handle, error) {
	s, err := p.server(ctx, string(providerServerID))
	if err != nil {
		return server.Handle{}, err
	}
	return handleOf(s, nil), nil
}

func (p *Provider) server(ctx context.Context, id string) (*hcloud.Server, error) {
	return get(ctx, p, id, p.read.Server.GetByID, "there is no server %s")
}

// FindServers finds all our servers with a server id, by label.
func (p *Provider) FindServers(ctx context.Context, serverID prego.ServerID) ([]server.Handle, error) {
	selector := server.OwnerSelector(p.environment) + "," + server.LabelServerID + "=" + string(serverID)
	servers, err := p.read.Server.AllWithOpts(WithLane(ctx, LaneDelete), hcloud.ServerListOpts{
		ListOpts: hcloud.ListOpts{LabelSelector: selector, PerPage: 50},
	})
	if err != nil {
		return nil, p.classify(err)
	}
	out := make([]server.Handle, 0, len(servers))
	for _, s := range servers {
		out = append(out, handleOf(s, nil))
	}
	return out, nil
}

// LabelServer adds labels to a server, keeping existing ones.
func (p *Provider) LabelServer(ctx context.Context, providerServerID string, labels map[string]string) error {
	s, err := p.server(ctx, providerServerID)
	if err != nil {
		return err
	}
	if owner := s.Labels[server.LabelServerID]; owner != "" && owner != labels[server.LabelServerID] {
		return infraError(server.InfraForeign, "conflict", "server %d is already managed as %s", s.ID, owner)
	}
	if env := s.Labels[server.LabelEnvironment]; env != "" && env != labels[server.LabelEnvironment] {
		return infraError(server.InfraForeign, "conflict", "server %d belongs to environment %s", s.ID, env)
	}
	_, _, err = p.write.Server.Update(ctx, s, hcloud.ServerUpdateOpts{Labels: merge(s.Labels, labels)})
	return p.classify(err)
}

// LabelPrimaryIPs puts our labels on the addresses that came with a server.
func (p *Provider) LabelPrimaryIPs(ctx context.Context, h server.Handle, labels map[string]string) error {
	for _, pid := range h.PrimaryIPIDs {
		id, err := parseID(pid)
		if err != nil {
			return err
		}
		update := hcloud.PrimaryIPUpdateOpts{Labels: &labels}
		if _, _, err := p.write.PrimaryIP.Update(ctx, &hcloud.PrimaryIP{ID: id}, update); err != nil {
			return p.classify(err)
		}
	}
	return nil
}

// DestroyServer deletes a server and waits for it. A missing server is success.
func (p *Provider) DestroyServer(ctx context.Context, providerServerID prego.ServerID) error {
	id, err := parseID(string(providerServerID))
	if err != nil {
		return err
	}
	if err := p.mayDelete(ctx, server.ResourceServer, string(providerServerID)); err != nil {
		return err
	}
	ctx = WithLane(ctx, LaneDelete)
	result, _, err := p.write.Server.DeleteWithResult(ctx, &hcloud.Server{ID: id})
	if err != nil {
		return p.gone(err)
	}
	if result != nil && result.Action != nil {
		if err := p.gone(p.deletions.wait(ctx, []int64{result.Action.ID})); err != nil {
			return err
		}
	}
	for {
		if _, err := p.GetServer(ctx, providerServerID); err != nil {
			return p.gone(err)
		}
		if err := prego.Sleep(ctx, p.poll); err != nil {
			return err
		}
	}
}

func merge(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

const (
	// shutdownFor is how long a host may take to switch itself off before its power is cut.
	shutdownFor = time.Minute
	shutdownAsk = 3 * time.Second
)

// ResizeServer gives a server another type. Its disk keeps its size, so that it can go back. The server is shut down
// and started again, even if the provider refuses the type. A disk that is too large for the type is refused
// beforehand. Each step reads the current state.
func (p *Provider) ResizeServer(ctx context.Context, providerServerID prego.ServerID, serverType string) error {
	look := func() (*hcloud.Server, error) { return p.server(ctx, string(providerServerID)) }
	do := p.done(ctx)
	s, err := look()
	if err != nil {
		return err
	}
	var refused error
	if s.ServerType.Name != serverType {
		t, _, err := p.read.ServerType.GetByName(ctx, serverType)
		switch {
		case err != nil:
			return p.classify(err)
		case t == nil:
			return infraError(server.InfraPermanent, "", "the provider has no type %s", serverType)
		case t.Disk < s.PrimaryDiskSize:
			return infraError(server.InfraPermanent, "",
				"a %s has a disk of %d GB, and the server's has %d: disks don't shrink",
				serverType, t.Disk, s.PrimaryDiskSize)
		case t.Architecture != s.ServerType.Architecture:
			return infraError(server.InfraPermanent, "",
				"a %s has another architecture (%s)", serverType, t.Architecture)
		}
		if s, err = p.switchOff(ctx, s, look); err != nil {
			return err
		}
		refused = do(p.write.Server.ChangeType(ctx, s, hcloud.ServerChangeTypeOpts{ServerType: t, UpgradeDisk: false}))
		if s, err = look(); err != nil {
			return err
		}
	}
	if s.Status == hcloud.ServerStatusOff {
		if err := do(p.write.Server.Poweron(ctx, s)); err != nil {
			return errors.Join(err, refused)
		}
	}
	return refused
}

// switchOff shuts a server down, and cuts its power if that takes too long.
func (p *Provider) switchOff(
	ctx context.Context, s *hcloud.Server, look func() (*hcloud.Server, error),
) (*hcloud.Server, error) {
	if s.Status == hcloud.ServerStatusOff {
		return s, nil
	}
	if err := p.done(ctx)(p.write.Server.Shutdown(ctx, s)); err != nil {
		return nil, err
	}
	for until := time.Now().Add(shutdownFor); time.Now().Before(until); {
		now, err := look()
		if err != nil || now.Status == hcloud.ServerStatusOff {
			return now, err
		}
		if err := prego.Sleep(ctx, shutdownAsk); err != nil {
			return nil, err
		}
	}
	if err := p.done(ctx)(p.write.Server.Poweroff(ctx, s)); err != nil {
		return nil, err
	}
	return look()
}

// PowerOff cuts a server's power and waits for it. One that is off, or gone, is success.
func (p *Provider) PowerOff(ctx context.Context, providerServerID prego.ServerID) error {
	s, err := p.server(WithLane(ctx, LaneDelete), string(providerServerID))
	if err != nil {
		return p.gone(err)
	}
	if s.Status == hcloud.ServerStatusOff {
		return nil
	}
	return p.gone(p.done(ctx)(p.write.Server.Poweroff(ctx, s)))
}

// RebootServer restarts a server: by its button, which the host may ignore, or with hard by cutting its power. It
// waits for the provider's action, not for the host.
func (p *Provider) RebootServer(ctx context.Context, providerServerID prego.ServerID, hard bool) error {
	id, err := parseID(string(providerServerID))
	if err != nil {
		return err
	}
	press := p.write.Server.Reboot
	if hard {
		press = p.write.Server.Reset
	}
	return p.done(ctx)(press(ctx, &hcloud.Server{ID: id}))
}
