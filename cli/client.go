package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/api"
)

const (
	// maxAnswer limits the size of an answer, in bytes.
	maxAnswer = 16 << 20
	// maxPage is the API's maximum page size.
	maxPage = 200
)

// Client calls the API.
type Client struct {
	Base, Token string
	HTTP        *http.Client
}

// NewClient returns a client of the API at a URL, with a token.
func NewClient(base, token string) *Client {
	return &Client{Base: strings.TrimSuffix(base, "/"), Token: token, HTTP: &http.Client{Timeout: 30 * time.Second}}
}

// Refusal is a problem document as an error.
type Refusal struct {
	api.Problem
}

func (r *Refusal) Error() string {
	text := r.Title
	if r.Detail != nil {
		text = *r.Detail
	}
	if all := deref(r.Errors); len(all) > 1 {
		text = fmt.Sprintf("%d fields are wrong", len(all))
		for _, e := range all {
			text += fmt.Sprintf("; %s %s", e.Field, e.Message)
		}
	} else if r.Field != nil {
		text = *r.Field + " " + text
	}
	text = fmt.Sprintf("%s (%s)", text, r.Code)
	if r.Status == http.StatusUnauthorized {
		text += "; prego login sets another token"
	}
	return text
}

// Do sends a request and decodes its answer into out, unless that is nil.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	return c.send(ctx, method, path, query, nil, in, out)
}

// send is Do with additional headers.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, header http.Header, in, out any) error {
	return c.stream(ctx, c.HTTP, method, path, query, header, in, func(body io.Reader) error {
		b, err := io.ReadAll(io.LimitReader(body, maxAnswer))
		if err != nil || out == nil || len(b) == 0 {
			return err
		}
		return json.Unmarshal(b, out)
	})
}

// stream sends a request and passes the body of its answer to read as it arrives.
func (c *Client) stream(ctx context.Context, by *http.Client, method, path string, query url.Values, header http.Header, in any, read func(io.Reader) error) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	u := c.Base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := by.Do(req)
	if ctx.Err() != nil {
		return usagef("interrupted; the API may still carry out the request")
	}
	if err != nil {
		return usagef("the API at %s does not answer: %w", c.Base, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 == 2 {
		if err = read(resp.Body); unreadable(err) {
			err = c.foreign(method, path, kindOf(resp))
		}
		return err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	r := &Refusal{}
	switch {
	case json.Unmarshal(b, r) == nil && r.Code != "":
		return &Exit{Code: ExitRefused, Err: r}
	case resp.StatusCode < http.StatusInternalServerError:
		return c.foreign(method, path, resp.Status+", "+kindOf(resp))
	}
	return fmt.Errorf("the API answered %s", resp.Status) // a proxy before it did
}

// foreign is the error for an answer that prego's API does not give.
func (c *Client) foreign(method, path, answer string) error {
	path, _, _ = strings.Cut(path, "?")
	return usagef("this is not prego's API: %s %s answered %s", method, c.Base+path, answer)
}

// kindOf is an answer's media type.
func kindOf(r *http.Response) string {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return "without a type"
	}
	return kind
}

// unreadable reports whether an answer is no JSON.
func unreadable(err error) bool {
	_, ok := errors.AsType[*json.SyntaxError](err)
	return ok
}

// everyPage reads a list to its end, or until there are limit items; 0 is for lists
// without pages.
func (c *Client) everyPage(ctx context.Context, path, items string, query url.Values, limit int) ([]json.RawMessage, error) {
	all := []json.RawMessage{}
	for {
		if limit > 0 {
			query.Set("limit", strconv.Itoa(min(maxPage, limit-len(all))))
		}
		var page map[string]json.RawMessage
		if err := c.Do(ctx, http.MethodGet, path, query, nil, &page); err != nil {
			return nil, err
		}
		if page[items] == nil {
			return nil, c.foreign(http.MethodGet, path, "without "+items)
		}
		var some []json.RawMessage
		if err := json.Unmarshal(page[items], &some); err != nil {
			return nil, fmt.Errorf("the API's list has no %s: %w", items, err)
		}
		var next string
		if raw := page["next_cursor"]; raw != nil {
			if err := json.Unmarshal(raw, &next); err != nil {
				return nil, err
			}
		}
		if all = append(all, some...); next == "" || len(all) >= limit {
			return all, nil
		}
		query.Set("cursor", next)
	}
}

// passing distinguishes errors that a retry can fix from refusals.
func passing(err error) bool {
	var refused *Refusal
	if errors.As(err, &refused) {
		return refused.Status >= http.StatusInternalServerError || refused.Status == http.StatusTooManyRequests
	}
	return true
}
