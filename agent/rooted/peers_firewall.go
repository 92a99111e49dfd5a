package rooted

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// PeersFirewall is the process that applies peers documents. It may change the host's firewall, and so could open it to
// everyone: it has no access to the network, takes requests from one user, and trusts only documents that are signed
// with a key known from the host's enrolment, or from an earlier trusted document.
type PeersFirewall struct {
	host *host.Host
	// nft runs nft with a ruleset; nil on a host without a firewall.
	nft func(ctx context.Context, ruleset string, args ...string) error
	log *slog.Logger

	mu sync.Mutex
}

// NewPeersFirewall keeps the peers of a host. One without firewall checks and keeps documents,
// and filters nothing: simulated hosts that share one network have none.
func NewPeersFirewall(h *host.Host, firewall bool, log *slog.Logger) *PeersFirewall {
	k := &PeersFirewall{host: h, log: log}
	if firewall {
		k.nft = runNFT
	}
	return k
}

// peersState is the state on disk: the last good document with its signature, and the keys that may sign the next
// one, in one file.
type peersState struct {
	Signed  wire.SignedPeers  `json:"signed"`
	Keys    map[string]string `json:"keys"`
	LeftOut []string          `json:"left_out,omitempty"` // of the document, with the reasons
}

const peersFile = wire.PeersDir + "/state.json"

// Run serves until ctx ends. Only the named user may ask; "" is its own.
func (k *PeersFirewall) Run(caller string) func(context.Context, net.Listener) error {
	return func(ctx context.Context, l net.Listener) error {
		return host.Serve(ctx, l, caller, k.log, func(conn net.Conn) {
			var in host.PeersRequest
			answer := host.PeersAnswer{Refused: "this is no request"}
			if _, err := host.ReadRequest(conn, 2*wire.MaxPeersDocument, &in); err == nil {
				answer = k.Apply(ctx, in)
			}
			_ = conn.SetWriteDeadline(time.Now().Add(host.WriteTime))
			_ = json.NewEncoder(conn).Encode(answer)
		})
	}
}

// Apply applies a good document, and returns the active one.
func (k *PeersFirewall) Apply(ctx context.Context, in host.PeersRequest) host.PeersAnswer {
	k.mu.Lock()
	defer k.mu.Unlock()
	state, doc, err := k.load()
	if err != nil {
		// The active document stays. A good document replaces the state on disk.
		k.log.Error("the active document is unknown", "error", err.Error())
	}
	answer := host.PeersAnswer{Applied: doc.Version, Address: doc.Address}
	if in.Signed != nil {
		next, leftOut, refused := k.accept(ctx, state.Keys, doc.Version, in)
		switch {
		case refused != nil:
			k.log.Warn("a peers document was refused", "error", refused.Error())
			answer.Refused = host.Clip(refused.Error(), wire.MaxPeersRefused)
		default:
			answer.Applied, answer.Address, state.Keys = next.Version, next.Address, next.Keys
			state.LeftOut = leftOut
			k.log.Info("peers", "version", next.Version, "left_out", leftOut)
		}
	}
	if len(state.LeftOut) > 0 {
		answer.LeftOut = host.Clip("left out: "+strings.Join(state.LeftOut, "; "), wire.MaxPeersRefused)
	}
	answer.Keys = slices.Sorted(maps.Keys(state.Keys))
	return answer
}

// accept applies a document and keeps it. Parts that can't be applied are left out.
func (k *PeersFirewall) accept(
	ctx context.Context, trusted map[string]string, version int64, in host.PeersRequest,
) (doc wire.PeersDocument, leftOut []string, err error) {
	if doc, err = in.Signed.Open(trusted); err != nil {
		return doc, nil, err
	}
	if doc.Version < version {
		return doc, nil, fmt.Errorf("version %d is older than the active version %d", doc.Version, version)
	}
	if len(doc.Keys) == 0 {
		return doc, nil, errors.New("it names no key that may sign the next one")
	}
	for id, text := range doc.Keys {
		if _, err := wire.ParsePeersKey(text); err != nil {
			return doc, nil, fmt.Errorf("key %s: %w", id, err)
		}
	}
	if _, err := in.Signed.Open(doc.Keys); err != nil {
		return doc, nil, errors.New("no key that it names signed it: it could not be checked at the next boot")
	}
	if in.Caller != "" && !letsIn(doc.Control.CIDRs, in.Caller) {
		return doc, nil, fmt.Errorf("it would shut out the control plane, which calls from %s", in.Caller)
	}
	rules, leftOut, err := k.checked(ctx, doc)
	if err != nil {
		return doc, nil, err
	}
	if err := k.replace(ctx, rules); err != nil {
		return doc, nil, err
	}
	b, err := json.Marshal(peersState{Signed: *in.Signed, Keys: doc.Keys, LeftOut: leftOut})
	if err != nil {
		return doc, nil, err
	}
	if err := os.MkdirAll(k.host.Path(wire.PeersDir), 0o700); err != nil {
		return doc, nil, err
	}
	return doc, leftOut, host.WriteFile(k.host.Path(peersFile), b, 0o600)
}

// rules is the ruleset of a document of this host.
func (k *PeersFirewall) rules(doc wire.PeersDocument) (rules string, leftOut []string, err error) {
	if doc.Environment != k.host.Config.Environment || doc.ServerID != k.host.Config.ServerID {
		return "", nil, fmt.Errorf("it is of server %q in environment %q", doc.ServerID, doc.Environment)
	}
	if doc.Version < 1 {
		return "", nil, errors.New("it has no version")
	}
	return ruleset(k.host, doc)
}

// checked is the ruleset of a document without the parts that nft refuses: of a host's few kinds of access, each is
// tried alone if it refuses all together.
func (k *PeersFirewall) checked(ctx context.Context, doc wire.PeersDocument) (string, []string, error) {
	rules, leftOut, err := k.rules(doc)
	if err != nil {
		return "", nil, err
	}
	refused := k.replace(ctx, rules, "--check")
	if refused == nil {
		return rules, leftOut, nil
	}
	all := doc.Access
	var kept []wire.PeersAccess
	var without []string
	for _, a := range all {
		doc.Access = []wire.PeersAccess{a}
		if rules, _, err = k.rules(doc); err != nil {
			return "", nil, err
		}
		if err := k.replace(ctx, rules, "--check"); err != nil {
			without = append(without, fmt.Sprintf("ports %v: %v", a.Ports, err))
			continue
		}
		kept = append(kept, a)
	}
	if len(kept) == len(all) {
		return "", nil, refused
	}
	doc.Access = kept
	if rules, leftOut, err = k.rules(doc); err == nil {
		err = k.replace(ctx, rules, "--check")
	}
	return rules, append(leftOut, without...), err
}

// letsIn reports whether an address is in one of the networks.
func letsIn(cidrs []string, address string) bool {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(cidrs, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(a.Unmap())
	})
}

// load reads the state on disk. Without any, the keys are the keys of the enrolment.
func (k *PeersFirewall) load() (peersState, wire.PeersDocument, error) {
	var state peersState
	enrolled := func(err error) (peersState, wire.PeersDocument, error) {
		state = peersState{}
		if b, kerr := os.ReadFile(k.host.Path(wire.PeersKeysPath)); kerr == nil {
			err = errors.Join(err, json.Unmarshal(b, &state.Keys))
		}
		return state, wire.PeersDocument{}, err
	}
	b, err := os.ReadFile(k.host.Path(peersFile))
	if errors.Is(err, os.ErrNotExist) {
		return enrolled(nil)
	}
	if err != nil {
		return enrolled(err)
	}
	if err := json.Unmarshal(b, &state); err != nil {
		return enrolled(err)
	}
	// The document names its own keys, and the file belongs to root.
	doc, err := state.Signed.Open(state.Keys)
	if err == nil {
		_, _, err = k.rules(doc)
	}
	if err != nil {
		return enrolled(err)
	}
	return state, doc, nil
}

// Restore applies the last good document again, before the host's network is up. Without one, or if it can't, the
// ruleset of the first boot stays: it admits only the control plane.
func (k *PeersFirewall) Restore(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, doc, err := k.load()
	if err != nil || doc.Version == 0 {
		return err
	}
	rules, _, err := k.checked(ctx, doc)
	if err != nil {
		return err
	}
	return k.replace(ctx, rules)
}

// replace replaces the ruleset in one transaction of the kernel.
func (k *PeersFirewall) replace(ctx context.Context, rules string, args ...string) error {
	if k.nft == nil {
		return nil
	}
	return k.nft(ctx, rules, args...)
}

func runNFT(ctx context.Context, ruleset string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), host.NFTTime) // never stopped in the middle
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/sbin/nft", append(args, "--file", "-")...)
	cmd.Stdin = strings.NewReader(ruleset)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, host.Printable(strings.TrimSpace(host.Clip(errs.String(), 300))))
	}
	return nil
}
