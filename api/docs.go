package api

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"
	"go.yaml.in/yaml/v3"

	"github.com/prego/prego"
)

//go:embed docs
var docsFiles embed.FS

// docsPolicy lets the pages use their own style and script, and nothing else.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'self'; " +
	"frame-ancestors 'none'"

// buildTime are the contract's annotations for our own generated code, in both styles of YAML. They name packages that
// other generators' clients can't import.
var buildTime = regexp.MustCompile(`(?m)^ +x-go-type(-import)?: .*\n` +
	`|, x-go-type(-import)?: (\{[^}]*\}|[^,}]+)` + `|x-go-type(-import)?: (\{[^}]*\}|[^,}]+), `)

// published is the contract as callers get it, in YAML and in JSON.
var published = sync.OnceValues(func() (asYAML, asJSON []byte) {
	asYAML = buildTime.ReplaceAll(spec, nil)
	var doc any
	err := yaml.Unmarshal(asYAML, &doc)
	if err == nil {
		asJSON, err = json.Marshal(doc)
	}
	if err != nil {
		panic("api: " + err.Error()) // a test reads both
	}
	return asYAML, asJSON
})

// serveDocs serves the contract, and pages that show it: an index, and one for each operation and code. Browsers take a
// minute to show all of them on one page.
func serveDocs(e *echo.Echo) {
	e.GET("/openapi.yaml", func(c echo.Context) error {
		asYAML, _ := published()
		return c.Blob(http.StatusOK, "application/yaml", asYAML)
	})
	e.GET("/openapi.json", func(c echo.Context) error {
		_, asJSON := published()
		return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, asJSON)
	})
	e.GET("/docs", func(c echo.Context) error {
		q := c.QueryParam("q")
		groups, found := reference().find(q)
		return docsPage(c, "index", map[string]any{
			"Title": "API reference", "About": paragraphs(embedded().doc.Info.Description),
			"Q": q, "Groups": groups, "Any": found,
		})
	})
	e.GET("/docs/operations/:operation", func(c echo.Context) error {
		op := reference().operations[c.Param("operation")]
		if op == nil {
			name := shown(c.Param("operation"))
			return prego.Errorf(prego.CodeNotFound, "there is no operation %s; /docs lists all", name)
		}
		return docsPage(c, "operation", op)
	})
	e.GET(errorPages+":code", func(c echo.Context) error {
		code := reference().errors[c.Param("code")]
		if code == nil {
			return prego.Errorf(prego.CodeNotFound, "there is no code %s; /docs lists all", shown(c.Param("code")))
		}
		return docsPage(c, "error", code)
	})
	for name, kind := range map[string]string{"style.css": "text/css", "search.js": "text/javascript"} {
		e.GET("/docs/"+name, func(c echo.Context) error {
			file, err := docsFiles.ReadFile("docs/" + name)
			if err != nil {
				return err
			}
			c.Response().Header().Set("Cache-Control", "public, max-age=300")
			return c.Blob(http.StatusOK, kind+"; charset=utf-8", file)
		})
	}
}

var docsTemplates = template.Must(template.New("").Funcs(template.FuncMap{"lower": strings.ToLower}).
	ParseFS(docsFiles, "docs/*.html"))

// docsPage writes a page of the reference.
func docsPage(c echo.Context, name string, data any) error {
	var page bytes.Buffer
	if err := docsTemplates.ExecuteTemplate(&page, name, data); err != nil {
		return err
	}
	c.Response().Header().Set("Content-Security-Policy", docsPolicy)
	return c.HTMLBlob(http.StatusOK, page.Bytes())
}
