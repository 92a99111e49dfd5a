// Package attention lists what needs an operator now: how urgent each kind of thing is, what it
// means, and what to do about it. The caller reads the things of each kind from rows.
package attention

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prego/prego"
)

// Severity is how urgent something is.
type Severity string

// The severities, the most urgent first. They follow the harm to customers, not what is wrong with prego's own parts.
const (
	Critical Severity = "critical" // customers are cut off, or lose data with the next fault: needs a look immediately
	Warning  Severity = "warning"  // a customer waits, or is harmed without action: needs action today
	Info     Severity = "info"     // good to know
)

// Severities lists every severity, the most urgent first.
func Severities() []Severity { return []Severity{Critical, Warning, Info} }

// Many is how many findings of one kind, reason and place are listed one by one; more are one
// item, a sum.
const Many = 5

// AtQuota and NearQuota are the parts of a limit above which an org has reached it, or nears it.
const (
	AtQuota   = 0.95
	NearQuota = 0.8
)

// Limits are settings that decide when something needs attention. They are the limits by which
// workers act and count.
type Limits struct {
	DegradedAfter, FailedAfter time.Duration // an agent that is silent for so long is degraded, or given up
	FreezePct                  float64       // of the fleet silent together: none is marked
	FreezeMin                  int           // servers
	CatalogStale               time.Duration // age
	BackupLate                 time.Duration // after a turn without a backup; 0 if there is no object storage
	DrillOverdue               time.Duration // since the last drill; 0 if there are none
}

// A Finding is one thing found in rows, or several of one kind, reason and place.
type Finding struct {
	Kind    Kind
	Subject string // what kind of thing it is, such as server
	ID      string // the thing's
	Name    string // what people call it, "" for its id
	Owner   string // the id of what it belongs to where its commands name that, "" otherwise
	OrgID   prego.OrgID
	Reason  string // a stable code
	Message string // "" for the kind's text
	Since   time.Time
	// By and ByID are what findings are summed by, such as region and eu; Count is how many
	// there are of it with this kind and reason. More than Many are reported by the oldest.
	By, ByID string
	Count    int
	Empty    bool // no data is lost with it: only then is an action proposed that destroys it
	// Dead is whether none of its sites answers, as far as edges probe them, and a reset did not bring its host back.
	// Only then is it proposed to give it up. Losses are its tenants with what each loses by that.
	Dead     bool
	Losses   string
	Affected Affected
}

// Customer is a tenant, named by its slug, or an instance, named by its process group.
type Customer struct {
	ID    string      `json:"id"`
	Name  string      `json:"name"`
	OrgID prego.OrgID `json:"org_id"`
}

// Affected are the customers that something harms, or would harm with the next fault: how many there are, and the first
// 20 of each, of tenants those with the largest plans. The orgs are those of the others too.
type Affected struct {
	Summary       string        `json:"summary"`
	Tenants       []Customer    `json:"tenants"`
	TenantCount   int           `json:"tenant_count"`
	Instances     []Customer    `json:"instances"`
	InstanceCount int           `json:"instance_count"`
	Orgs          []prego.OrgID `json:"orgs"`
	OrgCount      int           `json:"org_count"`
}

// Subject is what an item is about.
type Subject struct{ Kind, ID, Name string }

// Action is something that may help, or shows more, as a request and on the command line.
type Action struct {
	Label, Method, Path string
	Body                map[string]any
	CLI                 string
	Destroys            bool // what it is about, with the data that it may have
	reason              string
}

// Item is something that needs attention.
type Item struct {
	ID       string // of kind and subject
	Severity Severity
	Kind     Kind
	Subject  Subject
	OrgID    prego.OrgID
	Reason   string
	Message  string
	Since    time.Time
	Todo     string
	Docs     string // file and heading
	Actions  []Action
	Count    int
	Affected *Affected // nil: no customer
}

// List makes items of findings, the most urgent first: by severity, then in the order of the
// kinds, then the oldest first.
func List(found []Finding) []Item {
	out := make([]Item, 0, len(found))
	for _, f := range found {
		if s, ok := specs[f.Kind]; ok {
			out = append(out, s.item(f))
		}
	}
	return inOrder(out)
}

func inOrder(items []Item) []Item {
	slices.SortStableFunc(items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(rank(a.Severity), rank(b.Severity)), cmp.Compare(order[a.Kind], order[b.Kind]), a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return items
}

// Since sets the start of items that were found earlier: an attempt that fails again, or a report that is repeated, is
// no new start. The items are in their order again.
func Since(items []Item, earlier map[string]time.Time) []Item {
	for n, i := range items {
		if at, ok := earlier[i.ID]; ok && at.Before(i.Since) {
			items[n].Since = at
		}
	}
	return inOrder(items)
}

func rank(s Severity) int { return slices.Index(Severities(), s) }

// Counts counts items by severity.
func Counts(items []Item) map[Severity]int {
	out := map[Severity]int{}
	for _, i := range items {
		out[i.Severity]++
	}
	return out
}

// Only are the items of some severities and kinds, none meaning all of them, at most limit.
func Only(items []Item, severities []Severity, kinds []Kind, limit int) []Item {
	out := make([]Item, 0, min(limit, len(items)))
	for _, i := range items {
		if len(out) < limit && (len(severities) == 0 || slices.Contains(severities, i.Severity)) && (len(kinds) == 0 || slices.Contains(kinds, i.Kind)) {
			out = append(out, i)
		}
	}
	return out
}

func (s spec) item(f Finding) Item {
	i := Item{
		Severity: s.severity, Kind: f.Kind, Subject: Subject{Kind: f.Subject, ID: f.ID, Name: cmp.Or(f.Name, f.ID)}, OrgID: f.OrgID,
		Reason: cmp.Or(f.Reason, string(f.Kind)), Message: sentence(cmp.Or(f.Message, fill(s.says, f, false))),
		Since: f.Since, Docs: f.Kind.Docs(), Count: 1,
	}
	if slices.Contains(s.critical, f.Reason) || f.Affected.TenantCount+f.Affected.InstanceCount > 0 &&
		(slices.Contains(s.harmful, "") || slices.Contains(s.harmful, f.Reason)) {
		i.Severity = Critical
	}
	i.Todo = fill(cmp.Or(s.todos[f.Reason], s.todo), f, false)
	if len(s.kept) > 0 && !f.Empty {
		i.Todo = fill(cmp.Or(s.kept[f.Reason], s.kept[""]), f, false)
	}
	actions := s.actions[f.Subject]
	if f.Dead && s.dead != "" {
		i.Todo, actions = fill(s.dead, f, false), s.give
	}
	i.ID = string(f.Kind) + "/" + f.ID
	if s.byReason {
		i.ID += "/" + i.Reason
	}
	if f.Count > Many {
		i.Count = f.Count
		i.Subject = Subject{Kind: f.By, ID: f.ByID, Name: f.ByID}
		i.ID = strings.Join([]string{string(f.Kind), f.ByID, i.Reason}, "/")
		i.Message = sentence(fmt.Sprintf("%d %s; the oldest is %s: %s", i.Count, s.plural, cmp.Or(f.Name, f.ID), i.Message))
		i.OrgID, actions = "", s.all
		if f.By == "org" {
			i.OrgID = prego.OrgID(f.ByID)
		}
	}
	if f.Affected.OrgCount > 0 {
		f.Affected.Summary = f.Affected.summary()
		i.Affected = &f.Affected
	}
	for _, a := range actions {
		if a.Destroys && !f.Empty && !f.Dead || a.reason != "" && a.reason != f.Reason {
			continue
		}
		a.Path, a.CLI = fill(a.Path, f, true), fill(a.CLI, f, false)
		i.Actions = append(i.Actions, a)
	}
	return i
}

// named is how many of each kind a summary names.
const named = 3

// summary is like "9 tenants: a, b, c and 6 more; 40 instances; orgs: x, y".
func (a Affected) summary() string {
	var out []string
	if a.TenantCount > 0 {
		slugs := make([]string, min(len(a.Tenants), named))
		for n := range slugs {
			slugs[n] = a.Tenants[n].Name
		}
		out = append(out, counted(a.TenantCount, "tenant")+": "+first(slugs, a.TenantCount))
	}
	if a.InstanceCount > 0 {
		out = append(out, counted(a.InstanceCount, "instance"))
	}
	if a.InstanceCount > 0 || a.TenantCount == 0 {
		orgs := prego.Strings(a.Orgs[:min(len(a.Orgs), named)])
		out = append(out, counted(a.OrgCount, "org")+": "+first(orgs, a.OrgCount))
	}
	return strings.Join(out, "; ")
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// first lists the first names of n.
func first(names []string, n int) string {
	out := strings.Join(names, ", ")
	if more := n - len(names); more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}

// fill replaces {id}, {owner}, {org}, {by} and {reason}.
func fill(text string, f Finding, path bool) string {
	as := func(v string) string {
		if path {
			return url.PathEscape(v)
		}
		return v
	}
	return strings.NewReplacer("{id}", as(f.ID), "{name}", as(cmp.Or(f.Name, f.ID)), "{owner}", as(f.Owner), "{org}", as(string(f.OrgID)), "{by}", as(f.ByID), "{reason}", as(f.Reason),
		"{losses}", cmp.Or(f.Losses, "nothing is lost")).Replace(text)
}

// longest is how many bytes of a message are kept.
const longest = 400

// sentence is a message in one line, and not too long.
func sentence(text string) string {
	text = strings.TrimRight(strings.Join(strings.Fields(text), " "), ": ") // of a reason or a message that is not there
	if len(text) <= longest {
		return text
	}
	cut := longest
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
