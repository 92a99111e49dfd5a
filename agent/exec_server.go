package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/prego/prego/agent/wire"
)

// maxExecTTL is the longest life of a command's token.
const maxExecTTL = 5 * time.Minute

const maxExecBody = 64 << 10

// problem is a refusal of the exec endpoint.
type problem struct {
	status     int
	code       string
	field      string
	detail     string
	retryAfter int // s; 0 says nothing
}

// serve answers the control plane on the agent's port.
func (a *Agent) serve(ctx context.Context, log *slog.Logger) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(a.addr, strconv.Itoa(a.host.Config.AgentPort)))
	if err != nil {
		return fmt.Errorf("exec endpoint: %w", err)
	}
	srv := &http.Server{
		Handler: a.execHandler(log), TLSConfig: a.execTLS(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 60 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		a.cmds.stop() // what runs is killed, so that its callers are answered
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = srv.Shutdown(drain)
	}()
	err = srv.ServeTLS(l, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		<-done
		return nil
	}
	a.cmds.stop()
	return fmt.Errorf("exec endpoint: %w", err)
}

// execTLS takes only the control plane: a certificate of the exec CA that names
// it. Certificate and trust follow rotations without a restart.
func (a *Agent) execTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.current.Load().server, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			s, leaf := a.current.Load(), cs.PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.trustExec, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				return errors.New("the client is not the control plane")
			}
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "prego://"+s.id.Environment+"/control-plane" {
				return errors.New("the client is not the control plane of this environment")
			}
			return nil
		},
	}
}

func (a *Agent) execHandler(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := a.exec(w, r, log); p != nil {
			if p.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(p.retryAfter))
			}
			w.Header().Set("Content-Type", "application/problem+json")
			if p.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			w.WriteHeader(p.status)
			_ = json.NewEncoder(w).Encode(wire.Problem{
				Type: "about:blank", Title: http.StatusText(p.status), Status: p.status, Code: p.code, Detail: p.detail, Field: p.field,
			})
		}
	})
}

func (a *Agent) exec(w http.ResponseWriter, r *http.Request, log *slog.Logger) *problem {
	if r.URL.Path != wire.PathExec && r.URL.Path != wire.PathExecStream {
		return &problem{status: http.StatusNotFound, code: "not_found", detail: "there is nothing at this path"}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return &problem{status: http.StatusMethodNotAllowed, code: "method_not_allowed", detail: "this path takes POST"}
	}
	claims, refused := a.authorize(r)
	if refused != nil {
		return refused
	}
	var in wire.ExecRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExecBody))
	dec.DisallowUnknownFields()
	err := dec.Decode(&in)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("there is more than one document")
		}
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &problem{status: http.StatusRequestEntityTooLarge, code: "body_too_large", detail: "a command may hold at most 64 KiB"}
	case err != nil:
		return &problem{status: http.StatusBadRequest, code: "invalid_json", detail: "the body is not one exec request"}
	}
	switch {
	case !in.Kind.Valid():
		return &problem{status: http.StatusBadRequest, code: "kind_unknown", field: "kind", detail: "kind must be bench, mariadb or redis-cli"}
	case in.ServerID != a.host.Config.ServerID:
		return &problem{status: http.StatusUnprocessableEntity, code: "invalid_field", field: "serverId", detail: "this is another server"}
	case claims.Scope != wire.ScopeExecPrefix+string(in.Kind):
		return &problem{status: http.StatusForbidden, code: "scope_missing", detail: "the token is for another kind of command"}
	}
	if !a.jtis.use(claims.ID, claims.ExpiresAt.Time) {
		return &problem{status: http.StatusUnauthorized, code: "unauthenticated", detail: "the token was used already"}
	}
	if in.Kind != wire.KindBench || r.URL.Path != wire.PathExec {
		return &problem{status: http.StatusNotImplemented, code: "not_implemented", detail: "this agent does not run such commands yet"}
	}
	return a.bench(w, r, in, log)
}

// bench answers once the command has ended. Nobody but the command limits how
// long that takes; writing the answer is limited again.
func (a *Agent) bench(w http.ResponseWriter, r *http.Request, in wire.ExecRequest, log *slog.Logger) *problem {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	defer func() { _ = control.SetWriteDeadline(time.Now().Add(30 * time.Second)) }()
	c, refused := a.cmds.submit(in, log)
	if refused != nil {
		return refused
	}
	select {
	case <-c.ended:
	case <-r.Context().Done():
		return nil // nobody listens; the command goes on for whoever asks again
	}
	if c.failed != nil {
		return c.failed
	}
	_ = control.SetWriteDeadline(time.Now().Add(30 * time.Second))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(c.result)
	return nil
}

type execClaims struct {
	jwt.RegisteredClaims
	Scope string `json:"scope"`
}

// authorize checks the command's token: signed by a key that the control plane
// told us, for this server, for one kind, for five minutes at most.
func (a *Agent) authorize(r *http.Request) (execClaims, *problem) {
	var c execClaims
	bad := &problem{status: http.StatusUnauthorized, code: "unauthenticated", detail: "a valid exec token is required"}
	scheme, raw, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return c, bad
	}
	_, err := jwt.ParseWithClaims(raw, &c, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		key, ok := a.current.Load().execKeys[kid]
		if !ok {
			return nil, errors.New("unknown key")
		}
		return key, nil
	}, jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithIssuer("prego"), jwt.WithAudience(a.host.Config.ServerID),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(30*time.Second))
	if err != nil || c.ID == "" || len(c.Audience) != 1 || c.IssuedAt == nil || c.ExpiresAt.Sub(c.IssuedAt.Time) > maxExecTTL {
		return c, bad
	}
	return c, nil
}

func parseExecKeys(in map[string]string) (map[string]any, error) {
	out := make(map[string]any, len(in))
	for kid, text := range in {
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			return nil, fmt.Errorf("exec key %s is not PEM", kid)
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("exec key %s: %w", kid, err)
		}
		if _, ok := key.(ed25519.PublicKey); !ok {
			return nil, fmt.Errorf("exec key %s is not Ed25519", kid)
		}
		out[kid] = key
	}
	return out, nil
}

// seen remembers the ids of tokens until they expire: each is good once.
type seen struct {
	mu  sync.Mutex
	ids map[string]time.Time
}

func newSeen() *seen { return &seen{ids: make(map[string]time.Time)} }

func (s *seen) use(id string, expires time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for old, until := range s.ids {
		if now.After(until.Add(time.Minute)) {
			delete(s.ids, old)
		}
	}
	if _, used := s.ids[id]; used {
		return false
	}
	s.ids[id] = expires
	return true
}
