package acme

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// trail is what one call noticed beside the library's result.
type trail struct {
	status     int           // of the last answer
	retryAfter time.Duration // of the last answer
	lost       bool          // the outcome of a POST is not known
}

type trailKey struct{}

func watched(ctx context.Context) (context.Context, *trail) {
	if seen, ok := ctx.Value(trailKey{}).(*trail); ok {
		return ctx, seen
	}
	seen := &trail{}
	return context.WithValue(ctx, trailKey{}, seen), seen
}

// careful never sends a second POST after one with an unknown outcome: the library would, and an order could be
// placed twice. It also remembers Retry-After, which the library drops.
type careful struct{ http.RoundTripper }

var errLost = errors.New("not sent again: the outcome of the first request is unknown")

func (c careful) RoundTrip(r *http.Request) (*http.Response, error) {
	_, seen := watched(r.Context())
	if r.Method == http.MethodPost && seen.lost {
		return nil, errLost
	}
	resp, err := c.RoundTripper.RoundTrip(r)
	if r.Method == http.MethodPost {
		seen.lost = err != nil || resp.StatusCode >= 500
	}
	if err != nil {
		return nil, err
	}
	seen.status, seen.retryAfter = resp.StatusCode, retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return resp, nil
}

// maxRetryAfter limits an authority's Retry-After.
const maxRetryAfter = 7 * 24 * time.Hour

// retryAfter reads the header, which is a number of seconds or a date (RFC 9110 §10.2.3).
func retryAfter(header string, now time.Time) time.Duration {
	d := time.Duration(0)
	if n, err := strconv.Atoi(header); err == nil {
		d = time.Duration(min(n, int(maxRetryAfter.Seconds()))) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxRetryAfter)
}

func problemType(err error) string {
	if p, ok := errors.AsType[acme.Problem](err); ok {
		return p.Type
	}
	return ""
}

// classOf is the class of an authority's problem (RFC 8555 §6.7).
func classOf(p acme.Problem) tenant.IssueClass {
	switch p.Type {
	case acme.ProblemTypeRateLimited:
		return tenant.IssueRateLimited
	case acme.ProblemTypeUnauthorized, acme.ProblemTypeIncorrectResponse:
		return tenant.IssueUnauthorized
	case acme.ProblemTypeCAA:
		return tenant.IssueCAA
	case acme.ProblemTypeDNS:
		return tenant.IssueDNS
	case acme.ProblemTypeConnection, acme.ProblemTypeTLS:
		return tenant.IssueConnection
	case acme.ProblemTypeRejectedIdentifier, acme.ProblemTypeUnsupportedIdentifier:
		return tenant.IssueRejected
	case acme.ProblemTypeAccountDoesNotExist, acme.ProblemTypeExternalAccountRequired,
		acme.ProblemTypeUserActionRequired,
		acme.ProblemTypeInvalidContact, acme.ProblemTypeUnsupportedContact:
		return tenant.IssueAccount
	case acme.ProblemTypeServerInternal, acme.ProblemTypeOrderNotReady, acme.ProblemTypeBadNonce:
		return tenant.IssueServer
	case acme.ProblemTypeCompound:
		for _, sub := range p.Subproblems {
			return classOf(sub.Problem)
		}
	}
	switch {
	case p.Status == http.StatusTooManyRequests:
		return tenant.IssueRateLimited
	case p.Status >= 500:
		return tenant.IssueServer
	}
	return tenant.IssueMalformed
}

// maxDetail limits the length of an authority's messages, which quote what its validation received.
const maxDetail = 500

// ofProblem turns an authority's problem into an error with the details of the problem and its first subproblem.
func ofProblem(what string, p acme.Problem) *tenant.IssueError {
	detail := p.Detail
	e := &tenant.IssueError{Class: classOf(p)}
	if len(p.Subproblems) > 0 {
		detail += ": " + p.Subproblems[0].Detail
		e.Name = strings.TrimPrefix(p.Subproblems[0].Identifier.Value, "*.")
	}
	detail = cmp.Or(detail, strings.TrimPrefix(p.Type, acme.ProblemTypeNamespace))
	e.Message = what + ": " + clean(detail)
	return e
}

// clean makes an external text printable and short.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(prego.Redact(text), "?"))
	if r := []rune(text); len(r) > maxDetail {
		text = string(r[:maxDetail]) + "…"
	}
	return text
}

// classed turns an error of the library into one with a class.
func classed(what string, err error, seen *trail) error {
	if err == nil {
		return nil
	}
	if problem, ok := errors.AsType[acme.Problem](err); ok {
		e := ofProblem(what, problem)
		e.RetryAfter = seen.retryAfter
		return e
	}
	text := clean(err.Error())
	if errors.Is(err, errLost) && seen.status >= http.StatusInternalServerError {
		text = fmt.Sprintf("the authority answered %d", seen.status)
	}
	e := &tenant.IssueError{Class: tenant.IssueServer, Message: what + ": " + text, RetryAfter: seen.retryAfter}
	if seen.status == http.StatusTooManyRequests {
		e.Class = tenant.IssueRateLimited
	}
	return e
}

// gone turns "not found" into IssueGone: the authority has lost or deleted the resource.
func gone(err error, seen *trail) error {
	var e *tenant.IssueError
	if !errors.As(err, &e) || e.Class == tenant.IssueAccount || e.Class == tenant.IssueRateLimited {
		return err
	}
	if seen.status == http.StatusNotFound || seen.status == http.StatusForbidden || e.Class == tenant.IssueMalformed {
		e.Class = tenant.IssueGone
	}
	return err
}
