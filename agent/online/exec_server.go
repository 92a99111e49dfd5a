package online

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// maxExecTTL is the longest life of a command's token.
const maxExecTTL = 5 * time.Minute

// serve answers the control plane on the agent's port.
func (a *Agent) serve(ctx context.Context, log *slog.Logger) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(a.addr, strconv.Itoa(a.host.Config.AgentPort)))
	if err != nil {
		return fmt.Errorf("exec endpoint: %w", err)
	}
	srv := &http.Server{
		Handler: a.execHandler(ctx, log), TLSConfig: a.execTLS(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 60 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = srv.Shutdown(drain)
	}()
	err = srv.ServeTLS(l, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		<-done
		return nil
	}
	return fmt.Errorf("exec endpoint: %w", err)
}

// execTLS accepts only the control plane: a certificate of the exec CA with its name.
// Certificate and trust follow rotations without a restart.
func (a *Agent) execTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.current.Load().Server, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			s, leaf := a.current.Load(), cs.PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.TrustExec, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				return errors.New("the client is not the control plane")
			}
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "prego://"+s.ID.Environment+"/control-plane" {
				return errors.New("the client is not the control plane of this environment")
			}
			return nil
		},
	}
}

// execHandler accepts commands from the control plane. ctx ends with the server: waiting callers then get an error.
func (a *Agent) execHandler(ctx context.Context, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := a.exec(ctx, w, r, log); p != nil {
			p.Write(w)
		}
	})
}

func (a *Agent) exec(ctx context.Context, w http.ResponseWriter, r *http.Request, log *slog.Logger) *policy.Problem {
	if refused := policy.NotAnEndpoint(w, r); refused != nil {
		return refused
	}
	claims, refused := a.authorize(r)
	if refused != nil {
		return refused
	}
	body, refused := policy.ReadBody(w, r)
	if refused != nil {
		return refused
	}
	if claims.Body != policy.Digest(body) {
		return &policy.Problem{Status: http.StatusUnauthorized, Code: "unauthenticated", Detail: "the token is for another request"}
	}
	if refused := a.admit(claims.Epoch, log); refused != nil {
		return refused
	}
	began := time.Now()
	var of struct{ Kind wire.CommandKind }
	if r.URL.Path == wire.PathExec && json.Unmarshal(body, &of) == nil {
		own := a.transfer
		if of.Kind == wire.KindPeers {
			own = a.peersNow
		}
		if of.Kind == wire.KindPeers || of.Kind == wire.KindTransfer { // which this process answers by itself
			defer tellTraced(log, r, string(of.Kind), "", began)
			return own(ctx, w, r, claims, body, log)
		}
	}
	in, refused := policy.Parse(a.host.Config.ServerID, body)
	if refused != nil {
		return refused
	}
	if refused := a.spend(claims, string(in.Kind), log); refused != nil {
		return refused
	}
	if _, refused := policy.Check(in); refused != nil {
		return refused
	}
	defer tellTraced(log, r, string(in.Kind), in.AuditID, began)
	return a.forward(ctx, w, r, body, log)
}

// spend takes the token of a request of a kind: it is for this time only.
func (a *Agent) spend(claims execClaims, kind string, log *slog.Logger) *policy.Problem {
	if claims.Scope != wire.ScopeExecPrefix+kind {
		return &policy.Problem{Status: http.StatusForbidden, Code: "scope_missing", Detail: "the token is for another kind of command"}
	}
	fresh, err := a.used.use(claims.ID, claims.ExpiresAt.Time)
	switch {
	case err != nil:
		log.Error("a token can't be remembered, and so not be taken", "error", err.Error())
		return &policy.Problem{Status: http.StatusServiceUnavailable, Code: "token_not_kept", Detail: "the host can't keep that the token was used", RetryAfter: 5}
	case !fresh:
		return &policy.Problem{Status: http.StatusUnauthorized, Code: "unauthenticated", Detail: "the token was used already"}
	}
	return nil
}

// admit refuses the commands of a control plane that works with a database which has been replaced by a restored one.
func (a *Agent) admit(epoch int64, log *slog.Logger) *policy.Problem {
	current, err := a.epoch.raise(epoch)
	switch {
	case err != nil:
		log.Error("the control plane's epoch can't be recorded", "error", err.Error())
		return &policy.Problem{Status: http.StatusServiceUnavailable, Code: "epoch_not_kept", Detail: "the host can't record the control plane's epoch", RetryAfter: 5}
	case epoch < current:
		return &policy.Problem{Status: http.StatusServiceUnavailable, Code: wire.CodeEpochPassed, Detail: fmt.Sprintf(
			"this control plane's database was replaced by a restored one: its epoch is %d, this host's %d", epoch, current), RetryAfter: 60}
	}
	return nil
}

type execClaims struct {
	jwt.RegisteredClaims
	Scope string `json:"scope"`
	Body  string `json:"body"` // SHA-256 of the request's body, in hex
	Epoch int64  `json:"epoch,omitempty"`
}

// authorize checks the command's token: signed by a key that the control plane sent,
// for this server, for one request of one kind, for five minutes at most.
func (a *Agent) authorize(r *http.Request) (execClaims, *policy.Problem) {
	var c execClaims
	bad := &policy.Problem{Status: http.StatusUnauthorized, Code: "unauthenticated", Detail: "a valid exec token is required"}
	scheme, raw, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return c, bad
	}
	_, err := jwt.ParseWithClaims(raw, &c, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		key, ok := a.current.Load().ExecKeys[kid]
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
