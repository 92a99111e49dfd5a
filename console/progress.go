package console

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

// work is something that takes a while, with how far it is.
type work struct {
	Text        []value // a sentence whose names lead to their pages
	Message     string  // the same, for who can't see it
	Done, Total string  // Total is "" if nothing can be counted
	Left        value   // when it is expected to end
}

// worked are the kinds of things that work takes a while on.
var worked = []string{"server", "tenant", "volume", "group", "release", "rebalance", "move", "restore"}

// progress is how far the work on something is, or on everything. Pages are shown without it if it is refused.
func (c *Console) progress(ec echo.Context, kind string, params map[string]string) ([]work, error) {
	q := url.Values{}
	if kind != "" {
		if !slices.Contains(worked, kind) {
			return nil, nil
		}
		q.Set("id", strings.Join(slices.Sorted(maps.Values(params)), ","))
	}
	o, err := c.get(ec, "/v1/progress", q)
	var refused *Refusal
	if errors.As(err, &refused) {
		return nil, nil
	}
	return worksOf(o, c.d.Now()), err
}

func worksOf(o object, now time.Time) (out []work) {
	for _, p := range o.objects("progress") {
		subject, _ := p.at("subject").(map[string]any)
		message := p.text("message")
		b := work{Message: message, Left: shown("expected_at", p.at("expected_at"), now)}
		if left, err := time.Parse(time.RFC3339, b.Left.Time); err == nil && !left.After(now) {
			b.Left.Text = "now"
		}
		if total := p.text("total"); total != "0" {
			b.Done, b.Total = p.text("done"), total
		}
		b.Text = linked(message, append([]object{subject}, p.objects("current")...))
		out = append(out, b)
	}
	return out
}

// linked is a text in which the names of things lead to their pages, each name once and in the order of the text.
func linked(text string, things []object) (out []value) {
	for _, t := range things {
		name, href := t.text("name"), pageOf(t.text("kind"), t.text("id"))
		before, after, ok := strings.Cut(text, name)
		if !ok || name == "" || href == "" {
			continue
		}
		out, text = append(out, value{Text: before}, value{Text: name, Href: href}), after
	}
	return append(out, value{Text: text})
}
