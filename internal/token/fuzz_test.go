package token

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// FuzzAgentToken: of all texts only the token that was issued is good; every other is refused
// with a code.
func FuzzAgentToken(f *testing.F) {
	dir := f.TempDir()
	require.NoError(f, InitKeys(dir))
	ring, err := OpenKeyring(dir, UseAgent)
	require.NoError(f, err)
	agents := NewAgents(ring)
	none := "eyJhbGciOiJub25lIn0." // {"alg":"none"}
	for _, raw := range []string{"", "a.b.c", none + "e30.", "eyJhbGciOiJFZERTQSIsImtpZCI6Ii4uL3gifQ.e30.AA", "eyJhbGciOiJFZERTQSIsImNyaXQiOlsieCJdfQ.e30.AA", strings.Repeat(".", 1000)} {
		f.Add(raw)
	}
	cert := selfSigned(f)
	f.Fuzz(func(t *testing.T, raw string) {
		_, err := agents.Verify(raw, cert, "")
		var coded *prego.Error
		require.ErrorAs(t, err, &coded, "nobody can make a token without the key")
		require.NotEqual(t, prego.CodeInternal, coded.Code)
		if raw != "" {
			require.NotEqual(t, raw, coded.Error(), "a refusal quotes no token")
		}
	})
}
