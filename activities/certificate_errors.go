package activities

import (
	"errors"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// IssueDetails are the details of an error whose type is the reason of a tenant.IssueClass.
type IssueDetails struct {
	Name       string        `json:"name,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
}

// issueError gives an error its class as its type. Only failures of the authority and errors
// without a class are retried within a run; errors that need a person are recorded.
func issueError(err error) error {
	var e *tenant.IssueError
	switch {
	case err == nil:
		return nil
	case prego.CodeOf(err) == prego.CodeCertificateNotFound:
		return permanentError(ErrTypeSuperseded, err.Error(), nil)
	case !errors.As(err, &e):
		return fromStore(err)
	}
	details := IssueDetails{Name: e.Name, RetryAfter: e.RetryAfter}
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Class.Reason()), temporal.ApplicationErrorOptions{
		NonRetryable: e.Class != tenant.IssueServer, NextRetryDelay: min(e.RetryAfter, time.Minute), Details: []any{details},
	})
}

// IssueOf is the class of an activity's error, with its details.
func IssueOf(err error) (tenant.IssueClass, IssueDetails) {
	var details IssueDetails
	var app *temporal.ApplicationError
	if !errors.As(err, &app) {
		return tenant.IssueInternal, details
	}
	class := tenant.IssueClass(strings.TrimPrefix(app.Type(), string(tenant.IssueClass("").Reason())))
	for _, c := range tenant.IssueClasses() {
		if c != class {
			continue
		}
		if app.HasDetails() {
			_ = app.Details(&details) // without them, the class is enough
		}
		return c, details
	}
	return tenant.IssueInternal, details
}

// dnsError maps an error of the DNS provider: what it refuses is recorded, what may pass is
// tried again.
func dnsError(what string, err error) error {
	if ie, ok := errors.AsType[*server.InfraError](err); ok && (ie.Class == server.InfraForeign || ie.Class == server.InfraPermanent || ie.Class == server.InfraNotFound) {
		return issueError(&tenant.IssueError{Class: tenant.IssueNotServed, Message: what + ": " + prego.Redact(ie.Error())})
	}
	return fromInfra(err)
}
