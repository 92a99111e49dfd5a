package app

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/store"
)

// longestToken is the longest life of a token.
const longestToken = 366 * 24 * time.Hour

// NewToken makes a token for a service account of the installation, with a grant of an access role on the installation
// or on an org, for who is at the control plane's host. It returns the token's secret.
func NewToken(ctx context.Context, cfg config.Config, name, role string, org prego.OrgID, life time.Duration) (secret string, err error) {
	if life <= 0 || life > longestToken {
		return "", prego.Invalid("ttl", "must be more than 0 and at most 366 days")
	}
	err = onHost(ctx, cfg, "prego token create", func(ctx context.Context, s *store.Store, by string) error {
		secret, err = IssueToken(ctx, s, name, role, org, life, by)
		return err
	})
	return secret, err
}

// IssueToken makes a token for a service account of the installation, which is created unless there is one of that
// name.
func IssueToken(ctx context.Context, s *store.Store, name, role string, org prego.OrgID, life time.Duration, by string) (secret string, err error) {
	if secret, err = access.NewSecret(access.Token, rand.Reader); err != nil {
		return "", err
	}
	_, err = s.EnsureAccount(ctx, store.NewAccount{
		Name: name, AccessRole: role, OrgID: org, IDs: [2]string{prego.NewID("sa-"), prego.NewID("grant-")},
		Token: store.Credential{
			CredentialID: prego.NewID("token-"), Kind: access.Token, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret),
			Name: name, CreatedBy: by, ExpiresAt: time.Now().Add(life),
		},
	})
	return secret, err
}
