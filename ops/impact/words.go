package impact

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prego/prego"
)

// Lines are an impact in words, a line for each thing, for people who decide whether to accept it.
func (i Impact) Lines(now time.Time) (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(i.Affected)+len(i.Destroyed)+i.Others == 0 {
		add("It affects nothing else.")
	}
	for _, d := range i.Destroyed {
		size := ""
		if d.Bytes > 0 {
			size = ", " + sizeText(d.Bytes)
		}
		add("%s %s%s%s", Destroys, named(d.Kind, d.ID, d.Name, d.OrgID), size, d.copies(now))
	}
	for _, a := range i.Affected {
		add("%s %s", a.Class, named(a.Kind, a.ID, a.Name, a.OrgID))
	}
	if i.Others > 0 {
		add("It also affects %s.", i.others())
	}
	if i.Seconds > 0 {
		add("As measured, that takes at most %s each.", time.Duration(i.Seconds)*time.Second)
	}
	if i.MonthlyCents != 0 {
		verb, cents := "costs", i.MonthlyCents
		if cents < 0 {
			verb, cents = "saves", -cents
		}
		add("It %s %d.%02d %s a month.", verb, cents/100, cents%100, i.Currency)
	}
	if i.Undo != "" {
		add("To undo it: %s.", i.Undo)
	}
	return out
}

// others are the things that the caller may not see, as a count.
func (i Impact) others() string {
	if i.Others == 1 {
		return "1 thing of other orgs"
	}
	return strconv.Itoa(i.Others) + " things of other orgs"
}

// copies states how old the newest backups of something are.
func (l Loss) copies(now time.Time) string {
	ago := func(at *time.Time) string { return age(now.Sub(*at)) + " ago" }
	switch {
	case l.Kind == "image":
		return ""
	case l.CopyAt == nil && l.UnverifiedAt == nil && l.Kind == "backup":
		return ", and there is no other backup"
	case l.CopyAt == nil && l.UnverifiedAt == nil:
		return ", and there is no backup of it"
	case l.CopyAt == nil:
		return ", newest backup " + ago(l.UnverifiedAt) + ", which is not verified"
	case l.UnverifiedAt == nil:
		return ", newest verified backup " + ago(l.CopyAt)
	}
	return ", newest verified backup " + ago(l.CopyAt) + "; a newer one, " + ago(l.UnverifiedAt) + ", is not verified"
}

// age is a duration in its largest unit.
func age(d time.Duration) string {
	for _, u := range []struct {
		name string
		long time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if d >= 2*u.long {
			return strconv.Itoa(int(d/u.long)) + u.name
		}
	}
	return strconv.Itoa(int(max(d, 0)/time.Second)) + "s"
}

func named(kind, id, name string, org prego.OrgID) string {
	text := kind + " " + id
	if name != "" && name != id {
		text = kind + " " + name + " (" + id + ")"
	}
	if org != "" {
		text += " of " + string(org)
	}
	return text
}
