// Package adviser asks a service for places that tenants could get. Its answer is a
// proposal: the placement engine checks it against every rule.
package adviser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/prego/prego/placement"
)

// HTTP posts a placement.AdviceRequest and expects a placement.Advice.
type HTTP struct {
	URL    string
	Token  string // sent as a bearer token; "" for none
	Client *http.Client
}

// maxAnswer limits the size of an answer.
const maxAnswer = 64 << 10

// Advise asks for a proposal. A status other than 200, or an invalid body, is an error.
// ctx limits the wait.
func (h HTTP) Advise(ctx context.Context, ask placement.AdviceRequest) (a placement.Advice, err error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return a, errors.New("PLACEMENT_ADVISER_URL is no URL") // the URL may contain a password
	}
	req.Header.Set("Content-Type", "application/json")
	if h.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.Token)
	}
	resp, err := h.Client.Do(req)
	if err != nil {
		return a, fmt.Errorf("ask the adviser: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("the adviser answered %s", resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&a); err != nil {
		return placement.Advice{}, fmt.Errorf("the adviser's answer can't be read: %w", err)
	}
	return a, nil
}
