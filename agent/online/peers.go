package online

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// peersSync keeps the host's peers document as the gateway has it. Another process applies it.
type peersSync struct {
	host *host.Host
	// keeper is in this process on hosts without a firewall.
	keeper  func(context.Context, host.PeersRequest) host.PeersAnswer
	wake    chan struct{}
	mu      sync.Mutex // one at a time
	inForce atomic.Pointer[host.PeersAnswer]
}

func newPeersSync(h *host.Host) *peersSync {
	s := &peersSync{host: h, wake: make(chan struct{}, 1)}
	s.inForce.Store(&host.PeersAnswer{})
	return s
}

// WithoutFirewall is for a simulated host, which has no process for what takes root: keeper
// keeps its peers documents in this one, and install gives its containers the certificate for
// databases and caches, now and whenever there is another one.
func (a *Agent) WithoutFirewall(keeper func(context.Context, host.PeersRequest) host.PeersAnswer, install func() error) error {
	a.peers.keeper, a.install = keeper, install
	return install()
}

// ask hands a request to the process that applies documents.
func (s *peersSync) ask(ctx context.Context, in host.PeersRequest) (host.PeersAnswer, error) {
	var out host.PeersAnswer
	socket := s.host.Path(wire.PeersSocket)
	if s.keeper != nil {
		out = s.keeper(ctx, in)
	} else if err := host.Ask(ctx, socket, host.NFTTime+10*time.Second, in, nil, &out); err != nil {
		return out, err
	}
	s.inForce.Store(&out)
	return out, nil
}

// told compares the version in a heartbeat's answer with the active one.
func (s *peersSync) told(version int64, keys map[string]string) {
	now := s.inForce.Load()
	if version == 0 || (version == now.Applied && slices.Equal(now.Keys, slices.Sorted(maps.Keys(keys)))) {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// followPeers fetches the document whenever a heartbeat's answer names another one.
func (a *Agent) followPeers(ctx context.Context, log *slog.Logger) error {
	if _, err := a.peers.ask(ctx, host.PeersRequest{}); err != nil {
		log.Info("no process applies peers documents here", "error", err.Error())
	}
	for {
		select {
		case <-a.peers.wake:
		case <-ctx.Done():
			return nil
		}
		if _, err := a.fetchPeers(ctx, "", log); err != nil && ctx.Err() == nil {
			log.Warn("peers are not as the gateway has them", "error", err.Error())
		}
	}
}

// fetchPeers fetches the document, has it applied, and reports to the gateway. caller is the control plane's address
// if it requested this, otherwise "".
func (a *Agent) fetchPeers(ctx context.Context, caller string, log *slog.Logger) (applied int64, err error) {
	s := a.peers
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.ask(ctx, host.PeersRequest{})
	if err != nil {
		reason := host.Clip("the process that applies documents did not answer: "+err.Error(), wire.MaxPeersRefused)
		tell := wire.PeersRequest{Refused: reason}
		_, terr := a.askPeers(ctx, tell)
		return 0, errors.Join(err, terr)
	}
	got, err := a.askPeers(ctx, wire.PeersRequest{Applied: now.Applied, Keys: now.Keys, Refused: now.LeftOut})
	if err != nil || got.Signed == nil {
		return now.Applied, err
	}
	next, err := s.ask(ctx, host.PeersRequest{Signed: got.Signed, Caller: caller})
	if err != nil {
		return now.Applied, err
	}
	tell := wire.PeersRequest{Applied: next.Applied, Keys: next.Keys, Refused: cmp.Or(next.Refused, next.LeftOut)}
	if _, err := a.askPeers(ctx, tell); err != nil {
		return next.Applied, err
	}
	if next.Refused != "" {
		return next.Applied, errors.New(next.Refused)
	}
	if err := a.renewForAddress(ctx, next.Address, log); err != nil {
		log.Warn("identity not renewed for the private address", "error", err.Error())
	}
	return next.Applied, nil
}

func (a *Agent) askPeers(ctx context.Context, in wire.PeersRequest) (out wire.PeersResponse, err error) {
	s := a.current.Load()
	err = s.Gateway.PostJSON(ctx, wire.PathPeers, s.ID.Token, in, &out)
	return out, err
}

// peersNow answers a command of KindPeers: it fetches the document immediately.
func (a *Agent) peersNow(ctx context.Context, w http.ResponseWriter, r *http.Request, claims execClaims, body []byte, log *slog.Logger) *policy.Problem {
	if refused := a.spend(claims, string(wire.KindPeers), log); refused != nil {
		return refused
	}
	var in wire.ExecRequest
	if err := json.Unmarshal(body, &in); err != nil || in.ServerID != a.host.Config.ServerID {
		return policy.Invalid("serverId", "this is another server")
	}
	version, err := strconv.ParseInt(strings.Join(in.Args, " "), 10, 64)
	if err != nil || version < 1 {
		return policy.Invalid("args", "must be the version to have, at least 1")
	}
	caller, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		caller = ""
	}
	asking, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(errEnding) })()
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(host.NFTTime + host.WriteTime))
	applied, err := a.fetchPeers(asking, caller, log)
	if err == nil && applied < version {
		err = fmt.Errorf("the gateway has version %d", applied)
	}
	if err != nil {
		log.Warn("peers are not as the control plane wants them", "error", err.Error())
		return &policy.Problem{Status: http.StatusServiceUnavailable, Code: "peers_not_applied", Detail: host.Clip(host.Printable(err.Error()), wire.MaxPeersRefused), RetryAfter: 1}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(wire.PeersNowResponse{Applied: applied})
	return nil
}
