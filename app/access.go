package app

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

const (
	// JoinWithin is how long a link from the control plane's host is good for.
	JoinWithin = time.Hour
	// BreakGlassWithin is how long a login lasts that depends on no issuer and no passkey.
	BreakGlassWithin = 15 * time.Minute
)

// onHost calls f with the database, as who is at the control plane's host, for the audit.
func onHost(ctx context.Context, cfg config.Config, operation string, f func(ctx context.Context, s *store.Store, by string) error) error {
	if cfg.DatabaseURL == "" {
		return errors.New("DATABASE_URL is required: who may do what is rows of the database")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	pool, err := store.Open(ctx, cfg.DatabaseURL, 1, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	by := ops.AuditSource{Actor: "unknown", Role: "host", Operation: operation}
	if u, err := user.Current(); err == nil {
		by.Actor = u.Username
	}
	by.ActorName = by.Actor
	by.From, _ = os.Hostname()
	return f(ops.WithAuditSource(ctx, by), store.New(pool), by.Actor)
}

// NewJoinLink makes a link for who is at the control plane's host: with it a new operator registers a passkey or, with
// who, a known user who has lost theirs. It returns the link's URL.
func NewJoinLink(ctx context.Context, cfg config.Config, name, who string) (link string, until time.Time, err error) {
	code, err := access.NewSecret(access.Link, rand.Reader)
	if err != nil {
		return "", until, err
	}
	err = onHost(ctx, cfg, "prego access link", func(ctx context.Context, s *store.Store, by string) error {
		l := store.LoginLink{LinkID: prego.NewID("link-"), Kind: store.LinkJoin, Name: name, AccessRole: "operator", CreatedBy: by}
		if who != "" {
			id, err := s.PasskeyUser(ctx, who)
			if err != nil {
				return err
			}
			l.PrincipalID, l.AccessRole = id, ""
		}
		until, err = s.CreateLoginLink(ctx, l, access.SecretHash(code), JoinWithin)
		return err
	})
	return consoleURL(cfg.API.PublicURL, "/console/join", code), until, err
}

// NewBreakGlass makes a link for who is at the control plane's host that logs in once as an operator. Link and login
// end together. It returns the link's URL.
func NewBreakGlass(ctx context.Context, cfg config.Config) (link string, until time.Time, err error) {
	code, err := access.NewSecret(access.Link, rand.Reader)
	if err != nil {
		return "", until, err
	}
	err = onHost(ctx, cfg, "prego access break-glass", func(ctx context.Context, s *store.Store, by string) error {
		l := store.LoginLink{LinkID: prego.NewID("link-"), Name: "break-glass", CreatedBy: by}
		until, err = s.BreakGlass(ctx, l, access.SecretHash(code), BreakGlassWithin, [2]string{prego.NewID("user-"), prego.NewID("grant-")})
		return err
	})
	return consoleURL(cfg.API.PublicURL, "/console/login", code), until, err
}

// EndBreakGlass ends all logins that NewBreakGlass led to.
func EndBreakGlass(ctx context.Context, cfg config.Config) error {
	return onHost(ctx, cfg, "prego access break-glass", func(ctx context.Context, s *store.Store, by string) error { return s.EndBreakGlass(ctx, by) })
}

// consoleURL is a page of the console with a code, where passkeys work: browsers have none for the loopback address.
func consoleURL(public, path, code string) string {
	u, err := url.Parse(public)
	if err != nil {
		return path + "?code=" + code
	}
	if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsLoopback() {
		u.Host = strings.TrimSuffix(net.JoinHostPort("localhost", u.Port()), ":")
	}
	u.Path, u.RawQuery = path, "code="+code
	return u.String()
}
