// Package impact states what a change does to others: who is affected, for how long, and what is destroyed. It is
// computed from rows in the transaction that makes the change. A dry run shows it; what interrupts or destroys must
// be accepted (ADR 70).
package impact

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Class is the worst that a change does.
type Class string

// From harmless to harmful.
const (
	None       Class = "none"
	Reveals    Class = "reveals"
	Moves      Class = "moves"
	Interrupts Class = "interrupts"
	Destroys   Class = "destroys"
)

var classes = []Class{None, Reveals, Moves, Interrupts, Destroys}

// Valid reports whether there is such a class.
func (c Class) Valid() bool { return slices.Contains(classes, c) }

// Exceeds reports whether a class is worse than another.
func (c Class) Exceeds(bound Class) bool {
	return slices.Index(classes, c) > slices.Index(classes, bound)
}

// Thing is something that a change affects.
type Thing struct {
	Kind  string      `json:"kind"`
	ID    string      `json:"id"`
	Name  string      `json:"name,omitempty"`
	OrgID prego.OrgID `json:"org_id,omitempty"`
	Class Class       `json:"class"` // Moves or Interrupts
}

// Loss is data that is gone after a change.
type Loss struct {
	Kind  string      `json:"kind"`
	ID    string      `json:"id"`
	Name  string      `json:"name,omitempty"`
	OrgID prego.OrgID `json:"org_id,omitempty"`
	Bytes int64       `json:"bytes,omitempty"`
	// When its newest verified backup was made, and a newer one that is not verified yet.
	CopyAt       *time.Time `json:"copy_at,omitempty"`
	UnverifiedAt *time.Time `json:"unverified_at,omitempty"`
}

// Impact is what a change does.
type Impact struct {
	Class     Class   `json:"class"`
	Affected  []Thing `json:"affected"`
	Destroyed []Loss  `json:"destroyed"`
	Seconds   int     `json:"seconds,omitempty"` // how long what is affected does not answer, if known
	// What it costs a month, in hundredths of the currency; less than 0 if it saves. 0 if it is unknown.
	MonthlyCents int64  `json:"monthly_cents,omitempty"`
	Currency     string `json:"currency,omitempty"`
	Undo         string `json:"undo,omitempty"`
	Digest       string `json:"digest,omitempty"`
	Others       int    `json:"others,omitempty"` // how many more things, of orgs that the caller may not see
}

// Seen is an impact as a caller may see it: objects of other orgs, and of the installation, are only counted. What must
// be accepted stays the same.
func (i Impact) Seen(by func(prego.OrgID) bool) Impact {
	affected, destroyed := []Thing{}, []Loss{}
	for _, t := range i.Affected {
		if by(t.OrgID) {
			affected = append(affected, t)
		}
	}
	for _, l := range i.Destroyed {
		if by(l.OrgID) {
			destroyed = append(destroyed, l)
		}
	}
	i.Others += len(i.Affected) - len(affected) + len(i.Destroyed) - len(destroyed)
	i.Affected, i.Destroyed = affected, destroyed
	return i
}

// Asking is the part of an impact that must be accepted.
func (i Impact) Asking() Impact {
	out := Impact{Affected: []Thing{}, Destroyed: i.Destroyed}
	for _, a := range i.Affected {
		if a.Class.asks() {
			out.Affected = append(out.Affected, a)
		}
	}
	out.Class = out.class()
	return out
}

// Beyond is what an impact interrupts or destroys that was not accepted. Figures are no part of it: they change from
// one moment to the next. Instances follow one another, so that of a group's only the number counts.
func (i Impact) Beyond(accepted Impact) Impact {
	interrupted, destroyed := map[string]int{}, map[string]bool{}
	for _, a := range accepted.Asking().Affected {
		interrupted[a.counts()]++
	}
	for _, d := range accepted.Destroyed {
		destroyed[d.ID] = true
	}
	now := i.Asking()
	now.Affected = slices.DeleteFunc(now.Affected, func(a Thing) bool {
		interrupted[a.counts()]--
		return destroyed[a.ID] || interrupted[a.counts()] >= 0
	})
	now.Destroyed = slices.DeleteFunc(slices.Clone(now.Destroyed), func(d Loss) bool { return destroyed[d.ID] })
	now.Class = now.class()
	return now
}

// counts is what a thing counts as among what was accepted.
func (t Thing) counts() string {
	if t.Kind == "instance" {
		return "group " + string(t.OrgID) + "/" + t.Name
	}
	return t.ID
}

// class is that of what an impact lists: a change that destroys nothing now needs no acceptance to destroy.
func (i Impact) class() Class {
	if len(i.Destroyed) > 0 {
		return Destroys
	}
	worst := cmp.Or(i.Class, None)
	if worst.Exceeds(Reveals) {
		worst = None
	}
	for _, a := range i.Affected {
		if a.Class.Exceeds(worst) {
			worst = a.Class
		}
	}
	return worst
}

// asks reports whether a class must be accepted.
func (c Class) asks() bool { return c.Exceeds(Moves) }

// holds is how long an acceptance is valid.
const holds = 15 * time.Minute

// digest is what a caller accepts: when the impact was shown, in seconds, and a sum of 32 bits for each id. A sum
// includes the operation, its object, the time, and whether the id is interrupted or destroyed. Figures are shown
// only: they change from one moment to the next. It is a list and not one hash, so that it also accepts a part of the
// impact: a tenant that has left meanwhile needs no second question. Proxies limit headers: an impact on more than
// mostSums things has one sum, and is accepted as a whole.
func (i Impact) digest(operation string, shown int64) string {
	var sums []byte
	worst := i.worst()
	for _, id := range slices.Sorted(maps.Keys(worst)) {
		sums = append(sums, sum(operation, shown, worst[id], id)...)
	}
	if len(worst) > mostSums {
		sums = sum(operation, shown, Destroys, string(sums))
	}
	return fmt.Sprintf("%d-%s", shown, base64.RawURLEncoding.EncodeToString(sums))
}

// worst is what happens to each id, as far as it must be accepted. The site of a tenant has the tenant's id: destroying
// it includes interrupting.
func (i Impact) worst() map[string]Class {
	out := map[string]Class{}
	for _, a := range i.Affected {
		if a.Class.asks() {
			out[a.ID] = a.Class
		}
	}
	for _, d := range i.Destroyed {
		out[d.ID] = Destroys
	}
	return out
}

const (
	sumBytes = 4
	mostSums = 1000
)

func sum(operation string, shown int64, class Class, id string) []byte {
	s := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%s\n%s", operation, shown, class, id))
	return s[:sumBytes]
}

// accepted reports whether a digest accepts an impact: it is of the same operation, at most 15 minutes old, and
// includes each id of the impact with at least what happens to it.
func (i Impact) accepted(operation, digest string, now time.Time) bool {
	at, list, _ := strings.Cut(digest, "-")
	shown, err := strconv.ParseInt(at, 10, 64)
	sums, err2 := base64.RawURLEncoding.DecodeString(list)
	if age := now.Sub(time.Unix(shown, 0)); cmp.Or(err, err2) != nil || age > holds || age < -holds {
		return false
	}
	worst := i.worst()
	if len(worst) > mostSums {
		return digest == i.digest(operation, shown)
	}
	has := map[string]bool{}
	for s := range slices.Chunk(sums, sumBytes) {
		has[string(s)] = true
	}
	includes := func(class Class, id string) bool { return has[string(sum(operation, shown, class, id))] }
	for id, class := range worst {
		if !includes(Destroys, id) && (class == Destroys || !includes(Interrupts, id)) {
			return false
		}
	}
	return true
}

// Change is a change that a caller asks for.
type Change struct {
	Operation string // with its object, such as "DELETE /v1/servers/app-7"
	Bound     Class  // the worst that the operation may do
	Accepted  string // the digest of the impact that the caller accepts
	Policy    string // what accepted it beforehand, such as a retention policy
	Standing  bool   // a row must state who accepted it by the policy
	At        time.Time
	DryRun    bool

	Impact   Impact // what was computed
	Computed bool   // an impact was, even if it is none
}

type changeKey struct{}

// With returns a context of a change.
func With(ctx context.Context, c *Change) context.Context {
	return context.WithValue(ctx, changeKey{}, c)
}

// By returns a context in which a policy accepted every impact beforehand, such as the retention of backups.
func By(ctx context.Context, policy string) context.Context {
	return With(ctx, &Change{Operation: policy, Bound: Destroys, Policy: policy})
}

// Standing returns a context of a timer, whose policy was accepted by a row: the transaction that destroys something
// looks for it.
func Standing(ctx context.Context, policy string) context.Context {
	return With(ctx, &Change{Operation: policy, Bound: Destroys, Policy: policy, Standing: true})
}

// Of returns the change of a context, nil for what no caller asked for.
func Of(ctx context.Context) *Change {
	c, _ := ctx.Value(changeKey{}).(*Change)
	return c
}

// Trying reports whether a context is that of a dry run, in which nothing outside the database may happen.
func Trying(ctx context.Context) bool {
	c := Of(ctx)
	return c != nil && c.DryRun
}

// NotAccepted refuses a change whose impact was not accepted.
type NotAccepted struct{ Impact Impact }

func (e *NotAccepted) Error() string {
	return string(prego.CodeImpactNotAccepted) + ": " + e.Impact.Summary()
}

// Unwrap makes it a coded error.
func (e *NotAccepted) Unwrap() error {
	return prego.Errorf(prego.CodeImpactNotAccepted,
		"it %s: to accept that, repeat the request with the impact's digest in Impact-Accepted", e.Impact.Summary())
}

func (c *Change) state(i Impact) error {
	i.Class = i.class()
	if i.Class.Exceeds(c.Bound) {
		return fmt.Errorf("impact: %s %s, and may do at most: %s", c.Operation, i.Class, c.Bound)
	}
	if i.Class.asks() {
		i.Digest = i.digest(c.Operation, c.At.Unix())
	}
	c.Impact, c.Computed = i, true
	return nil
}

// Demand records the impact of the context's change, and refuses what interrupts or destroys unless it was accepted. A
// change with neither a caller nor a policy has no acceptance.
func Demand(ctx context.Context, i Impact) error {
	c := cmp.Or(Of(ctx), &Change{Bound: Destroys})
	if err := c.state(i); err != nil {
		return err
	}
	if c.DryRun || c.Policy != "" || c.Impact.Digest == "" || c.Impact.accepted(c.Operation, c.Accepted, c.At) {
		return nil
	}
	return &NotAccepted{c.Impact}
}

// mostNamed is how many things a summary names.
const mostNamed = 5

// Summary is an impact in a sentence, such as "destroys 2 sites (bakery, shop), interrupts 3 tenants".
func (i Impact) Summary() string {
	by := map[Class]map[string][]string{}
	add := func(class Class, t Thing) {
		if by[class] == nil {
			by[class] = map[string][]string{}
		}
		by[class][t.Kind] = append(by[class][t.Kind], cmp.Or(t.Name, t.ID))
	}
	for _, d := range i.Destroyed {
		add(Destroys, Thing{Kind: d.Kind, ID: d.ID, Name: d.Name})
	}
	for _, a := range i.Affected {
		add(a.Class, a)
	}
	var parts []string
	for _, class := range slices.Backward(classes) {
		for _, kind := range slices.Sorted(maps.Keys(by[class])) {
			parts = append(parts, string(class)+" "+counted(kind, by[class][kind]))
		}
	}
	if i.Others > 0 {
		parts = append(parts, "affects "+i.others())
	}
	return cmp.Or(strings.Join(parts, ", "), "affects nothing")
}

// Lost is what an impact destroys, such as "2 sites (bakery, shop), 3.1 GiB", or "1 backup, bak-7" without a known
// size.
func (i Impact) Lost() string {
	names, bytes := map[string][]string{}, int64(0)
	for _, d := range i.Destroyed {
		names[d.Kind] = append(names[d.Kind], cmp.Or(d.Name, d.ID))
		bytes += d.Bytes
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(names)) {
		if of := names[kind]; len(of) == 1 {
			parts = append(parts, "1 "+kind+", "+of[0])
		} else {
			parts = append(parts, counted(kind, of))
		}
	}
	if bytes > 0 {
		parts = append(parts, sizeText(bytes))
	}
	if len(parts) == 0 && i.Others > 0 {
		parts = append(parts, i.others())
	}
	return strings.Join(parts, ", ")
}

func sizeText(bytes int64) string {
	size, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for size >= 1024 && len(units) > 1 {
		size, units = size/1024, units[1:]
	}
	return strconv.FormatFloat(math.Round(size*10)/10, 'f', -1, 64) + " " + units[0]
}

// counted is "2 tenants (bakery, shop)".
func counted(kind string, names []string) string {
	plural := kind + "s"
	if kind == "address" {
		plural = "addresses"
	}
	if len(names) == 1 {
		return kind + " " + names[0]
	}
	list := strings.Join(names[:min(len(names), mostNamed)], ", ")
	if len(names) > mostNamed {
		list += fmt.Sprintf(" and %d more", len(names)-mostNamed)
	}
	return fmt.Sprintf("%d %s (%s)", len(names), plural, list)
}
