package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
)

// button leads to the form of an operation.
type button struct {
	Label, Href, About string
	Danger             bool
}

// buttons are the buttons of some operations that the user may use.
func (c *Console) buttons(ec echo.Context, do string, params map[string]string, o object) []button {
	v, _ := ec.Get(visitorKey).(*visitor)
	var out []button
	for _, id := range names(do) {
		op := operations()[id]
		if op == nil || !v.may(op, o) {
			continue
		}
		if o != nil && !op.can(o) {
			continue
		}
		q := url.Values{}
		for name, v := range params {
			q.Set(name, v)
		}
		if op.body != nil { // what a form can know already
			for _, f := range op.fields() {
				v := params[f.Name]
				if v == "" && (f.Name == "org_id" || f.Name == "principal_id") { // whose it is
					v = o.text(f.Name)
				}
				if v != "" {
					q.Set(fieldOf+f.Name, v)
				}
			}
		}
		out = append(out, button{Label: op.label(o), Href: "/console/do/" + id + "?" + q.Encode(), About: op.Summary, Danger: op.dangerous()})
	}
	return out
}

// asking is a form that is filled in.
type asking struct {
	Op      *operation
	Label   string
	About   []string
	Params  []field // of the path and the query
	Fields  []field
	Key     string // the Idempotency-Key: sending the form twice is one request
	Etag    string
	Confirm string // the text to type
	Typed   string
	// Accepted is the digest of the impact that was shown, and that typing the name accepts.
	Accepted string
	Back     string
	Refused  *Refusal
	Impact   []string // in words, the one that was not accepted, or that of a dry run
	Plan     string   // what else a dry run answered
	// Compared is whether Changes are what it would change.
	Compared bool
	Changes  []changedField
	Now      object // what it replaces
	CSRF     string
	Lines    []command
	Lists    []*choices
	// Passkeys and Issuer are for a login that is not fresh.
	Passkeys passkeys
	Issuer   string // that the user logged in with, "" for another way
	Proved   bool   // the user has come back from the issuer
}

// Stale reports whether the login is too old for the operation.
func (a *asking) Stale() bool {
	return a.Refused != nil && a.Refused.Code == string(prego.CodeLoginNotFresh)
}

// Again is where the user proves at the issuer who they are, and comes back to the form.
func (a *asking) Again() string {
	back := "/console/do/" + a.Op.OperationID + "?again=1"
	return "/console/login/oidc?" + url.Values{"again": {"1"}, "next": {back}}.Encode()
}

// form shows the form of an operation.
func (c *Console) form(ec echo.Context) error {
	given := ec.QueryParams()
	for _, own := range []string{"key", "etag", "accepted"} { // of forms that are sent; a link has none
		given.Del(own)
	}
	a, err := c.asking(ec, given)
	if err != nil {
		return err
	}
	return c.showForm(ec, http.StatusOK, a)
}

// begin shows a form with what another page puts into it.
func (c *Console) begin(ec echo.Context) error {
	form := ec.Request().PostForm
	a, err := c.asking(ec, form)
	if err != nil {
		return err
	}
	a.Proved = form.Get("again") != "" && c.d.Now().Before(ec.Get(visitorKey).(*visitor).FreshUntil)
	return c.showForm(ec, http.StatusOK, a)
}

func (c *Console) showForm(ec echo.Context, status int, a *asking) error {
	return c.show(ec, status, &page{Title: a.Label, Template: "form", Body: a, Crumbs: []crumb{{Text: "back", Href: a.Back}}, Commands: a.Lines})
}

// asking reads a form: as it begins, or as it was sent.
func (c *Console) asking(ec echo.Context, form url.Values) (*asking, error) {
	op := operations()[ec.Param("operation")]
	if op == nil || op.Method == http.MethodGet {
		return nil, echo.ErrNotFound
	}
	v := ec.Get(visitorKey).(*visitor)
	a := &asking{Op: op, Label: op.Summary, Key: form.Get("key"), Etag: form.Get("etag"), CSRF: v.CSRF(), Back: localPath(form.Get("back")), Passkeys: c.passkeys}
	a.Typed, a.Accepted = form.Get("typed"), form.Get("accepted")
	a.About = explained(op.Description)
	if at := c.issuer(); at == v.Issuer {
		a.Issuer = at
	}
	if a.Key == "" {
		a.Key = uuid.NewString()
	}
	if form.Get("back") == "" {
		if u, err := url.Parse(ec.Request().Referer()); err == nil && u.Host == ec.Request().Host {
			a.Back = localPath(u.RequestURI())
		}
	}
	name := ""
	for _, p := range op.path {
		f := field{Name: p.Name, About: p.Description, Kind: "text", Required: true, Value: form.Get(p.Name), Values: values(p.Schema.Value)}
		if len(f.Values) > 0 {
			f.Kind = "choice"
		}
		name = f.Value
		a.Params = append(a.Params, f)
	}
	for _, p := range op.query {
		f := field{Name: p.Name, About: p.Description, Kind: "text", Required: p.Required, Value: form.Get(p.Name), Values: values(p.Schema.Value)}
		switch {
		case p.Schema.Value.Type.Is("boolean"):
			f.Kind, f.Values = "yesno", []string{"true", "false"}
		case len(f.Values) > 0:
			f.Kind = "choice"
		}
		a.Params = append(a.Params, f)
	}
	// Where the user may do it in one org only, it is done there.
	if orgs := api.ReachOf(v.Principal, op.OperationID).Orgs; len(orgs) == 1 && op.body != nil && op.body.Properties["org_id"] != nil && !form.Has(fieldOf+"org_id") {
		form.Set(fieldOf+"org_id", string(orgs[0]))
	}
	a.Fields = without(op.fields(), api.Withheld(v.Principal, op.OperationID))
	for i := range a.Fields {
		a.Fields[i].Value = form.Get(fieldOf + a.Fields[i].Name)
	}
	for i := range a.Fields { // the unit of a limit is that of what it limits
		if f := &a.Fields[i]; f.Name == "limit" && strings.HasSuffix(name, "_bytes") {
			f.size(name)
		}
	}
	if a.Accepted != "" && len(op.path) > 0 {
		a.Confirm = name
	}
	if op.Method == http.MethodPut && op.etag && !slices.ContainsFunc(a.Params, func(f field) bool { return f.Required && f.Value == "" }) {
		if err := c.replaced(ec, a, form); err != nil {
			return nil, err
		}
	}
	if err := c.choose(ec, a); err != nil {
		return nil, err
	}
	body, err := a.content(form)
	if err != nil {
		body = object{}
	}
	for _, f := range a.Fields { // what is still to be filled in
		if f.Required && body.at(f.Name) == nil {
			api.Put(body, f.Name, "…")
		}
	}
	a.Lines = c.writeCommands(ec, a, body)
	return a, nil
}

// explained is the contract's text for people: sentences about headers are for programs.
func explained(text string) (out []string) {
	for p := range strings.SplitSeq(text, "\n\n") {
		var kept []string
		for sentence := range strings.SplitAfterSeq(strings.ReplaceAll(p, "\n", " "), ". ") {
			if !strings.Contains(sentence, "Idempotency-Key") && !strings.Contains(sentence, "If-Match") && !strings.Contains(sentence, "If-None-Match") {
				kept = append(kept, sentence)
			}
		}
		if p := strings.TrimSpace(strings.Join(kept, "")); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// choices are things that an input can name.
type choices struct {
	ID      string
	Options []value // an id, and the name of what has it
}

// choose offers the API's things to the empty inputs for their ids.
func (c *Console) choose(ec echo.Context, a *asking) error {
	lists := map[string]*choices{}
	for _, fields := range [][]field{a.Params, a.Fields} {
		for i := range fields {
			f := &fields[i]
			l := listingOf(f.Name)
			if f.Kind != "text" || f.Value != "" || l == nil {
				continue
			}
			if _, read := lists[l.Page]; !read {
				most := url.Values{}
				if l.Op.parameter("limit") != nil {
					most.Set("limit", "200")
				}
				o, err := c.get(ec, l.Op.Path, most)
				var refused *Refusal
				if err != nil && !errors.As(err, &refused) {
					return err
				}
				id := "name" // of what has no page
				if m := placeholders.FindStringSubmatch(l.Row); m != nil {
					id = m[1]
				}
				all := &choices{ID: "known-" + strings.ReplaceAll(l.Page, "/", "-")}
				for _, row := range o.objects(l.Items) {
					all.Options = append(all.Options, value{Text: row.text(id), Title: cmp.Or(row.text("slug"), row.text("description"), row.text("name"))})
				}
				lists[l.Page] = all
			}
			if f.List = lists[l.Page]; f.Required && l.Page == "providers" && len(f.List.Options) == 1 {
				f.Value = f.List.Options[0].Text // most installations have one
			}
		}
	}
	for _, l := range lists {
		a.Lists = append(a.Lists, l)
	}
	slices.SortFunc(a.Lists, func(x, y *choices) int { return cmp.Compare(x.ID, y.ID) })
	return nil
}

// listingOf is the list of the things whose id a field holds, nil if there is none. Words may stand before its name.
func listingOf(field string) *listing {
	listings, _ := described()
	for rest, more := field[strings.LastIndexByte(field, '.')+1:], true; more; _, rest, more = strings.Cut(rest, "_") {
		for _, l := range listings {
			if rest == "access_role" && l.Page == "access-roles" {
				return &l
			}
			if !strings.Contains(l.Page, "{") && strings.Count(l.Row, "{") == 1 && (strings.HasSuffix(rest, "_id") || rest == "provider") && strings.HasSuffix(l.Row, "/{"+rest+"}") {
				return &l
			}
		}
	}
	return nil
}

// replaced fills a form with what it replaces, when it begins.
func (c *Console) replaced(ec echo.Context, a *asking, form url.Values) error {
	got, err := c.ask(ec, http.MethodGet, a.path(), nil, nil, nil)
	if refusedWith(err, http.StatusNotFound) || refusedWith(err, http.StatusMethodNotAllowed) {
		return nil
	}
	if err != nil {
		return err
	}
	etag := got.header.Get("ETag")
	if a.Now, err = got.object(); err != nil {
		return err
	}
	if form.Get("key") != "" { // it was filled in
		return nil
	}
	a.Etag = etag
	for i, f := range a.Fields {
		if f.Value == "" && f.Kind != "secret" {
			a.Fields[i].Value = f.written(a.Now.at(f.Name))
		}
	}
	return nil
}

// path is that of the API.
func (a *asking) path() string { return fill(a.Op.Path, a.param) }

// param is the value of a parameter of the path or the query.
func (a *asking) param(name string) string {
	for _, f := range a.Params {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// query is that of the API.
func (a *asking) query() url.Values {
	q := url.Values{}
	for _, p := range a.Op.query {
		for _, f := range a.Params {
			if f.Name == p.Name && f.Value != "" {
				q.Set(f.Name, f.Value)
			}
		}
	}
	return q
}

// act sends a form to the API.
func (c *Console) act(ec echo.Context) error {
	form := ec.Request().PostForm
	a, err := c.asking(ec, form)
	if err != nil {
		return err
	}
	var coded *prego.Error
	dry := form.Get("dry") != "" && a.Op.DryRun
	refuse := func(r *Refusal) error {
		if a.Refused = r; r.Impact != nil {
			a.Typed = "" // it confirmed another impact
			a.Accepted, a.Confirm, a.Impact = r.Impact.Digest, a.Params[len(a.Op.path)-1].Value, r.Impact.Lines(c.d.Now())
		}
		for i := range a.Fields {
			a.Fields[i].Wrong = wrongAt(r, a.Fields[i].Name)
		}
		a.Key = uuid.NewString() // the next submission is another request
		return c.showForm(ec, r.Status, a)
	}
	if err := c.prove(ec, ec.Get(visitorKey).(*visitor)); err != nil {
		if errors.As(err, &coded) {
			coded = &prego.Error{Code: prego.CodeLoginNotFresh, Message: coded.Message}
			return refuse(refusal(http.StatusForbidden, coded))
		}
		return err
	}
	if a.Confirm != "" && !dry && a.Typed != a.Confirm {
		return refuse(refusal(http.StatusUnprocessableEntity, prego.Invalid("name", fmt.Sprintf("has to be typed as it is: %s", a.Confirm))))
	}
	for _, f := range a.Params {
		if f.Required && f.Value == "" {
			return refuse(refusal(http.StatusUnprocessableEntity, prego.Invalid(f.Name, "is required")))
		}
	}
	body, err := a.content(form)
	if errors.As(err, &coded) {
		return refuse(refusal(http.StatusUnprocessableEntity, coded))
	}
	if form.Get("compare") != "" && a.Now != nil {
		a.Compared, a.Changes = true, compared(a.Now, body, a.Fields, c.d.Now)
		return c.showForm(ec, http.StatusOK, a)
	}
	header := http.Header{}
	if a.Op.keyed && !dry {
		header.Set("Idempotency-Key", a.Key)
	}
	if a.Op.etag && a.Etag != "" {
		header.Set("If-Match", a.Etag)
	}
	if a.Accepted != "" {
		header.Set("Impact-Accepted", a.Accepted)
	}
	var send any
	if a.Op.body != nil && (len(body) > 0 || !a.Op.optional) {
		send = body
	}
	q := a.query()
	if dry {
		q.Set("dry_run", "true")
	}
	got, err := c.ask(ec, a.Op.Method, a.path(), q, send, header)
	var refused *Refusal
	if errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		return refuse(refused)
	}
	if err != nil {
		return err
	}
	o, err := got.object()
	if errors.As(err, &refused) {
		return refuse(refused)
	}
	if err != nil {
		return err
	}
	if dry {
		if err := a.tried(o, c.d.Now()); err != nil {
			return err
		}
		return c.showForm(ec, http.StatusOK, a)
	}
	return c.done(ec, a, got.status, o)
}

// tried puts the answer to a dry run into a form.
func (a *asking) tried(o object, now time.Time) error {
	var t struct {
		Impact  impact.Impact
		Refusal *api.Problem // by a caveat
	}
	b, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil {
		return fmt.Errorf("console: the answer to a dry run: %w", err)
	}
	a.Impact = t.Impact.Lines(now)
	if t.Refusal != nil {
		a.Impact = append(a.Impact, "The request itself would be refused: "+(&Refusal{*t.Refusal}).Error()+".")
	}
	if plan := o.at("plan"); plan != nil {
		b, err := json.MarshalIndent(plan, "", "  ")
		if err != nil {
			return err
		}
		a.Plan = string(b)
	}
	return nil
}

// done shows what the API answered.
func (c *Console) done(ec echo.Context, a *asking, status int, o object) error {
	now := c.d.Now()
	p := &page{Title: a.Label, Template: "done", Crumbs: []crumb{{Text: "back", Href: a.Back}}, Commands: a.Lines}
	verdict, bad := "Done", false
	if status == http.StatusAccepted {
		verdict = "Accepted"
	}
	if code := o.text("exit_code"); code != "" && code != "0" {
		verdict, bad = "The command ended with the exit code "+code, true
	}
	secrets := c.shownOnce(a.Op, o)
	follow := ""
	if id := o.text("operation.id"); id != "" {
		follow = "/console/operations/" + url.PathEscape(id)
	}
	p.Body = map[string]any{"Verdict": verdict, "Bad": bad, "Follow": follow, "Made": a.made(o), "Secrets": secrets, "Back": a.Back, "Facts": facts(o, slices.Sorted(maps.Keys(o)), map[string]bool{}, now)}
	return c.show(ec, http.StatusOK, p)
}

// made is the page of what the API made or changed, "" if it has none.
func (a *asking) made(o object) string {
	listings, things := described()
	for _, l := range listings { // what it lists
		m := placeholders.FindStringSubmatch(l.Row)
		if a.Op.Method == http.MethodPost && l.Op.Path == a.Op.Path && m != nil && o.text(m[1]) != "" {
			return "/console/" + fill(l.Row, o.text)
		}
	}
	for _, t := range things {
		if a.Op.Method == http.MethodPut && t.Op.Path == a.Op.Path {
			return "/console/" + fill(t.Page, a.param)
		}
		if t.Name+t.Kind != "" && a.Op.Method == http.MethodPost && strings.Count(t.Page, "{") == 1 {
			if m := placeholders.FindStringSubmatch(t.Page); m != nil && o.text(m[1]) != "" && strings.HasPrefix(a.Op.Path, path.Dir(t.Op.Path)) {
				return "/console/" + fill(t.Page, o.text)
			}
		}
	}
	return ""
}

// shownOnce takes what is never shown again out of an answer: a token's secret, or a link, as browsers reach it.
func (c *Console) shownOnce(op *operation, o object) (out []fact) {
	if op.Extensions["x-impact"] != string(impact.Reveals) {
		return nil
	}
	for _, name := range []string{"secret", "path"} {
		text := o.text(name)
		if text == "" {
			continue
		}
		if name == "path" {
			name, text = "link", cmp.Or(c.passkeys.Origin, strings.TrimSuffix(c.d.URL, "/"))+text
			delete(o, "path")
		}
		delete(o, name)
		out = append(out, fact{Name: name, value: value{Text: text}})
	}
	return out
}

// lines shows how to do by other means what a form asks for.
func (c *Console) lines(ec echo.Context) error {
	a, err := c.asking(ec, ec.Request().PostForm)
	if err != nil {
		return err
	}
	return c.fragment(ec, "commands", a.Lines)
}

// refusal is a refusal by the console itself, for the same place in the form.
func refusal(status int, e *prego.Error) *Refusal {
	r := &Refusal{}
	r.Status, r.Code, r.Title = status, string(e.Code), http.StatusText(status)
	r.Detail, r.Field = &e.Message, &e.Field
	return r
}

// wrongAt is a refusal's message about a field.
func wrongAt(r *Refusal, name string) string {
	if r.Errors != nil {
		for _, e := range *r.Errors {
			if at := strings.TrimPrefix(e.Field, "body."); at == name || strings.HasPrefix(at, name+".") || strings.HasPrefix(at, name+"[") {
				return e.Message
			}
		}
	}
	if r.Field != nil && *r.Field == name && r.Detail != nil {
		return *r.Detail
	}
	return ""
}

// compared lists what a form would change.
func compared(now, body object, fields []field, clock clock) []changedField {
	before, after := map[string]any{}, map[string]any{}
	for _, f := range fields {
		if f.Kind == "secret" {
			continue
		}
		if v := now.at(f.Name); v != nil {
			before[f.Name] = v
		}
		if v := body.at(f.Name); v != nil {
			after[f.Name] = normal(v)
		}
	}
	return difference(before, after, clock())
}

// normal is a value as decoding makes it.
func normal(v any) any {
	list, ok := v.([]string)
	if !ok {
		return v
	}
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}

// general are operations that belong to no thing; they are offered on the first page.
const general = "reconcile, refreshCatalog, freeze, unfreeze"
