package console

import (
	"embed"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
)

//go:embed templates
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"words": words, "grouped": grouped, "required": required, "optional": optional, "code": code, "bare": bare,
	"dict": func(pairs ...any) map[string]any {
		out := map[string]any{}
		for i := 0; i+1 < len(pairs); i += 2 {
			out[pairs[i].(string)] = pairs[i+1]
		}
		return out
	},
	"body": func(p *page) template.HTML { return p.body },
}).ParseFS(files, "templates/*.html"))

// code is a text whose words between backticks are code.
func code(text string) template.HTML {
	var b strings.Builder
	for i, part := range strings.Split(text, "`") {
		part = template.HTMLEscapeString(part)
		switch {
		case i%2 == 1 && i < strings.Count(text, "`"):
			b.WriteString("<code>" + part + "</code>")
		case i%2 == 1: // it has no end
			b.WriteString("`" + part)
		default:
			b.WriteString(part)
		}
	}
	return template.HTML(b.String()) //nolint:gosec // it is escaped
}

// bare is such a text where there can be no code.
func bare(text string) string { return strings.ReplaceAll(text, "`", "") }

// rendered is a template's output.
func rendered(name string, data any) (template.HTML, error) {
	var b writer
	err := templates.ExecuteTemplate(&b, name, data)
	return template.HTML(b), err //nolint:gosec // a template made it
}

type writer []byte

func (w *writer) Write(b []byte) (int, error) {
	*w = append(*w, b...)
	return len(b), nil
}

// render writes a whole page.
func render(w io.Writer, p *page) (err error) {
	if p.body, err = rendered(p.Template, p); err != nil {
		return err
	}
	return templates.ExecuteTemplate(w, "layout", p)
}

// fragment answers with a part of a page.
func (c *Console) fragment(ec echo.Context, name string, data any) error {
	html, err := rendered(name, data)
	if err != nil {
		return err
	}
	return ec.HTML(http.StatusOK, string(html))
}

// navGroup is a part of the navigation.
type navGroup struct {
	Name  string
	Items []navItem
}

// navItem is an entry of the navigation. Key is typed after g.
type navItem struct {
	Text, Href, Key string
	Here            bool
}

// sectionOf is the entry of the navigation that a path is of, or is part of; pages of none have their own.
func sectionOf(path, otherwise string) string {
	for path = strings.TrimPrefix(path, "/console/"); path != ""; path = path[:max(0, strings.LastIndexByte(path, '/'))] {
		for _, g := range navigation("") {
			if slices.ContainsFunc(g.Items, func(i navItem) bool { return i.Href == "/console/"+path }) {
				return path
			}
		}
	}
	return otherwise
}

// navigation marks the current page.
func navigation(section string) []navGroup {
	group := func(name string, items ...[3]string) navGroup {
		g := navGroup{Name: name}
		for _, i := range items {
			href := "/console/" + i[1]
			if i[1] == "now" {
				href = "/console"
			}
			g.Items = append(g.Items, navItem{Text: i[0], Href: href, Key: i[2], Here: section == i[1]})
		}
		return g
	}
	return []navGroup{
		group("", [3]string{"Now", "now", "n"}, [3]string{"Fleet map", "map", "m"}, [3]string{"Queue", "queue", "q"}),
		group("Tenants", [3]string{"Tenants", "tenants", "t"}, [3]string{"Decisions", "decisions", "d"},
			[3]string{"Orgs and quotas", "orgs", "o"}, [3]string{"Limit requests", "limit-requests", ""},
			[3]string{"Custom domains", "domains", ""},
			[3]string{"Certificates", "certificates", "e"}, [3]string{"Backups", "backups", ""},
			[3]string{"Backup policies", "backup-policies", "b"}),
		group("Servers", [3]string{"Servers", "servers", "s"}, [3]string{"Fleets", "fleets", "f"}, [3]string{"Policies", "policies", "p"}, [3]string{"Warm pools", "warm-pools", "w"}, [3]string{"Site pools", "site-pools", ""}, [3]string{"Placement pools", "placement-pools", ""}, [3]string{"Scale-outs", "scaling", ""}, [3]string{"Releases", "releases", "r"}, [3]string{"Agent releases", "agent-releases", ""}, [3]string{"Golden images", "images", ""}, [3]string{"Security updates", "patch-waves", ""}, [3]string{"Packing plans", "rebalances", ""}),
		group("Workloads", [3]string{"Apps", "apps", "a"}, [3]string{"Environments", "envs", ""}, [3]string{"Process groups", "groups", "g"}, [3]string{"Instances", "instances", "i"}, [3]string{"Routes", "routes", "u"}, [3]string{"Volumes", "volumes", "v"}, [3]string{"IPv4 addresses", "addresses", ""}, [3]string{"Registries", "registries", ""}),
		group("Access", [3]string{"Service accounts", "service-accounts", ""}, [3]string{"Tokens", "tokens", ""}, [3]string{"Grants", "grants", ""}, [3]string{"Access roles", "access-roles", ""}, [3]string{"Users", "users", ""}, [3]string{"Logins", "logins", ""}, [3]string{"Invitations", "invitations", ""}),
		group("Records", [3]string{"Ledger", "ledger", "l"}, [3]string{"Costs", "costs", "c"},
			[3]string{"Upcoming deletions", "impact/upcoming", ""}, [3]string{"Audit", "audit", "h"}),
	}
}
