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
	since, tail, follow := "", 20, false
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happens to everything, and follow it",
		Long: `Show the newest events of everything that the control plane manages, a line for each, or all that
came after a cursor. The last line on stderr has the cursor to read on from.`,
		Example: "  prego events --follow --kind server,instance\n  prego events --since 7433-1903 --org acme",
	}
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "only what came after this cursor")
	f.IntVar(&tail, "tail", tail, "without --since: this many of the newest")
	f.BoolVarP(&follow, "follow", "f", false, "keep printing new ones")
	params := addFilters(f, "kind, id, org: org_id", nil)
	return c.run(cmd, "", func(in *call) (func() error, error) {
		q := url.Values{}
		for param, v := range params {
			if *v != "" {
				q.Set(param, *v)
			}
		}
		if since == "" {
			q.Set("tail", fmt.Sprint(tail))
			if tail == 0 {
				q.Del("tail")
			}
		} else {
			q.Set("since", since)
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
					return nil //nolint:nilerr // it goes on behind the last event
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
	text := strings.Join(words, " ") + reasons(e.Reason, e.Message)
	if by := deref(e.Actor); by != "" {
		text += " by " + by
	}
	fmt.Fprintln(w, oneLine(text))
}

func searchCommand(c *CLI) *cobra.Command {
	table := Table[api.SearchResult]{ID: "id", Columns: "kind, id, name, status, gone, field: by, value, org_id", Spare: "org, by", More: "href"}
	kind := ""
	cmd := &cobra.Command{
		Use: "search TEXT", Short: "Show what has an id, name, address or host name, also what is gone",
		Example: "  prego search 203.0.113.7",
	}
	cmd.Flags().StringVar(&kind, "kind", "", "only of these kinds, such as tenant,server")
	table.flags(cmd.Flags())
	return c.run(cmd, table.ID, func(in *call) (func() error, error) {
		q := url.Values{"q": {in.typed}}
		if kind != "" {
			q.Set("kind", kind)
		}
		raw, err := in.client.everyPage(in.Context(), "/v1/search", "results", q, 0)
		if err != nil {
			return nil, err
		}
		found := make([]api.SearchResult, len(raw))
		for i := range raw {
			if err := json.Unmarshal(raw[i], &found[i]); err != nil {
				return nil, err
			}
		}
		in.many, in.answered = true, raw
		if !in.forPeople() {
			return nil, nil
		}
		return nil, rows(in.printer, table, found)
	})
}
