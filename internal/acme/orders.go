package acme

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/mholt/acmez/v3/acme"

	"github.com/prego/prego/tenant"
)

const (
	// maxListed is how many orders are read to find one.
	maxListed = 200
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 1 << 20
	// maxNonces is how often a request is sent again with a fresh nonce.
	maxNonces = 10
)

// Find looks in the authority's list of orders (RFC 8555 §7.1.2.1) for an order for exactly these names that an earlier
// attempt may have placed. known are the URLs of orders that are accounted for. Not all authorities list orders: Let's
// Encrypt doesn't, but answers a repeated order with the pending one.
func (a *Authority) Find(
	ctx context.Context, account tenant.AuthorityAccount, names []string, known []string,
) (o tenant.AuthorityOrder, ok bool, err error) {
	if account.OrdersURL == "" {
		return o, false, nil
	}
	want := slices.Sorted(slices.Values(names))
	looked := 0
	for next := account.OrdersURL; next != "" && looked < maxListed; {
		var urls []string
		if urls, next, err = a.listOrders(ctx, account, next); err != nil {
			return o, false, err
		}
		for _, url := range urls {
			if slices.Contains(known, url) {
				continue
			}
			looked++
			if o, err = a.Order(ctx, account, url); tenant.ClassOfIssue(err) == tenant.IssueGone && err != nil {
				continue
			}
			if err != nil {
				return o, false, err
			}
			live := o.State == tenant.OrderPending || o.State == tenant.OrderReady || o.State == tenant.OrderProcessing
			if live && slices.Equal(slices.Sorted(slices.Values(o.Names)), want) {
				return o, true, nil
			}
		}
	}
	return tenant.AuthorityOrder{}, false, nil
}

// nonces gets the nonce of a signature; the library has no request for a list of orders.
type nonces struct {
	ctx  context.Context //nolint:containedctx // the signer passes none
	a    *Authority
	from string
}

func (n nonces) Nonce() (string, error) {
	req, err := http.NewRequestWithContext(n.ctx, http.MethodHead, n.from, nil)
	if err != nil {
		return "", err
	}
	resp, err := n.a.http.Do(req)
	if err != nil {
		return "", err
	}
	_ = resp.Body.Close()
	return resp.Header.Get("Replay-Nonce"), nil
}

// listOrders reads one page of an account's orders.
func (a *Authority) listOrders(
	ctx context.Context, account tenant.AuthorityAccount, url string,
) (urls []string, next string, err error) {
	ctx, seen := watched(ctx)
	directory, err := a.client().GetDirectory(ctx)
	if err != nil {
		return nil, "", classed("list the orders", err, seen)
	}
	key := jose.JSONWebKey{Key: account.Key, KeyID: account.Location}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, &jose.SignerOptions{
		NonceSource: nonces{ctx, a, directory.NewNonce}, ExtraHeaders: map[jose.HeaderKey]any{"url": url},
	})
	if err != nil {
		return nil, "", classed("list the orders", err, seen)
	}
	for try := 1; ; try++ {
		urls, next, err = a.listPage(ctx, signer, url)
		if problemType(err) == acme.ProblemTypeBadNonce && try < maxNonces {
			continue
		}
		return urls, next, classed("list the orders", err, seen)
	}
}

func (a *Authority) listPage(
	ctx context.Context, signer jose.Signer, url string,
) (urls []string, next string, err error) {
	signed, err := signer.Sign(nil)
	if err != nil {
		return nil, "", err
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		return nil, "", err
	}
	// ACME takes the flattened form. The library's own omits an empty payload, which is what makes a POST a GET (RFC
	// 8555 §6.3).
	parts := strings.SplitN(compact, ".", 3)
	flat, err := json.Marshal(map[string]string{"protected": parts[0], "payload": parts[1], "signature": parts[2]})
	if err != nil {
		return nil, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(flat))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/jose+json")
	req.Header.Set("User-Agent", a.cfg.UserAgent)
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, "", err
	}
	if resp.StatusCode != http.StatusOK {
		problem := acme.Problem{Status: resp.StatusCode}
		_ = json.Unmarshal(body, &problem) // a proxy's page is no problem document
		problem.Status = resp.StatusCode
		return nil, "", problem
	}
	var list struct {
		Orders []string `json:"orders"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", fmt.Errorf("the list of orders: %w", err)
	}
	return list.Orders, nextPage(resp.Header), nil
}

var linkNext = regexp.MustCompile(`<([^>]+)>\s*;\s*rel="?next"?`)

func nextPage(h http.Header) string {
	if m := linkNext.FindStringSubmatch(strings.Join(h.Values("Link"), ", ")); m != nil {
		return m[1]
	}
	return ""
}
