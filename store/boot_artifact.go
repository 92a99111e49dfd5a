package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/prego/prego"
)

const (
	sqlPutArtifact = `INSERT INTO boot_artifacts (sha256, content) VALUES ($1, $2) ON CONFLICT (sha256) DO NOTHING`
	sqlGetArtifact = `SELECT content FROM boot_artifacts WHERE sha256 = $1`
)

// PutBootArtifact stores a second boot stage by its digest.
func (s *Store) PutBootArtifact(ctx context.Context, content []byte) (string, error) {
	sum := sha256.Sum256(content)
	if _, err := s.pool.Exec(ctx, sqlPutArtifact, sum[:], content); err != nil {
		return "", fmt.Errorf("store boot artifact: %w", err)
	}
	return hex.EncodeToString(sum[:]), nil
}

// BootArtifact reads a second boot stage by its hex digest; CodeNotFound if there is none.
func (s *Store) BootArtifact(ctx context.Context, sha256Hex string) ([]byte, error) {
	sum, err := hex.DecodeString(sha256Hex)
	if err != nil || len(sum) != sha256.Size {
		return nil, prego.Invalid("sha256", "must be the hex SHA-256 of a boot stage")
	}
	content, err := value[[]byte](ctx, s.pool, sqlGetArtifact, sum)
	return content, failed("boot artifact", ifNoRows(err, prego.Errorf(prego.CodeNotFound, "no boot stage with digest %s", sha256Hex)))
}
