package exec

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestLinesAreCutAndCounted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		written := rapid.SliceOf(rapid.OneOf(rapid.SliceOfN(rapid.SampledFrom([]byte("ab\r\n\x00\xff€")), 0, 20), rapid.Just(bytes.Repeat([]byte("x"), 3000)))).Draw(t, "writes")
		p := newProgress()
		w := &lineWriter{to: p, stream: "stdout"}
		for _, b := range written {
			n, err := w.Write(b)
			require.NoError(t, err)
			require.Equal(t, len(b), n)
		}
		w.end()
		whole := string(bytes.Join(written, nil))
		whole = strings.ReplaceAll(strings.ReplaceAll(whole, "\r\n", "\n"), "\r", "\n")
		got, next, _ := p.from(0)
		missed := 0
		var text []string
		for _, l := range got {
			require.LessOrEqual(t, len(l.Line), 3*maxLine)
			require.True(t, utf8.ValidString(l.Line))
			missed += l.Missed
			text = append(text, l.Line)
		}
		require.Equal(t, next, missed+len(got))
		require.LessOrEqual(t, p.size, maxProgress)
		if missed == 0 {
			longest := 0
			for line := range strings.SplitSeq(whole, "\n") {
				longest = max(longest, len(line))
			}
			if longest < maxLine && utf8.ValidString(whole) {
				require.Equal(t, strings.Join(text, "\n"), strings.TrimSuffix(whole, "\n"))
			}
		}
		rest, _, wake := p.from(next)
		require.Empty(t, rest)
		select {
		case <-wake:
			require.Fail(t, "there is nothing more")
		default:
		}
	})
}
