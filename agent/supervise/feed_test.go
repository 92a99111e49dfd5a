package supervise

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// TestAnInputIsPassedOn: at any length, with signs of life in between, and cut when its source fails.
func TestAnInputIsPassedOn(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, feedChunk - 1, feedChunk, feedChunk + 1, 5*feedChunk + 17} {
		content := make([]byte, n)
		_, _ = rand.Read(content)
		in, feeder := io.Pipe()
		pulsed, out := io.Pipe()
		go func() {
			if Feed(feeder, bytes.NewReader(content)) == nil {
				_ = feeder.Close()
			}
		}()
		go func() {
			_, _ = out.Write([]byte("\n\n"))
			CopyLines(out, in)
			_ = out.Close()
		}()
		got, to := io.Pipe()
		heard := 0
		go passOn(pulsed, to, func() { heard++ })
		back, err := io.ReadAll(got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, back), n)
		require.GreaterOrEqual(t, heard, 2)
	}
	broken := errors.New("cut")
	require.ErrorIs(t, Feed(io.Discard, iotest.ErrReader(broken)), broken)
	got, to := net.Pipe()
	go passOn(strings.NewReader("!!!\n"), to, func() {})
	back, _ := io.ReadAll(got)
	require.Empty(t, back)
}
