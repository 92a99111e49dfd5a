package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

// Refusal is a problem document of the API as an error.
type Refusal struct{ api.Problem }

func (r *Refusal) Error() string {
	text := r.Title
	if r.Detail != nil {
		text = *r.Detail
	}
	if r.Field != nil {
		text = *r.Field + " " + text
	}
	return text
}

// answer is what the API answered. Of a stream of events only the last one is kept: how it ended.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
	page   http.ResponseWriter // that the answer is for
}

func (a *answer) Header() http.Header    { return a.header }
func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(b []byte) (int, error) {
	if a.streamed() && bytes.HasPrefix(b, []byte("event: ")) {
		a.body.Reset()
	}
	return a.body.Write(b)
}

// FlushError does nothing: the page is written when the answer is whole.
func (a *answer) FlushError() error { return nil }

// Unwrap is for the deadlines that the API moves while a long request lasts: they are the page's.
func (a *answer) Unwrap() http.ResponseWriter { return a.page }

func (a *answer) streamed() bool {
	return strings.HasPrefix(a.header.Get(echo.HeaderContentType), "text/event-stream")
}

// object decodes an answer.
func (a *answer) object() (object, error) {
	if a.streamed() {
		return lastEvent(a.body.String())
	}
	return decoded(a.body.Bytes())
}

// decoded is a JSON object whose numbers are kept as they are written.
func decoded(b []byte) (object, error) {
	out := object{}
	if len(b) == 0 {
		return out, nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("console: the API's answer: %w", err)
	}
	return out, nil
}

// lastEvent is the meaning of a finished stream's last event: how a command ended, or a *Refusal
// if it did not run.
func lastEvent(stream string) (object, error) {
	events := strings.Split(strings.TrimRight(stream, "\n"), "\n\n")
	name, data := "", ""
	for line := range strings.SplitSeq(events[len(events)-1], "\n") {
		if v, ok := strings.CutPrefix(line, "event: "); ok {
			name = v
		} else if v, ok := strings.CutPrefix(line, "data: "); ok {
			data += v
		}
	}
	if name == "error" {
		refused := &Refusal{}
		if err := json.Unmarshal([]byte(data), refused); err != nil {
			return nil, fmt.Errorf("console: the API's last event: %w", err)
		}
		return nil, refused
	}
	return decoded([]byte(data))
}

// ask sends a request to the API in the name of the logged-in user. Anything but a success is
// returned as a *Refusal.
func (c *Console) ask(ec echo.Context, method, path string, query url.Values, body any, header http.Header) (*answer, error) {
	v, ok := ec.Get(visitorKey).(*visitor)
	if !ok {
		return nil, prego.Errorf(prego.CodeUnauthenticated, "log in first")
	}
	in := ec.Request()
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return nil, err
		}
	}
	u := path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(api.As(in.Context(), v.Principal), method, u, &b)
	if err != nil {
		return nil, err
	}
	r.RemoteAddr, r.RequestURI, r.Host = in.RemoteAddr, u, in.Host
	if body == nil {
		r.Body = http.NoBody
	} else {
		r.Header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	}
	maps.Copy(r.Header, header)
	out := &answer{status: http.StatusOK, header: http.Header{}, page: ec.Response().Writer}
	c.d.API.ServeHTTP(out, r)
	if out.status/100 == 2 {
		return out, nil
	}
	refused := &Refusal{}
	if err := json.Unmarshal(out.body.Bytes(), refused); err != nil || refused.Code == "" {
		return nil, fmt.Errorf("console: the API answered %d to %s %s", out.status, method, path)
	}
	return nil, refused
}

// get reads an object.
func (c *Console) get(ec echo.Context, path string, query url.Values) (object, error) {
	a, err := c.ask(ec, http.MethodGet, path, query, nil, nil)
	if err != nil {
		return nil, err
	}
	return a.object()
}

// refusedWith reports whether an error is the API's refusal with a status.
func refusedWith(err error, status int) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Status == status
}

// messageOf is an error's sentence for people.
func messageOf(err error) string {
	var coded *prego.Error
	if errors.As(err, &coded) {
		return coded.Message
	}
	return err.Error()
}

// object is what the API answers with.
type object map[string]any

// at returns the value at a path of names, like provider.ipv4, or nil.
func (o object) at(path string) any {
	var v any = map[string]any(o)
	for name := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[name]
	}
	return v
}

// text is at as text, "" for other types.
func (o object) text(path string) string {
	switch v := o.at(path).(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// objects are the objects of the list at a path.
func (o object) objects(path string) []object {
	list, _ := o.at(path).([]any)
	out := make([]object, 0, len(list))
	for _, v := range list {
		if m, ok := v.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// number is at as a number.
func (o object) number(path string) float64 {
	n, _ := o.at(path).(json.Number)
	f, _ := n.Float64()
	return f
}
