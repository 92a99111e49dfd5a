package app

import (
	"context"
	"crypto/rand"
	"errors"
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

// longestToken is the longest life of a token.
const longestToken = 366 * 24 * time.Hour

// NewToken makes a token for a service account of the installation, with a grant of an access role on the installation
// or on an org, for who is at the control plane's host. It returns the token's secret.
func NewToken(ctx context.Context, cfg config.Config, name, role string, org prego.OrgID, life time.Duration) (secret string, err error) {
	switch {
	case cfg.DatabaseURL == "":
		return "", errors.New("DATABASE_URL is required: tokens are rows of the database")
	case life <= 0 || life > longestToken:
		return "", prego.Invalid("ttl", "must be more than 0 and at most 366 days")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	pool, err := store.Open(ctx, cfg.DatabaseURL, 1, nil)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	by := ops.AuditSource{Actor: "unknown", Role: "host", Operation: "prego token create"}
	if u, err := user.Current(); err == nil {
		by.Actor = u.Username
	}
	by.ActorName = by.Actor
	by.From, _ = os.Hostname()
	return IssueToken(ops.WithAuditSource(ctx, by), store.New(pool), name, role, org, life, by.Actor)
}

// IssueToken makes a token for a service account of the installation, which is created unless there is one of that name.
func IssueToken(ctx context.Context, s *store.Store, name, role string, org prego.OrgID, life time.Duration, by string) (secret string, err error) {
	if secret, err = access.NewSecret(access.Token, rand.Reader); err != nil {
		return "", err
	}
	id := func(prefix string) string { return prefix + strings.ToLower(rand.Text()[:10]) }
	_, err = s.EnsureAccount(ctx, store.NewAccount{
		Name: name, AccessRole: role, OrgID: org, IDs: [2]string{id("sa-"), id("grant-")},
		Token: store.Credential{
			CredentialID: id("token-"), Kind: access.Token, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret),
			Name: name, CreatedBy: by, ExpiresAt: time.Now().Add(life),
		},
	})
	return secret, err
}
