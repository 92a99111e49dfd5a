package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want []string
		end  error
	}{
		"nothing":              {"", nil, io.EOF},
		"one":                  {"event: a\ndata: 1\n\n", []string{"a=1"}, io.EOF},
		"comments":             {": x\n\nevent: a\n: y\ndata: 1\n\n: z\n\n", []string{"a=1"}, io.EOF},
		"carriage returns":     {"event: a\r\ndata: 1\r\n\r\n", []string{"a=1"}, io.EOF},
		"lines of data":        {"event:a\ndata:1\ndata: 2\n\n", []string{"a=1\n2"}, io.EOF},
		"unknown fields":       {"id: 7\nevent: a\nretry: 1\ndata: 1\n\n", []string{"a=1"}, io.EOF},
		"without a name":       {"data: 1\n\nevent: b\ndata: 2\n\n", []string{"b=2"}, io.EOF},
		"cut within a line":    {"event: a\ndata: 1\n\nevent: b\nda", []string{"a=1"}, io.ErrUnexpectedEOF},
		"cut between lines":    {"event: a\n", nil, io.ErrUnexpectedEOF},
		"cut before the end":   {"event: a\ndata: 1\n", nil, io.ErrUnexpectedEOF},
		"an endless line":      {"data: " + strings.Repeat("x", MaxEvent), nil, ErrEvent},
		"endless lines":        {strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", 300), nil, ErrEvent},
		"as long as it may be": {"event: a\ndata: " + strings.Repeat("x", MaxEvent-100) + "\n\n", []string{"a=" + strings.Repeat("x", MaxEvent-100)}, io.EOF},
	} {
		r := NewEventReader(iotest.OneByteReader(strings.NewReader(tc.text)))
		var got []string
		for {
			event, data, err := r.Next()
			if err != nil {
				require.ErrorIs(t, err, tc.end, name)
				break
			}
			got = append(got, event+"="+string(data))
		}
		require.Equal(t, tc.want, got, name)
	}
}

// FuzzEvents reads any input without harm, and returns written events unchanged.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: a\ndata: 1\n\n"), "line", 0)
	f.Add([]byte("event: result\r\ndata: {}\r\n\r\n: x\n\n"), "\r\n\x00\xffevent: result\ndata: {}\n\n", 3)
	f.Fuzz(func(t *testing.T, raw []byte, line string, missed int) {
		r := NewEventReader(bytes.NewReader(raw))
		for {
			name, data, err := r.Next()
			if err != nil {
				require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrEvent))
				break
			}
			require.NotEmpty(t, name)
			require.NotContains(t, name, "\n")
			require.LessOrEqual(t, len(data), MaxEvent)
		}

		want := ExecProgress{Stream: "stdout", Line: strings.ToValidUTF8(line, "\uFFFD"), Missed: missed}
		if len(line) > 4<<10 {
			return
		}
		var b bytes.Buffer
		require.NoError(t, WriteKeepAlive(&b))
		require.NoError(t, WriteEvent(&b, EventProgress, want))
		require.NoError(t, WriteEvent(&b, EventResult, ExecResult{StdoutTruncated: want.Line}))
		r = NewEventReader(&b)
		name, data, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, EventProgress, name, "a command's output stays in its line")
		var got ExecProgress
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, want, got)
		name, _, err = r.Next()
		require.NoError(t, err)
		require.Equal(t, EventResult, name)
		_, _, err = r.Next()
		require.ErrorIs(t, err, io.EOF)
	})
}
