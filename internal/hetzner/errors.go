package hetzner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// classes is the one table that classifies the provider's error codes. Unknown codes are classified by their HTTP
// status.
var classes = map[hcloud.ErrorCode]server.InfraClass{
	// Retry the same call later.
	hcloud.ErrorCodeConflict:       server.InfraRetry,
	hcloud.ErrorCodeLocked:         server.InfraRetry,
	hcloud.ErrorCodeResourceInUse:  server.InfraRetry,
	hcloud.ErrorCodeMaintenance:    server.InfraRetry,
	hcloud.ErrorCodeBadGateway:     server.InfraRetry,
	hcloud.ErrorCodeTimeout:        server.InfraRetry,
	"unavailable":                  server.InfraRetry,
	hcloud.ErrorCodeServerError:    server.InfraRetry,
	hcloud.ErrorCodeServiceError:   server.InfraRetry,
	hcloud.ErrorCodeResourceLocked: server.InfraPermanent, // "contact support"

	hcloud.ErrorCodeRateLimitExceeded: server.InfraThrottled,

	// Another machine type, location or placement group.
	hcloud.ErrorCodeResourceUnavailable:   server.InfraNext,
	hcloud.ErrorCodePlacementError:        server.InfraNext,
	hcloud.ErrorCodeInvalidServerType:     server.InfraNext,
	hcloud.ErrorCodeNoSpaceLeftInLocation: server.InfraNext,
	hcloud.ErrorCodeNoSubnetAvailable:     server.InfraNext,
	"deprecated_api_endpoint":             server.InfraPermanent,

	// Another network; see isNetworkFull.
	hcloud.ErrorCodeNetworksOverlap:       server.InfraPermanent,
	hcloud.ErrorCodeServerAlreadyAttached: server.InfraPermanent, // AttachServer takes it for success

	hcloud.ErrorCodeResourceLimitExceeded: server.InfraQuota,

	hcloud.ErrorCodeNotFound:    server.InfraNotFound,
	"action_failed":             server.InfraRetry,
	"server_not_found":          server.InfraNotFound,
	"firewall_not_found":        server.InfraNotFound,
	"placement_group_not_found": server.InfraNotFound,

	hcloud.ErrorCodeUnauthorized: server.InfraPermanent,
	hcloud.ErrorCodeForbidden:    server.InfraPermanent,
	hcloud.ErrorCodeJSONError:    server.InfraPermanent,
	hcloud.ErrorCodeInvalidInput: server.InfraPermanent,
	hcloud.ErrorCodeProtected:    server.InfraPermanent,
	"unsupported_error":          server.InfraPermanent,
	"method_not_allowed":         server.InfraPermanent,
}

// unknownOutcome are the codes after which a create may have happened nevertheless.
var unknownOutcome = map[string]bool{
	string(hcloud.ErrorCodeBadGateway): true, string(hcloud.ErrorCodeTimeout): true, "unavailable": true,
	string(hcloud.ErrorCodeServerError): true, string(hcloud.ErrorCodeServiceError): true,
}

// classify turns any error of a call into a *server.InfraError. The message is redacted: some of the provider's
// answers quote the API token.
func (p *Provider) classify(err error) error {
	if err == nil {
		return nil
	}
	if infraOf(err).Class != "" || errors.Is(err, context.Canceled) {
		return err
	}
	if api, ok := errors.AsType[hcloud.Error](err); ok {
		class, known := classes[api.Code]
		if !known {
			class = classOfStatus(api.Response())
		}
		if api.Code == hcloud.ErrorCodeInvalidInput && strings.Contains(strings.ToLower(api.Message), "server type") {
			class = server.InfraNext // retired, or not sold at the location
		}
		code := string(api.Code)
		if isImageGone(api.Code, api.Message) {
			class, code = server.InfraPermanent, server.InfraImageGone
		}
		switch {
		case isNetworkFull(api.Code, api.Message):
			class, code = server.InfraNext, server.InfraNetworkFull
		case isNetworkGone(api.Code, api.Message):
			class, code = server.InfraNotFound, server.InfraNetworkGone
		}
		return infraError(class, code, "%s", p.redact(api.Message))
	}
	if action, ok := errors.AsType[hcloud.ActionError](err); ok {
		class, known := classes[hcloud.ErrorCode(action.Code)]
		if !known {
			class = server.InfraRetry
		}
		return infraError(class, action.Code, "%s", p.redact(action.Message))
	}
	// The rest is the network, or an answer from elsewhere: a gateway's error page, a cut connection, a timeout.
	return infraError(server.InfraAmbiguous, networkCode(err), "%s", p.redact(err.Error()))
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

func classOfStatus(r *hcloud.Response) server.InfraClass {
	if r == nil || r.Response == nil {
		return server.InfraAmbiguous
	}
	switch {
	case r.StatusCode == http.StatusNotFound, r.StatusCode == http.StatusGone:
		return server.InfraNotFound
	case r.StatusCode == http.StatusTooManyRequests:
		return server.InfraThrottled
	case r.StatusCode >= http.StatusInternalServerError:
		return server.InfraAmbiguous
	}
	return server.InfraPermanent
}

func (p *Provider) redact(s string) string {
	if p.token != "" {
		s = strings.ReplaceAll(s, p.token, "[redacted]")
	}
	return prego.Redact(s)
}

func infraError(class server.InfraClass, code, format string, args ...any) *server.InfraError {
	return &server.InfraError{Class: class, Code: code, Message: fmt.Sprintf(format, args...)}
}

// infraOf is the provider's part of an error, without a class if it has none.
func infraOf(err error) server.InfraError {
	if ie, ok := errors.AsType[*server.InfraError](err); ok {
		return *ie
	}
	return server.InfraError{}
}

func isNotFound(err error) bool { return infraOf(err).Class == server.InfraNotFound }

// gone classifies the error of a deletion: a missing resource is success.
func (p *Provider) gone(err error) error {
	if err = p.classify(err); isNotFound(err) {
		return nil
	}
	return err
}
