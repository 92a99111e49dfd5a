package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/golden"
)

// recorded compares a page of docs/reference with what its source gives. -update writes it.
func recorded(t *testing.T, name, source, title, about string, body []string) {
	t.Helper()
	lines := []string{"# " + title, "", "<!-- Generated from " + source + " by go test ./docs -update. -->", ""}
	lines = append(lines, wrapped(about)...)
	text := strings.Join(append(lines, body...), "\n") + "\n"
	golden.Equal(t, filepath.Join("reference", name), text)
}

// wrapped is a paragraph of lines of at most 120 columns.
func wrapped(text string) []string {
	var out []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > 120 {
			out, line = append(out, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(out, line, "")
}

func extension(t *testing.T, schema, property, name string) map[string]any {
	t.Helper()
	p := api.Contract().Components.Schemas[schema].Value.Properties[property]
	out, ok := p.Value.Extensions[name].(map[string]any)
	require.True(t, ok, name)
	return out
}

func TestErrorsAreListed(t *testing.T) {
	t.Parallel()
	codes := extension(t, "Problem", "code", "x-codes")
	statuses := map[string]int{}
	for _, item := range api.Contract().Paths.Map() {
		for _, op := range item.Operations() {
			for status, r := range op.Responses.Map() {
				media := r.Value.Content["application/problem+json"]
				if media == nil {
					continue
				}
				for code := range media.Examples {
					n, err := strconv.Atoi(status)
					require.NoError(t, err)
					statuses[code] = n
				}
			}
		}
	}
	statuses["method_not_allowed"] = http.StatusMethodNotAllowed // of no operation
	var body []string
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		c, _ := codes[code].(map[string]any)
		again := ""
		if c["retry"] == true {
			again = " A retry helps."
		}
		require.NotZero(t, statuses[code], code)
		body = append(body, "## "+code, "")
		body = append(body, wrapped(fmt.Sprintf("%d. %s %s%s", statuses[code], c["means"], c["do"], again))...)
	}
	recorded(t, "errors.md", "api/openapi.yaml", "Errors", "Each refusal of the API has a `code`. Its `type` is the path of a page "+
		"with this text, the operations that return it, and an example. Only where it is stated here, the same request can succeed later "+
		"without a change.", body[:len(body)-1])
}

// TestEventsAreListed: the contract has each kind of event that the schema and the store write.
func TestEventsAreListed(t *testing.T) {
	t.Parallel()
	kinds := extension(t, "FeedEvent", "kind", "x-kinds")
	written := map[string]bool{"server": true, "tenant": true}
	schema, err := os.ReadFile("../migrations/00001_schema.sql")
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(schema), "FOR t, args, made, changes IN VALUES")
	block, _, _ = strings.Cut(block, "LOOP")
	for _, m := range regexp.MustCompile(`\$a\$'([a-z_0-9]+)'`).FindAllStringSubmatch(block, -1) {
		written[m[1]] = true
	}
	files, err := filepath.Glob("../store/*.go")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`Type: +"([a-z_0-9]+)\.`).FindAllStringSubmatch(string(text), -1) {
			written[m[1]] = true
		}
	}
	require.Subset(t, slices.Sorted(maps.Keys(kinds)), slices.Sorted(maps.Keys(written)))
	body := []string{"| kind | what its events report |", "|---|---|"}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		body = append(body, fmt.Sprintf("| `%s` | %s |", kind, kinds[kind]))
	}
	recorded(t, "events.md", "api/openapi.yaml", "Events", "The feed of events (`GET /v1/events`, `prego events`) has one line for each "+
		"change. `kind` is the kind of the object, `step` what happened. `prego events --kind server,move` selects kinds.", body)
}

// TestSettingsAreListed: each setting with its default and the comment of its field.
func TestSettingsAreListed(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/config/config.go", nil, parser.ParseComments)
	require.NoError(t, err)
	comments, titles := map[string]string{}, map[string]string{} // by type and field; by type
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		spec, _ := g.Specs[0].(*ast.TypeSpec)
		titles[spec.Name.Name] = strings.Join(strings.Fields(g.Doc.Text()), " ")
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()+f.Comment.Text()), " ")
				}
			}
		}
	}
	secrets := config.Secrets()
	var body []string
	var list func(of reflect.Type, prefix string)
	list = func(of reflect.Type, prefix string) {
		var rows []string
		for f := range of.Fields() {
			name := f.Tag.Get("env")
			if name == "" {
				continue
			}
			about := comments[of.Name()+"."+f.Name]
			require.NotEmpty(t, about, "%s.%s has no comment", of.Name(), f.Name)
			if slices.Contains(secrets, prefix+name) {
				about = regexp.MustCompile(`[;,]? ?(or )?[A-Z_]+_FILE for a file|, also _FILE$|; also _FILE$`).ReplaceAllString(about, "")
				about = strings.TrimSpace(about + " (also `_FILE`)")
			}
			about = strings.ReplaceAll(strings.TrimPrefix(about, f.Name+" is "), "<", "&lt;")
			value := f.Tag.Get("envDefault")
			if value != "" {
				value = "`" + value + "` "
			}
			rows = append(rows, fmt.Sprintf("| `%s%s` | %s| %s |", prefix, name, value, strings.ReplaceAll(about, "|", `\|`)))
		}
		if len(rows) > 0 {
			body = append(body, "## "+of.Name(), "")
			body = append(body, wrapped(strings.ReplaceAll(titles[of.Name()], "Config holds the", "The"))...)
			body = append(body, "| variable | default | meaning |", "|---|---|---|")
			body = append(body, append(rows, "")...)
		}
		for f := range of.Fields() {
			if f.Type.Kind() == reflect.Struct && f.Tag.Get("env") == "" {
				list(f.Type, prefix+f.Tag.Get("envPrefix"))
			}
		}
	}
	list(reflect.TypeFor[config.Config](), "")
	recorded(t, "settings.md", "internal/config/config.go", "Settings", "All processes read the same environment variables and use those "+
		"they need. `_FILE` marks secrets: the variable with this suffix names a file that contains the value.", body[:len(body)-1])
}

// TestAccessIsListed: each access role with its capabilities, and each operation with what it requires.
func TestAccessIsListed(t *testing.T) {
	t.Parallel()
	var rows []string
	for path, item := range api.Contract().Paths.Map() {
		for method, op := range item.Operations() {
			of := strings.ReplaceAll(strings.Trim(fmt.Sprint(op.Extensions["x-org-of"]), "[]"), " ", ", ")
			if of == "<nil>" {
				continue // it needs no token
			}
			capability := ""
			if c := op.Extensions["x-capability"]; c != nil {
				capability = fmt.Sprintf("`%s`", c)
			}
			rows = append(rows, fmt.Sprintf("| %s | `%s %s` | %s | %s |", op.OperationID, method, path, capability, of))
		}
	}
	slices.Sort(rows)
	listed := func(patterns []string) string { return "`" + strings.Join(patterns, "`, `") + "`" }
	body := []string{"## Access roles", ""}
	for _, r := range access.Roles() {
		about := r.Description + " It has " + listed(r.Patterns)
		if len(r.Except) > 0 {
			about += ", without " + listed(r.Except)
		}
		if r.Above != nil {
			about += "; on the installation, or in orgs below the granted one, only " + listed(r.Above)
		}
		body = append(body, "### "+r.Name, "")
		body = append(body, wrapped(about+".")...)
	}
	body = append(body, "## Operations", "")
	body = append(body, wrapped("The last column is where the org of an operation's object is found: by parameters of its path, or fields "+
		"of its body. `installation` means that the object belongs to no org, `reach` that the answer has what belongs to the caller's orgs, "+
		"`caller` that every caller may, and `handler` that it depends on the object: a new org requires its capability on the parent, "+
		"another tier `org:change`, and another parent `access:grant` on both.")...)
	body = append(body, "| operation | request | capability | org of |", "|---|---|---|---|")
	body = append(body, rows...)
	recorded(t, "access.md", "api/openapi.yaml", "Access", "Each operation requires a capability: a thing and a verb. An access role is a "+
		"set of capabilities, where `*` stands for every thing or verb. A grant gives an access role to a caller, on the installation, or on an org and all orgs below it. An object "+
		"in other orgs is answered like one that does not exist.", body)
}
