// Package browser drives a Chromium without a window, as an operator uses the console: for tests,
// and for the pictures of its documentation.
package browser

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/webauthn"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Program is the path of Chromium, "" if there is none.
func Program() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Browser is a running Chromium.
type Browser struct{ ctx context.Context }

// Start starts a Chromium that ends with ctx. dir is where it keeps its profile.
func Start(ctx context.Context, program, dir string) (*Browser, func(), error) {
	// Its sandbox does not work as root. Pages are this project's own.
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program),
		chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))
	alloc, endAlloc := chromedp.NewExecAllocator(ctx, opts...)
	root, endRoot := chromedp.NewContext(alloc)
	if err := chromedp.Do(root); err != nil {
		endRoot()
		endAlloc()
		return nil, nil, fmt.Errorf("chromium: %w", err)
	}
	return &Browser{ctx: root}, func() { endRoot(); endAlloc() }, nil
}

// Tab is a separate window, with separate cookies.
type Tab struct {
	ctx  context.Context
	base string

	mu       sync.Mutex
	problems []string
}

// NewTab opens a window for the console at a URL.
func (b *Browser) NewTab(base string) (*Tab, func(), error) {
	ctx, end := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	t := &Tab{ctx: ctx, base: base}
	listen := func(ev any) {
		switch ev := ev.(type) {
		case *log.EventEntryAdded:
			t.logged(ev.Entry)
		case *runtime.EventExceptionThrown:
			t.note("exception: " + ev.ExceptionDetails.Text + " " + ev.ExceptionDetails.URL)
		case *page.EventJavascriptDialogOpening: // no page of ours opens one: only an injected script does
			t.note("dialog: " + ev.Message)
			go func() {
				_, _ = chromedp.Call(ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
			}()
		}
	}
	if err := chromedp.Listen(ctx, listen); err != nil {
		end()
		return nil, nil, fmt.Errorf("chromium: %w", err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		end()
		return nil, nil, fmt.Errorf("chromium: %w", err)
	}
	return t, end, nil
}

// logged notes errors, what breaks the content security policy among them. What the server
// refuses is looked at where it is asked for.
func (t *Tab) logged(e *log.Entry) {
	if e.Level == log.EntryLevelError && !strings.Contains(e.Text, "the server responded with a status of") &&
		!strings.Contains(e.Text, "net::ERR") {
		t.note(string(e.Source) + ": " + e.Text + " " + e.URL)
	}
}

func (t *Tab) note(problem string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.problems = append(t.problems, problem)
}

// Problems are errors in the browser's console since the last call, and dialogs that were opened.
func (t *Tab) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.problems
	t.problems = nil
	return out
}

// patience is how long one step may take on a busy machine.
const patience = 60 * time.Second

// Do runs steps.
func (t *Tab) Do(steps ...chromedp.Action[chromedp.Void]) error {
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	return chromedp.Do(ctx, steps...)
}

// run runs an action that returns something.
func run[T any](t *Tab, a chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, a)
}

// Login logs in by a token.
func (t *Tab) Login(token string) error {
	return t.Do(chromedp.Navigate(t.base+"/console/login"), chromedp.SetValue(chromedp.CSS("#token"), token),
		chromedp.Click(chromedp.CSS("form button.main")), chromedp.WaitReady(chromedp.CSS("header.top")))
}

// Authenticator gives the window a device with passkeys, whose user always agrees.
func (t *Tab) Authenticator() error {
	if _, err := chromedp.Call(t.ctx, webauthn.Enable, webauthn.EnableParams{}); err != nil {
		return err
	}
	_, err := chromedp.Call(t.ctx, webauthn.AddVirtualAuthenticator, webauthn.AddVirtualAuthenticatorParams{Options: &webauthn.VirtualAuthenticatorOptions{
		Protocol: webauthn.AuthenticatorProtocolCtap2, Transport: webauthn.AuthenticatorTransportInternal,
		HasResidentKey: true, HasUserVerification: true, IsUserVerified: true, AutomaticPresenceSimulation: true,
	}})
	return err
}

// Open loads a page of the console, and returns its status.
func (t *Tab) Open(path string) (status int64, err error) {
	r, err := run(t, chromedp.NavigateResponse(t.URL(path)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return r.Status, t.Do(chromedp.WaitReady(chromedp.CSS("main")))
}

// Go loads a page of another site.
func (t *Tab) Go(url string) error { return t.Do(chromedp.Navigate(url)) }

// Click clicks on what a CSS selector finds.
func (t *Tab) Click(selector string) error { return t.Do(chromedp.Click(chromedp.CSS(selector))) }

// Fill sets the value of an input.
func (t *Tab) Fill(selector, value string) error {
	return t.Do(chromedp.SetValue(chromedp.CSS(selector), value))
}

// Type presses keys, as on a keyboard.
func (t *Tab) Type(keys string) error { return t.Do(chromedp.KeyEvent(keys)) }

// keyNames are keys without a character, by their names in the DOM.
var keyNames = map[string]string{
	"Enter": kb.Enter, "Tab": kb.Tab, "Escape": kb.Escape, "ArrowDown": kb.ArrowDown, "ArrowUp": kb.ArrowUp,
	"Space": " ", "Home": kb.Home,
}

// Press presses keys one after the other, each a character or a name, with Control+ or Shift+ before it.
func (t *Tab) Press(keys ...string) error {
	for _, key := range keys {
		var held []chromedp.KeyOption
		for name, m := range map[string]chromedp.Modifier{
			"Control+": chromedp.ModifierCtrl, "Shift+": chromedp.ModifierShift,
		} {
			if rest, ok := strings.CutPrefix(key, name); ok {
				key, held = rest, append(held, chromedp.KeyModifiers(m))
			}
		}
		if err := t.Do(chromedp.KeyEvent(cmp.Or(keyNames[key], key), held...)); err != nil {
			return fmt.Errorf("key %s: %w", key, err)
		}
	}
	return nil
}

// visible is a function of a page that returns what a person could click on by its text, which has no hints of keys.
const visible = `(text) => [...document.querySelectorAll("a[href], button, summary, label")].find((e) => {
	const copy = e.cloneNode(true);
	for (const hint of copy.querySelectorAll("kbd")) hint.remove();
	return e.checkVisibility() && copy.textContent.replace(/\s+/g, " ").trim() === text;
})`

// ClickOn moves the mouse to a link or button with a text, and clicks on what is there.
func (t *Tab) ClickOn(text string) error {
	quoted, err := json.Marshal(text)
	if err != nil {
		return err
	}
	if err := t.Wait(`(` + visible + `)(` + string(quoted) + `) !== undefined`); err != nil {
		return fmt.Errorf("nothing with the text %s: %w", quoted, err)
	}
	at, err := Ask[[]float64](t, `(() => {
	const e = (`+visible+`)(`+string(quoted)+`);
	e.scrollIntoView({ block: "center" });
	const r = e.getBoundingClientRect(), x = r.left + Math.min(r.width / 2, 20), y = r.top + r.height / 2;
	const there = document.elementFromPoint(x, y);
	return e.contains(there) || there?.contains(e) ? [x, y] : [];
})()`)
	if err != nil {
		return err
	}
	if len(at) == 0 {
		return fmt.Errorf("%s is covered by something else", quoted)
	}
	return t.Do(chromedp.MouseClickXY(at[0], at[1]))
}

// Wait waits until a JavaScript expression is true, also over pages that are loaded meanwhile.
func (t *Tab) Wait(expression string) error {
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression)) // fails while a page is loaded
		if ok && err == nil {
			return nil
		}
		if e := chromedp.Do(ctx, chromedp.Sleep(50*time.Millisecond)); e != nil || ctx.Err() != nil {
			return fmt.Errorf("waiting for %s: %w", expression, errors.Join(ctx.Err(), err))
		}
	}
}

// Ask evaluates a JavaScript expression.
func Ask[T any](t *Tab, expression string) (T, error) {
	return run(t, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// URL is that of a path.
func (t *Tab) URL(path string) string {
	if u, err := url.Parse(path); err == nil && u.IsAbs() {
		return path
	}
	return t.base + path
}

// Look makes the window so many pixels wide, and light or dark.
func (t *Tab) Look(width int64, dark bool) error {
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	if _, err := chromedp.Call(t.ctx, emulation.SetDeviceMetricsOverride,
		emulation.SetDeviceMetricsOverrideParams{
			Width: width, Height: 900, DeviceScaleFactor: 1,
			Mobile: width < 500,
		}); err != nil {
		return err
	}
	_, err := chromedp.Call(t.ctx, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{
			Name:  "prefers-color-scheme",
			Value: scheme,
		}}})
	return err
}

// Picture is a PNG of the whole page.
func (t *Tab) Picture() (png []byte, err error) { return run(t, chromedp.FullScreenshot(100)) }

// Text is what an element shows.
func (t *Tab) Text(selector string) (string, error) {
	return run(t, chromedp.Text(chromedp.CSS(selector)))
}

// Overflows reports whether the page is wider than its window.
func (t *Tab) Overflows() (bool, error) {
	return Ask[bool](t, `document.documentElement.scrollWidth > document.documentElement.clientWidth + 1`)
}

// Violation is a rule of accessibility that a page breaks.
type Violation struct {
	ID     string `json:"id"`
	Impact string `json:"impact"`
	Help   string `json:"help"`
	Nodes  []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

func (v Violation) String() string {
	out := v.ID + " (" + v.Impact + "): " + v.Help
	for i, n := range v.Nodes {
		if i == 3 {
			out += fmt.Sprintf("\n  and %d more", len(v.Nodes)-i)
			break
		}
		out += "\n  " + n.HTML + "\n    " + strings.ReplaceAll(n.Summary, "\n", " ")
	}
	return out
}

// Accessibility asks axe-core, whose script is given, what the page breaks.
func (t *Tab) Accessibility(axe string) ([]Violation, error) {
	if err := t.Do(chromedp.Evaluate[chromedp.Void](axe + `;0`)); err != nil {
		return nil, fmt.Errorf("axe-core: %w", err)
	}
	raw, err := Ask[string](t,
		`axe.run(document, {resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations))`)
	if err != nil {
		return nil, fmt.Errorf("axe-core: %w", err)
	}
	var out []Violation
	return out, json.Unmarshal([]byte(raw), &out)
}
