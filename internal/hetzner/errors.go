package hetzner

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
)

// classes is the one table that says what each of the provider's error codes
// means. A code that is not in it is judged by its HTTP status.
var classes = map[hcloud.ErrorCode]prego.InfraClass{
	// The same call again, later.
	hcloud.ErrorCodeConflict:       prego.InfraRetry,
	hcloud.ErrorCodeLocked:         prego.InfraRetry,
	hcloud.ErrorCodeResourceInUse:  prego.InfraRetry,
	hcloud.ErrorCodeMaintenance:    prego.InfraRetry,
	hcloud.ErrorCodeBadGateway:     prego.InfraRetry,
	hcloud.ErrorCodeTimeout:        prego.InfraRetry,
	"unavailable":                  prego.InfraRetry,
	hcloud.ErrorCodeServerError:    prego.InfraRetry,
	hcloud.ErrorCodeServiceError:   prego.InfraRetry,
	hcloud.ErrorCodeResourceLocked: prego.InfraPermanent, // "contact support"

	hcloud.ErrorCodeRateLimitExceeded: prego.InfraThrottled,

	// Another machine type, location or placement group.
	hcloud.ErrorCodeResourceUnavailable:   prego.InfraNext,
	hcloud.ErrorCodePlacementError:        prego.InfraNext,
	hcloud.ErrorCodeInvalidServerType:     prego.InfraNext,
	hcloud.ErrorCodeNoSpaceLeftInLocation: prego.InfraNext,
	hcloud.ErrorCodeNoSubnetAvailable:     prego.InfraNext,
	"deprecated_api_endpoint":             prego.InfraPermanent,

	hcloud.ErrorCodeResourceLimitExceeded: prego.InfraQuota,

	hcloud.ErrorCodeNotFound:    prego.InfraNotFound,
	"action_failed":             prego.InfraRetry,
	"server_not_found":          prego.InfraNotFound,
	"firewall_not_found":        prego.InfraNotFound,
	"placement_group_not_found": prego.InfraNotFound,

	hcloud.ErrorCodeUnauthorized: prego.InfraPermanent,
	hcloud.ErrorCodeForbidden:    prego.InfraPermanent,
	hcloud.ErrorCodeJSONError:    prego.InfraPermanent,
	hcloud.ErrorCodeInvalidInput: prego.InfraPermanent,
	hcloud.ErrorCodeProtected:    prego.InfraPermanent,
	"unsupported_error":          prego.InfraPermanent,
	"method_not_allowed":         prego.InfraPermanent,
}

// unknownOutcome are the codes after which a create may have happened all the
// same.
var unknownOutcome = map[string]bool{
	string(hcloud.ErrorCodeBadGateway): true, string(hcloud.ErrorCodeTimeout): true, "unavailable": true,
	string(hcloud.ErrorCodeServerError): true, string(hcloud.ErrorCodeServiceError): true,
}

// classify turns any error of a call into a *prego.InfraError. The message is
// redacted: the provider quotes the API token in some of its answers.
func (p *Provider) classify(err error) error {
	if err == nil {
		return nil
	}
	var done *prego.InfraError
	if errors.As(err, &done) || errors.Is(err, context.Canceled) {
		return err
	}
	var api hcloud.Error
	if errors.As(err, &api) {
		class, known := classes[api.Code]
		if !known {
			class = classOfStatus(api.Response())
		}
		if api.Code == hcloud.ErrorCodeInvalidInput && strings.Contains(strings.ToLower(api.Message), "server type") {
			class = prego.InfraNext // retired, or not sold at the location
		}
		code := string(api.Code)
		if isImageGone(api.Code, api.Message) {
			class, code = prego.InfraPermanent, prego.InfraImageGone
		}
		return &prego.InfraError{Class: class, Code: code, Message: p.redact(api.Message)}
	}
	var action hcloud.ActionError
	if errors.As(err, &action) {
		class, known := classes[hcloud.ErrorCode(action.Code)]
		if !known {
			class = prego.InfraRetry
		}
		return &prego.InfraError{Class: class, Code: action.Code, Message: p.redact(action.Message)}
	}
	// What is left is the network, or an answer that is not the provider's: a
	// gateway's error page, a cut connection, no answer in time.
	return &prego.InfraError{Class: prego.InfraAmbiguous, Code: networkCode(err), Message: p.redact(err.Error())}
}

func networkCode(err error) string {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection_lost"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	}
	return "no_valid_answer"
}

func classOfStatus(r *hcloud.Response) prego.InfraClass {
	if r == nil || r.Response == nil {
		return prego.InfraAmbiguous
	}
	switch {
	case r.StatusCode == http.StatusNotFound, r.StatusCode == http.StatusGone:
		return prego.InfraNotFound
	case r.StatusCode == http.StatusTooManyRequests:
		return prego.InfraThrottled
	case r.StatusCode >= http.StatusInternalServerError:
		return prego.InfraAmbiguous
	}
	return prego.InfraPermanent
}

func (p *Provider) redact(s string) string {
	if p.token != "" {
		s = strings.ReplaceAll(s, p.token, "[redacted]")
	}
	return prego.Redact(s)
}

func isNotFound(err error) bool {
	var ie *prego.InfraError
	return errors.As(err, &ie) && ie.Class == prego.InfraNotFound
}
