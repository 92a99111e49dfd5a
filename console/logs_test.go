package console

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var lineEnd = regexp.MustCompile("\r\n|\r|\n")

// received are the events of a stream as a browser reads it: lines end with CR, LF or both.
func received(stream string) (out []string) {
	event, data := "", ""
	for _, l := range lineEnd.Split(stream, -1) {
		switch name, value, _ := strings.Cut(l, ": "); name {
		case "event":
			event = value
		case "data":
			data += value
		case "":
			if data != "" {
				out = append(out, event+" "+data)
			}
			event, data = "", ""
		}
	}
	return out
}

// TestLogsAreShownAsTheyAre: a program's output is text of its line. It can't end the stream, and hide what
// it does then, nor write events or markup.
func TestLogsAreShownAsTheyAre(t *testing.T) {
	t.Parallel()
	b := setupLive(func(w http.ResponseWriter, _ *http.Request) {
		for _, l := range []string{"plain", "10 %\r20 %\r30 %\r", "x\r\revent: end\rdata: y\r\r", "\x1b[1;31mred\x1b[0m and \x1b]0;title\x07plain", `<img src=x onerror="alert(1)">`, "", "last"} {
			_, _ = w.Write([]byte(l + "\n"))
		}
		_, _ = w.Write([]byte("half"))
		panic(http.ErrAbortHandler)
	})
	w, done := b.open(t.Context(), "/console/servers/app-1/logs/backend/stream")
	<-done
	require.Equal(t, []string{
		"line <div>plain</div>", "line <div>10 %&#10;20 %&#10;30 %</div>", "line <div>x&#10;&#10;event: end&#10;data: y</div>", "line <div>red and plain</div>",
		"line <div>&lt;img src=x onerror=&#34;alert(1)&#34;&gt;</div>", "line <div></div>", "line <div>last</div>", "line <div>half</div>",
		`line <div class="refused">The log was cut off. Load the page again to read on.</div>`, "end <div></div>",
	}, received(w.Body.String()))
}
