package console

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

// decision is why a tenant is where it is.
type decision struct {
	Because, Confidence, Candidates string
	Rejected                        []rejected
	Href                            string
}

// rejected are how many candidates a reason removed, and some of them.
type rejected struct {
	Reason, Count string
	IDs           []value
}

func decisionOf(o object, id string) decision {
	d := decision{Because: o.text("selection_reason"), Confidence: o.text("confidence_score"), Candidates: o.text("candidates_evaluated")}
	if id != "" {
		d.Href = "/console/decisions/" + id
	}
	counts, _ := o.at("rejected_counts").(map[string]any)
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		r := rejected{Reason: reason, Count: object(counts).text(reason)}
		for _, e := range o.objects("rejected") {
			if e.text("reason") == reason {
				r.IDs = append(r.IDs, value{Text: e.text("id"), Href: pageOf("server", e.text("id"))})
			}
		}
		d.Rejected = append(d.Rejected, r)
	}
	return d
}

// funnel is how the candidates of one kind became fewer.
type funnel struct {
	Kind   string
	Steps  []funnelStep
	Scores *table
	Chosen value
}

// funnelStep is a filter, with what it removed.
type funnelStep struct {
	Name, Left, Removed string
	Width               string // of 100
	Servers             []value
	More                string // how many are not named
}

// funnels reads the funnels of a decision.
func funnels(o object, at string) []funnel {
	var out []funnel
	for _, s := range o.objects(at + ".parts") {
		f := funnel{Kind: strings.ReplaceAll(s.text("kind"), "_", " ")}
		total := s.number("candidates")
		f.Steps = append(f.Steps, funnelStep{Name: "candidates", Left: s.text("candidates"), Width: "100"})
		left := total
		for _, step := range s.objects("filters") {
			removed := step.number("removed")
			left -= removed
			fs := funnelStep{Name: strings.ReplaceAll(step.text("filter"), "_", " "), Removed: step.text("removed"), Left: strconv.FormatFloat(left, 'f', 0, 64), Width: "0"}
			if total > 0 {
				fs.Width = fixed(100 * left / total)
			}
			ids, _ := step.at("ids").([]any)
			for _, id := range ids {
				if t, ok := id.(string); ok {
					fs.Servers = append(fs.Servers, value{Text: t, Href: pageOf("server", t)})
				}
			}
			if n := int(removed) - len(fs.Servers); n > 0 {
				fs.More = strconv.Itoa(n)
			}
			f.Steps = append(f.Steps, fs)
		}
		if ranked := s.objects("scored"); len(ranked) > 0 {
			f.Scores = &table{Name: "Scores of each " + f.Kind, Heads: []head{{Text: "candidate", Sorted: "none"}, {Text: "score", Sorted: "none"}}}
			parts := map[string]bool{}
			for _, r := range ranked {
				m, _ := r.at("components").(map[string]any)
				for k := range m {
					parts[k] = true
				}
			}
			all := slices.Sorted(maps.Keys(parts))
			for _, k := range all {
				f.Scores.Heads = append(f.Scores.Heads, head{Text: strings.ReplaceAll(k, "_", " "), Sorted: "none"})
			}
			for _, r := range ranked {
				row := []value{{Text: r.text("id"), Href: pageOf("server", r.text("id"))}, {Text: short(r.text("score"))}}
				for _, k := range all {
					row = append(row, value{Text: short(r.text("components." + k))})
				}
				f.Scores.Rows = append(f.Scores.Rows, row)
			}
		}
		if id := s.text("chosen"); id != "" {
			f.Chosen = value{Text: id, Href: pageOf("server", id)}
		}
		out = append(out, f)
	}
	return out
}

// short is a number with at most four decimals.
func short(n string) string {
	if f, err := strconv.ParseFloat(n, 64); err == nil {
		return strconv.FormatFloat(f, 'g', 4, 64)
	}
	return n
}

// replay repeats a decision with the facts known then.
func (c *Console) replay(ec echo.Context) error {
	id := ec.Param("decision_id")
	path := fill("/v1/decisions/{decision_id}/replay", func(string) string { return id })
	got, err := c.ask(ec, http.MethodPost, path, nil, nil, nil)
	if err != nil {
		return err
	}
	o, err := got.object()
	if err != nil {
		return err
	}
	var differences []changedField
	now := c.d.Now()
	for _, d := range o.objects("differences") {
		differences = append(differences, changedField{Name: strings.Trim(d.text("what")+" "+d.text("field"), " "), Old: shown("then", d.at("then"), now), New: shown("now", d.at("now"), now)})
	}
	then, _ := o.at("decided").(map[string]any)
	today, _ := o.at("now").(map[string]any)
	return c.show(ec, http.StatusOK, &page{
		Title: "Replay of decision " + id, Section: "decisions", Template: "replay", Crumbs: above("decisions/{decision_id}/replay", map[string]string{"decision_id": id}),
		Body: map[string]any{
			"Same": o.at("same") == true, "Differences": differences, "Funnels": funnels(o, "funnel"), "Back": "/console/decisions/" + url.PathEscape(id),
			"Then": placeFacts(then, now), "Now": placeFacts(today, now), "Versions": facts(o, []string{"version_then", "version_now"}, map[string]bool{}, now),
		},
		Commands: []command{{Name: "prego", Line: "prego decision replay " + word(id)}, {Name: "curl", Line: "curl -X POST -H \"Authorization: Bearer $PREGO_TOKEN\" " + quoted(origin(ec.Request())+path)}},
	})
}

// placeFacts are where a decision places a tenant.
func placeFacts(line object, now time.Time) []fact {
	fields := slices.DeleteFunc(slices.Sorted(maps.Keys(line)), func(k string) bool { return k == "decision" })
	out := facts(line, fields, map[string]bool{}, now)
	return append(out, facts(line, []string{"decision.algorithm", "decision.score", "decision.confidence_score", "decision.selection_reason"}, map[string]bool{}, now)...)
}

// whatIf asks where a tenant would go, as things are and if they were otherwise.
func (c *Console) whatIf(ec echo.Context) error {
	op := operations()["whatIf"]
	if op == nil {
		return echo.ErrNotFound
	}
	q := ec.QueryParams()
	fields := op.fields()
	asked := false
	for i := range fields {
		fields[i].Value = q.Get(fieldOf + fields[i].Name)
		asked = asked || fields[i].Value != ""
	}
	body := map[string]any{"Fields": fields}
	a := &asking{Op: op, Fields: fields}
	var content object
	if asked {
		var err error
		if content, err = op.content(q); err == nil {
			var got *answer
			if got, err = c.ask(ec, op.Method, op.Path, nil, content, nil); err == nil {
				var o object
				if o, err = got.object(); err == nil {
					body["AsIs"], body["If"] = outcome(o, "as_is", c.d.Now), outcome(o, "changed", c.d.Now)
				}
			}
		}
		if err != nil {
			body["Wrong"] = err.Error()
		}
	}
	return c.show(ec, http.StatusOK, &page{Title: "What if", Section: "decisions", Template: "what-if", Body: body, Commands: c.writeCommands(ec, a, content)})
}

// outcome is where a tenant would go.
func outcome(o object, at string, now clock) map[string]any {
	m, _ := o.at(at).(map[string]any)
	if m == nil {
		return nil
	}
	line, _ := m["line"].(map[string]any)
	return map[string]any{"Facts": placeFacts(line, now()), "Because": object(line).text("decision.selection_reason"), "Funnels": funnels(m, "funnel")}
}
