package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prego/prego/api"
)

// apiClient calls the API as an operator does.
type apiClient struct {
	base  string
	token string
	http  *http.Client
}

// newAPIClient takes PREGO_API_URL, and PREGO_TOKEN or PREGO_TOKEN_FILE.
func newAPIClient() (*apiClient, error) {
	base := os.Getenv("PREGO_API_URL")
	if base == "" {
		base = "http://127.0.0.1:8080"
	}
	token := os.Getenv("PREGO_TOKEN")
	if file := os.Getenv("PREGO_TOKEN_FILE"); token == "" && file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("PREGO_TOKEN_FILE: %w", err)
		}
		token = strings.TrimSpace(string(b))
	}
	if token == "" {
		return nil, errors.New("set PREGO_TOKEN or PREGO_TOKEN_FILE to a token; prego token create makes one")
	}
	return &apiClient{base: strings.TrimSuffix(base, "/"), token: token, http: &http.Client{Timeout: 30 * time.Second}}, nil
}

// refusal is a problem document as an error.
type refusal struct{ api.Problem }

func (r *refusal) Error() string {
	text := r.Title
	if r.Detail != nil {
		text = *r.Detail
	}
	if r.Field != nil {
		text = *r.Field + " " + text
	}
	return fmt.Sprintf("%s (%s)", text, r.Code)
}

func (c *apiClient) do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	return c.send(ctx, method, path, query, nil, in, out)
}

// send is do with more headers.
func (c *apiClient) send(ctx context.Context, method, path string, query url.Values, header http.Header, in, out any) error {
	req, err := c.request(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return &exitError{code: 1, err: fmt.Errorf("the API at %s does not answer: %w", c.base, err)}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return notOK(resp, b)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// request makes a request with the caller's token.
func (c *apiClient) request(ctx context.Context, method, path string, query url.Values, in any) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	u := c.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// notOK is an answer that is no success.
func notOK(resp *http.Response, body []byte) error {
	r := &refusal{}
	if json.Unmarshal(body, &r.Problem) != nil || r.Code == "" {
		return fmt.Errorf("the API answered %s", resp.Status)
	}
	return &exitError{code: 2, err: r}
}

func (c *apiClient) server(ctx context.Context, id string) (api.Server, error) {
	var s api.Server
	err := c.do(ctx, http.MethodGet, "/v1/servers/"+url.PathEscape(id), nil, nil, &s)
	return s, err
}

// watch prints a server's timeline as it grows, until the server rests: active,
// failed or terminated.
func (c *apiClient) watch(ctx context.Context, w io.Writer, id string, rests func(api.Server) bool) (api.Server, error) {
	printed := 0
	for {
		s, err := c.server(ctx, id)
		if err != nil {
			return s, err
		}
		for _, e := range s.Timeline[min(printed, len(s.Timeline)):] {
			printEvent(w, s, e)
		}
		printed = len(s.Timeline)
		if rests(s) {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func printEvent(w io.Writer, s api.Server, e api.Event) {
	text := e.Step
	if e.Message != nil {
		text += "  " + *e.Message
	}
	if e.Reason != nil {
		text += "  [" + *e.Reason + "]"
	}
	fmt.Fprintf(w, "%8.2fs  %-22s %s\n", e.At.Sub(s.CreatedAt).Seconds(), s.ServerId, text)
}
