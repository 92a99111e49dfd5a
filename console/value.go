package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cost"
)

// value is one value as pages show it.
type value struct {
	Text  string
	Lead  string // a word before it
	Href  string
	Title string // shown on hovering
	Tone  string // of a state: good, busy, bad, idle or ""
	Time  string // RFC 3339, of a time
	Share string // 0 to 100, of a percentage
	Items []value
	None  bool
}

// Long reports whether a table breaks a value into lines.
func (v value) Long() bool {
	n := len(v.Text)
	for _, e := range v.Items {
		n += len(e.Text) + 2
	}
	return n > 44
}

// pages are where ids lead, by the fields that hold them: the pages of things, and some that are called otherwise.
var pages = sync.OnceValue(func() map[string]string {
	out := map[string]string{
		"pool_site_id": "", "provider_server_id": "", "redis_pool_id": "", "db_shard_id": "", // no pages
		"from": "servers/", "to": "servers/", "replacement_id": "servers/", "source_server": "servers/", "target_server": "servers/",
		"workflow_id":      "operations/",
		"process_group_id": "groups/", "patch_wave_id": "patch-waves/",
		"release_id": "releases/", "agent_release_id": "agent-releases/", "placement_pool_id": "placement-pools/",
	}
	_, things := described()
	for _, t := range things {
		if page, field, ok := strings.Cut(t.Page, "{"); ok && strings.HasSuffix(field, "_id}") && !strings.Contains(field, "/") {
			out[strings.TrimSuffix(field, "}")] = page
		}
	}
	return out
})

// pageOf is the page of a thing, "" if it has none.
func pageOf(kind, id string) string {
	if region, plan, ok := strings.Cut(id, "/"); ok && kind == "warm_pool" {
		return "/console/warm-pools/" + url.PathEscape(region) + "/" + url.PathEscape(plan)
	}
	if p := pages()[kind+"_id"]; p != "" && id != "" {
		return "/console/" + p + url.PathEscape(id)
	}
	return ""
}

// hrefOf is the page of the thing whose id a field holds, "" if it is no such field. Words may stand before its name.
func hrefOf(name, id string) string {
	if id == "" || name == "from" && strings.ContainsAny(id, ".:") { // an address
		return ""
	}
	for rest, more := name[strings.LastIndexByte(name, '.')+1:], true; more; _, rest, more = strings.Cut(rest, "_") {
		if p, ok := pages()[rest]; ok {
			return map[bool]string{true: "/console/" + p + url.PathEscape(id)}[p != ""]
		}
	}
	return ""
}

// tones are the tones of states; other states have none.
var tones = func() map[string]string {
	out := map[string]string{}
	for tone, states := range map[string]string{
		"good": "active running connected done ready succeeded verified available healthy issued attached ok placed enabled open synced finished completed passed current info up",
		"busy": "provisioning pending starting moving copying awaiting_capacity awaiting_provider draining requested waiting making building planned unscheduled installing restoring reserved warning migrating paused trial rolling_out under_way stopping scheduled uploading frozen switched draining_out decommissioning in_progress queued",
		"bad":  "failed silent unhealthy crashed critical expired lost blocked error untracked missing damaged unschedulable down rejected deleting_failed rolled_back disconnected",
		"idle": "terminated stopped deleted suspended cancelled skipped never ended gone released unknown none expired_soft",
	} {
		for s := range strings.FieldsSeq(states) {
			out[s] = tone
		}
	}
	return out
}()

// stateful are the ends of the names of fields that hold states.
var stateful = []string{"status", "state", "outcome", "severity", "health", "result"}

// lastName is the last name of a path.
func lastName(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

func isState(name string) bool {
	name = lastName(name)
	return slices.ContainsFunc(stateful, func(s string) bool { return name == s || strings.HasSuffix(name, "_"+s) })
}

// shown is a field's value.
func shown(name string, v any, now time.Time) value {
	switch v := v.(type) {
	case nil:
		return value{None: true}
	case bool:
		if lastName(name) == "site_up" {
			return map[bool]value{true: {Text: "up", Tone: "good"}, false: {Text: "down", Tone: "bad"}}[v]
		}
		if v {
			return value{Text: "yes"}
		}
		return value{Text: "no"}
	case string:
		return shownText(name, v, now)
	case json.Number:
		return shownNumber(name, v)
	case []any:
		if lastName(name) == "uptime" {
			return uptimeOf(v, now)
		}
		var out value
		for _, e := range v {
			out.Items = append(out.Items, shown(strings.TrimSuffix(name, "s"), e, now))
		}
		out.None = len(out.Items) == 0
		return out
	case map[string]any:
		if name == "owner" || name == "subject" || name == "target" {
			return subject(v)
		}
		if price, ok := priceOf(v); ok {
			return price
		}
		if sentence, ok := sentenceOf(lastName(name), v, now); ok {
			return sentence
		}
		var out value
		for _, k := range slices.Sorted(maps.Keys(v)) {
			e := shown(k, v[k], now)
			if e.None {
				continue
			}
			e.Title = k
			out.Items = append(out.Items, e)
		}
		out.None = len(out.Items) == 0
		return out
	}
	return value{Text: fmt.Sprint(v)}
}

func shownText(name, text string, now time.Time) value {
	if text == "" {
		return value{None: true}
	}
	last := lastName(name)
	if last == "at" || last == "since" || last == "until" || last == "as_of" || strings.HasSuffix(last, "_at") || strings.HasSuffix(last, "_since") || strings.HasSuffix(last, "_until") {
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			if at.Year() <= 2000 { // the schema's own rows
				return value{Text: "built in", Title: "It is part of every installation"}
			}
			return value{Text: ago(now.Sub(at)), Title: at.UTC().Format("2006-01-02 15:04:05 UTC"), Time: text}
		}
	}
	if isState(name) {
		return value{Text: text, Tone: tones[text]}
	}
	if href := hrefOf(name, text); href != "" {
		return value{Text: text, Href: href}
	}
	if amounts()[last] && decimal.MatchString(text) {
		return value{Text: cost.Rounded(text), Title: text}
	}
	if strings.HasSuffix(last, "url") && (strings.HasPrefix(text, "https://") || strings.HasPrefix(text, "http://")) {
		return value{Text: strings.TrimSuffix(text[strings.Index(text, "://")+3:], "/"), Href: text}
	}
	return value{Text: text}
}

func shownNumber(name string, n json.Number) value {
	f, _ := n.Float64()
	last := lastName(name)
	switch {
	case f == -1 && (strings.HasPrefix(last, "max_") || last == "cap" || last == "limit"):
		return value{Text: "no limit"}
	case last == "bytes", strings.HasSuffix(name, "_bytes"):
		return value{Text: size(f), Title: n.String() + " bytes"}
	case strings.HasSuffix(name, "_mb"):
		return value{Text: size(f * (1 << 20))}
	case strings.HasSuffix(name, "_pct"), strings.Contains(name, "_pct_"), name == "share", strings.HasSuffix(name, "_share"):
		if strings.HasSuffix(name, "share") {
			f *= 100
		}
		return value{Text: strconv.FormatFloat(f, 'f', 0, 64) + " %", Share: strconv.FormatFloat(math.Max(0, math.Min(100, f)), 'f', 0, 64)}
	case strings.HasSuffix(name, "_seconds"):
		return value{Text: span(time.Duration(f * float64(time.Second)))}
	case strings.HasSuffix(name, "_ms"):
		return value{Text: span(time.Duration(f * float64(time.Millisecond)))}
	}
	return value{Text: n.String()}
}

// size is a number of bytes for people.
func size(bytes float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if bytes >= u.of {
			return strings.TrimSuffix(strconv.FormatFloat(bytes/u.of, 'f', 1, 64), ".0") + " " + u.name
		}
	}
	return strconv.FormatFloat(bytes, 'f', 0, 64) + " B"
}

// amounts are the names of the contract's fields with amounts of money.
var amounts = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for _, s := range api.Contract().Components.Schemas {
		for name, p := range s.Value.Properties {
			if strings.HasSuffix(p.Ref, "/Amount") {
				out[name] = true
			}
		}
	}
	return out
})

// decimal is how the contract writes amounts.
var decimal = regexp.MustCompile(`^[0-9]+\.[0-9]{2,6}$`)

// signs are those of currencies; others stand behind their amounts.
var signs = map[string]string{"EUR": "€", "USD": "$"}

// money is an amount for people.
func money(amount, currency string) string {
	if sign := signs[currency]; sign != "" {
		return sign + " " + cost.Rounded(amount)
	}
	return cost.Rounded(amount) + " " + currency
}

// sentenceOf is an object that is shown as a sentence, by the name of its field.
func sentenceOf(name string, o object, now time.Time) (v value, ok bool) {
	at := shown("at", o.at("at"), now)
	switch name {
	case "site_health":
		since := shown("since", o.at("since"), now)
		since.Lead = "since"
		if o.at("up") == true {
			v.Items = []value{{Text: "up", Tone: "good"}, since}
		} else {
			v.Items = []value{{Text: "down", Tone: "bad"}, {Text: words(o.text("cause"))}, since}
		}
	case "last_restorable":
		v.Items = []value{at, {Text: "not verified yet"}}
		if o.at("verified") == true {
			v.Items = []value{at, {Text: "verified", Tone: "good"}}
		}
	case "last_drill":
		v.Items = []value{shown("state", o.at("state"), now), shown("created_at", o.at("created_at"), now)}
	case "cost": // of a tenant
		v.Text, v.Title = money(o.text("monthly"), o.text("currency"))+" a month", "without tax"
		if n := o.text("unpriced"); n != "" {
			v.Text += " and " + n + " unpriced"
		}
		v.None = o.text("monthly") == ""
		for _, p := range o.objects("parts") {
			v.Title += "; " + cmp.Or(p.text("server_id"), "backups") + " " + cost.Rounded(p.text("cost"))
		}
	case "storage":
		v.Text = fmt.Sprintf("%s of %s", size(o.number("used_bytes")), size(o.number("quota_bytes")))
		if v.None = o.at("quota_bytes") == nil; o.at("read_only") == true {
			v = value{Items: []value{v, {Text: "read-only", Tone: "bad"}}}
		}
	case "decision":
		if o.at("decision_log") == nil {
			return v, false
		}
		v.Text = cmp.Or(o.text("decision_log.selection_reason"), words(o.text("code")))
		v.None = v.Text == ""
		if id := o.text("id"); id != "" {
			v.Href = "/console/decisions/" + url.PathEscape(id)
		}
	default:
		return v, false
	}
	return v, true
}

// uptimeOf is a site's uptime in the newest two months, rounded down: 100 % is a site that was never down.
func uptimeOf(months []any, now time.Time) value {
	var parts []string
	for _, m := range months[:min(2, len(months))] {
		o, _ := m.(map[string]any)
		if object(o).at("uptime_pct") == nil {
			continue
		}
		month := object(o).text("month")
		if month == now.UTC().Format("2006-01") {
			month = "this month"
		} else if at, err := time.Parse("2006-01", month); err == nil {
			month = "in " + at.Format("January")
		}
		pct := math.Floor(100*object(o).number("uptime_pct")) / 100
		parts = append(parts, strconv.FormatFloat(pct, 'f', -1, 64)+" % "+month)
	}
	return value{Text: strings.Join(parts, ", "), None: len(parts) == 0}
}

// priceOf is what something costs, without tax.
func priceOf(m object) (value, bool) {
	month, hour, currency := m.text("monthly.net"), m.text("hourly.net"), m.text("currency")
	if month == "" || currency == "" {
		return value{}, false
	}
	v := value{Text: money(month, currency) + " a month", Title: "net"}
	if gross := m.text("monthly.gross"); gross != "" {
		v.Title += fmt.Sprintf("; %s with tax", cost.Rounded(gross))
	}
	if hour != "" {
		v.Title += fmt.Sprintf("; %s an hour", cost.Rounded(hour))
	}
	if parts := shown("parts", m.at("parts"), time.Time{}); !parts.None {
		var names []string
		for _, p := range parts.Items {
			names = append(names, strings.TrimSuffix(p.Text, " address"))
		}
		v.Text += " (" + strings.Join(names, " + ") + ")"
	}
	return v, true
}

// span is how long something takes.
func span(d time.Duration) string {
	if d.Abs() < time.Second {
		d = d.Round(time.Millisecond)
	}
	switch {
	case d == 0:
		return "0 s"
	case d < 0:
		return "-" + span(-d)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strings.TrimSuffix(strconv.FormatFloat(d.Seconds(), 'f', 1, 64), ".0") + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// ago is how long ago something was.
func ago(d time.Duration) string {
	if d < -time.Second {
		return "in " + about(-d)
	}
	if d < time.Second {
		return "now"
	}
	return about(d) + " ago"
}

func about(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// lower is a title within a sentence; an abbreviation keeps its letters.
func lower(title string) string {
	if len(title) > 1 && title[1] >= 'A' && title[1] <= 'Z' {
		return title
	}
	return strings.ToLower(title[:min(1, len(title))]) + title[min(1, len(title)):]
}

// words is a name of a field as people read it.
func words(name string) string {
	name = name[strings.LastIndexByte(name, '.')+1:]
	for _, end := range []string{"_at", "_id"} {
		if cut := strings.TrimSuffix(name, end); cut != "" && cut != name {
			name = cut
			break
		}
	}
	for _, end := range []string{"_pct", "_bytes", "_mb", "_seconds"} {
		name = strings.TrimSuffix(name, end)
	}
	return strings.ReplaceAll(name, "_", " ")
}
