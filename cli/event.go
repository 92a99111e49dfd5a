package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
)

func eventsCommand(c *CLI) *cobra.Command {
	follow := false
	cmd, v := c.own("listEvents")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new ones")
	return c.run(cmd, "", func(in *call) (func() error, error) {
		q, _, err := in.request(v, hook{})
		if err != nil {
			return nil, err
		}
		if q.Has("since") || q.Get("tail") == "0" {
			q.Del("tail")
		}
		q.Set("limit", fmt.Sprint(maxPage))
		for {
			var page api.FeedEventPage
			if err := in.client.Do(in.Context(), http.MethodGet, "/v1/events", q, nil, &page); err != nil {
				return nil, err
			}
			for _, e := range page.Events {
				in.printEvent(e)
			}
			q.Del("tail")
			if q.Set("since", page.NextCursor); page.More {
				continue
			}
			if follow {
				break
			}
			fmt.Fprintf(in.ErrOrStderr(), "read on with --since %s\n", page.NextCursor)
			return nil, nil
		}
		q.Del("limit")
		return nil, in.followEvents(q)
	})
}

// followEvents prints events as they come, and connects again when a stream ends.
func (in *call) followEvents(q url.Values) error {
	for {
		header := http.Header{"Accept": {"text/event-stream"}}
		err := in.client.stream(in.Context(), &http.Client{}, http.MethodGet, "/v1/events", q, header, nil, func(r io.Reader) error {
			for events := wire.NewEventReader(r); ; {
				name, data, err := events.Next()
				if err != nil || name == "resume" {
					return nil //nolint:nilerr // it continues after the last event
				}
				var e api.FeedEvent
				if err := json.NewDecoder(bytes.NewReader(data)).Decode(&e); err != nil {
					return err
				}
				in.printEvent(e)
				q.Set("since", e.Cursor)
			}
		})
		if err != nil {
			return err
		}
		select {
		case <-in.Context().Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func (in *call) printEvent(e api.FeedEvent) {
	w := in.OutOrStdout()
	if !in.forPeople() {
		_ = json.NewEncoder(w).Encode(e) // an object a line
		return
	}
	words := []string{e.At.Local().Format("15:04:05"), e.Kind, e.Id, e.Step} //nolint:gosmopolitan // people read it on their own clock
	if s := deref(e.Status); s != "" && s != e.Step {
		words = append(words, s)
	}
	text := strings.Join(words, " ") + why(e.Reason, e.Message)
	if by := deref(e.Actor); by != "" {
		text += " by " + by
	}
	fmt.Fprintln(w, oneLine(text))
}
