package api

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the page and its viewer
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"
	"go.yaml.in/yaml/v3"
)

//go:embed docs.html
var docsPage []byte

// The viewer is vendored and compressed (api/redoc/README.md).
//
//go:embed redoc/redoc.standalone.js.gz
var viewer []byte

// The licences of the viewer and of its bundled parts are embedded, so they ship with the binary.
var (
	//go:embed redoc/LICENSE
	viewerLicense []byte
	//go:embed redoc/THIRD-PARTY.txt
	viewerBundles []byte
)

// docsPolicy lets the page run only the viewer, and fetch the contract from this
// service. The viewer sets its own styles, and has data: images.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

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

// serveDocs serves the contract, and a page that shows it.
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
		c.Response().Header().Set("Content-Security-Policy", docsPolicy)
		return c.HTMLBlob(http.StatusOK, docsPage)
	})
	e.GET("/docs/licenses", func(c echo.Context) error {
		return c.Blob(http.StatusOK, echo.MIMETextPlainCharsetUTF8, slices.Concat([]byte("Redoc, which shows /docs\n\n"), viewerLicense, []byte("\nWhat it bundles\n\n"), viewerBundles))
	})
	e.GET("/docs/redoc.js", func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Cache-Control", "public, max-age=86400")
		h.Set("Vary", "Accept-Encoding")
		if strings.Contains(c.Request().Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			return c.Blob(http.StatusOK, "text/javascript; charset=utf-8", viewer)
		}
		r, err := gzip.NewReader(bytes.NewReader(viewer))
		if err != nil {
			return err
		}
		h.Set(echo.HeaderContentType, "text/javascript; charset=utf-8")
		c.Response().WriteHeader(http.StatusOK)
		_, err = io.Copy(c.Response(), r) //nolint:gosec // the archive is embedded
		return err
	})
}
