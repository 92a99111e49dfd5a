// Package console is the operators' pages below /console, rendered on the server. Whatever a
// page shows or does goes through the API's own handler, as its caller: there is no second way to
// read or change anything. Forms, filters and sorts come from the contract (openapi.yaml).
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

//go:embed static
var static embed.FS

// Feed follows what happens, as the API's own does.
type Feed func(ctx context.Context, q ops.EventQuery) (*api.EventSubscription, error)

// Deps are the dependencies of a console.
type Deps struct {
	API     http.Handler                                                      // the API's
	Allow   func(access.Principal, *http.Request) error                       // the API's; without a principal for the network
	Refusal func(error, echo.Context) (coded *prego.Error, status, again int) // the API's
	Auth    api.Authenticator
	People  api.People   // nil without an issuer that people log in with
	Store   *store.Store // of logins
	Feed    Feed
	Watch   func(context.Context, access.Principal, access.Capability) (context.Context, func()) // the API's
	URL     string                                                                               // where browsers reach it: passkeys are of its host
	Now     func() time.Time
	Log     *zap.Logger
}

// Console serves pages.
type Console struct {
	d        Deps
	echo     *echo.Echo
	streams  streams
	passkeys passkeys
}

// policy lets pages run and show only what this program serves, and nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// New makes a console.
func New(d Deps) *Console {
	c := &Console{d: d, streams: streams{of: map[string]int{}}, passkeys: newPasskeys(d.URL)}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = c.failed
	e.Pre(secure)
	files, _ := fs.Sub(static, "static") // it is embedded
	e.GET("/console/static/*", echo.WrapHandler(http.StripPrefix("/console/static/", cached(http.FileServerFS(files)))))
	e.GET("/console/login", c.loginPage)
	e.POST("/console/login", c.login)
	e.POST("/console/login/begin", c.script(c.beginLogin))
	e.GET("/console/join", c.joinPage)
	e.POST("/console/join", c.join)
	e.POST("/console/join/begin", c.script(c.beginJoin))
	e.GET("/console/login/oidc", c.toIssuer)
	e.GET("/console/login/oidc/callback", c.fromIssuer)

	in := e.Group("/console", c.session)
	in.GET("/you", c.you)
	in.POST("/you/passkeys/begin", c.script(c.beginAdd))
	in.POST("/you/passkeys", c.yourOwn("addPasskey", c.addPasskey))
	in.POST("/you/passkeys/:id/remove", c.yourOwn("removePasskey", c.removePasskey))
	in.POST("/you/logins/:id/end", c.yourOwn("endLogin", c.endLogin))
	in.POST("/again/begin", c.script(c.beginAgain))
	in.POST("/logout", c.logout)
	in.POST("/theme", c.theme)
	in.GET("", c.home(c.live(c.now)))
	in.GET("/", c.home(c.live(c.now)))
	in.GET("/events", c.events)
	in.GET("/search", c.search)
	in.GET("/map", c.live(c.fleetMap))
	in.GET("/map/packing", c.packing)
	in.GET("/what-if", c.whatIf)
	in.GET("/decisions/:decision_id/replay", c.replay)
	in.GET("/costs", c.live(c.costs))
	in.GET("/servers/:server_id/containers", c.containers)
	in.GET("/ledger.csv", c.csv("/v1/ledger"))
	in.GET("/costs.csv", c.csv("/v1/costs"))
	in.GET("/do/:operation", mayDo(c.form))
	in.POST("/do/:operation", mayDo(c.act))
	in.POST("/do/:operation/begin", mayDo(c.begin))
	in.POST("/do/:operation/lines", mayDo(c.lines))
	for page, id := range map[string]string{"servers/{server_id}/logs/{name}": "containerLogs", "instances/{instance_id}/logs": "instanceLogs"} {
		in.GET("/"+echoPath(page), c.logs(operations()[id]))
		in.GET("/"+echoPath(page)+"/stream", c.follow(operations()[id].Path))
	}
	listings, things := described()
	for _, l := range listings {
		in.GET("/"+echoPath(l.Page), c.live(c.list(l)))
	}
	for _, t := range things {
		in.GET("/"+echoPath(t.Page), c.live(c.thing(t)))
	}
	c.echo = e
	return c
}

// echoPath is a path with {parameters} as echo writes it.
func echoPath(path string) string {
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// Handler serves everything below /console.
func (c *Console) Handler() http.Handler { return c.echo }

// secure sets the headers of every answer.
func secure(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		h := ec.Response().Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		return next(ec)
	}
}

// cached lets browsers keep what only changes with the program for an hour.
func cached(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=3600")
		h.ServeHTTP(w, r)
	})
}

// failed shows an error as a page.
func (c *Console) failed(err error, ec echo.Context) {
	if ec.Response().Committed {
		return
	}
	var status int
	var code, text string
	var refused *Refusal
	var http4xx *echo.HTTPError
	switch {
	case errors.As(err, &refused):
		status, code, text = refused.Status, refused.Code, refused.Error()
	case errors.As(err, &http4xx):
		status, code, text = http4xx.Code, string(prego.CodeNotFound), "There is no such page."
		if http4xx.Code != http.StatusNotFound {
			code, text = string(prego.CodeMethodNotAllowed), http.StatusText(http4xx.Code)
		}
	default:
		coded, of, again := c.d.Refusal(err, ec)
		status, code, text = of, string(coded.Code), coded.Message
		if again > 0 {
			ec.Response().Header().Set(echo.HeaderRetryAfter, strconv.Itoa(again))
		}
	}
	p := &page{Title: fmt.Sprintf("%d %s", status, http.StatusText(status)), Template: "failure", Body: map[string]any{"Code": code, "Text": text}}
	if e := c.show(ec, status, p); e != nil {
		c.d.Log.Debug("console: page not delivered", zap.Error(e))
	}
}

// page is what a template shows.
type page struct {
	Title    string
	Tab      string // the browser's title, if it is not Title
	Section  string // the entry of the navigation that it belongs to
	Crumbs   []crumb
	Template string
	Body     any
	Commands []command // how the same is asked for elsewhere
	Kinds    []string  // of changes that make it stale
	IDs      []string  // of what; all if empty
	Refresh  string    // when and where browsers reload by themselves
	// The rest is set by show.
	Who   *visitor
	Nav   []navGroup
	Theme string
	Self  string // its own path and query
	Path  string // its own path
	Since string // the place in the feed of events that it was read after
	Now   time.Time
	body  template.HTML
}

// crumb is a link to what a page is part of.
type crumb struct{ Text, Href string }

// command is a command line.
type command struct{ Name, Line string }

// show renders a page.
func (c *Console) show(ec echo.Context, status int, p *page) error {
	p.Who, _ = ec.Get(visitorKey).(*visitor)
	p.Since, _ = ec.Get(sinceKey).(string)
	p.Nav, p.Self, p.Path, p.Now = p.Who.offered(navigation(sectionOf(ec.Request().URL.Path, p.Section))), ec.Request().URL.RequestURI(), ec.Request().URL.EscapedPath(), c.d.Now()
	if k, err := ec.Cookie(themeCookie); err == nil && (k.Value == "dark" || k.Value == "light") {
		p.Theme = k.Value
	}
	var b bytes.Buffer
	if err := render(&b, p); err != nil {
		return fmt.Errorf("console: %s: %w", p.Template, err)
	}
	return ec.HTMLBlob(status, b.Bytes())
}

// theme keeps the choice of light or dark pages.
func (c *Console) theme(ec echo.Context) error {
	form := ec.Request().PostForm
	next := form.Get("theme")
	//nolint:gosec // Secure wherever the browser came over TLS
	k := &http.Cookie{Name: themeCookie, Value: next, Path: "/console", HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: 365 * 24 * 3600, Secure: encrypted(ec.Request())}
	if next != "dark" && next != "light" {
		k.MaxAge = -1
	}
	ec.SetCookie(k)
	return ec.Redirect(http.StatusSeeOther, localPath(form.Get("back")))
}

// localPath is a given path of the console, or its first page.
func localPath(given string) string {
	if given == "/console" || strings.HasPrefix(given, "/console/") || strings.HasPrefix(given, "/console?") {
		return given
	}
	return "/console"
}

// clock formats a time.
type clock = func() time.Time
