package console

import (
	"fmt"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/ops/impact"
)

// mostButtons is how many buttons a page about one thing shows; the others are in its menu.
const mostButtons = 5

// menuItem is something that can be done to a thing now.
type menuItem struct {
	button
	Impact string // in words
}

// menu is what can be done to a thing, in the order of its page: the first ones as buttons, the others in a menu,
// and apart what ends something or loses data.
type menu struct{ First, More, Last []menuItem }

// Any reports whether there is anything.
func (m menu) Any() bool { return len(m.First)+len(m.Last) > 0 }

// menu has those of some operations that the user may use, and that can do something to the thing as it is.
func (c *Console) menu(ec echo.Context, do string, params map[string]string, o object) (out menu) {
	for _, id := range names(do) {
		for _, b := range c.buttons(ec, id, params, o) {
			one := menuItem{button: b, Impact: operations()[id].impactOn(o)}
			switch {
			case b.Danger:
				out.Last = append(out.Last, one)
			case len(out.First) < mostButtons:
				out.First = append(out.First, one)
			default:
				out.More = append(out.More, one)
			}
		}
	}
	return out
}

// impacts are what operations do to others, by their x-impact.
var impacts = map[impact.Class]string{
	impact.Destroys:   "Data is destroyed; the form shows which, before anything happens",
	impact.Interrupts: "Users may be interrupted; the form shows who, before anything happens",
	impact.Moves:      "Tenants are moved, and are read-only for a moment",
	impact.Reveals:    "A secret is shown",
}

// impactOn is what an operation does to a thing, in words, "" for nothing.
func (o *operation) impactOn(thing object) string {
	if text := o.button().Impact; text != "" {
		return strings.ReplaceAll(text, "{holds}", heldBy(thing))
	}
	class, _ := o.Extensions["x-impact"].(string)
	return impacts[impact.Class(class)]
}

// heldBy continues a sentence with what would be lost with a server.
func heldBy(server object) string {
	var parts []string
	for _, of := range []struct{ field, one, many string }{
		{"tenants", "the data of 1 tenant", "the data of %s tenants"},
		{"instances", "1 instance", "%s instances"},
		{"volumes", "the use of 1 volume", "the use of %s volumes"},
	} {
		switch n := server.text("holds." + of.field); n {
		case "", "0":
		case "1":
			parts = append(parts, of.one)
		default:
			parts = append(parts, fmt.Sprintf(of.many, n))
		}
	}
	switch n := len(parts); n {
	case 0:
		return "; nothing is on it"
	case 1:
		return ", with " + parts[0]
	default:
		return ", with " + strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
}
