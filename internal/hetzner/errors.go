package hetzner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
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
		code, concerns := string(api.Code), detailsOf(api)
		unsold := isUnsold(api, concerns)
		if unsold {
			class = server.InfraNext
		}
		if api.Code == hcloud.ErrorCodeResourceLimitExceeded && isDedicated(api.Message, concerns) {
			class, code = server.InfraNext, server.InfraDedicatedLimit
		}
		if isImageGone(api.Code, api.Message) {
			class, code, unsold = server.InfraPermanent, server.InfraImageGone, false
		}
		switch {
		case isNetworkFull(api.Code, api.Message):
			class, code = server.InfraNext, server.InfraNetworkFull
		case isNetworkGone(api.Code, api.Message):
			class, code = server.InfraNotFound, server.InfraNetworkGone
		}
		out := infraError(class, code, "%s", p.redact(concerns.explain(api.Message)))
		out.Unsold = unsold
		return out
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

// details are what the provider adds to an error: the fields of a request that it refuses, and the account's limits
// that are reached.
type details struct {
	Fields []struct {
		Name     string   `json:"name"`
		Messages []string `json:"messages"`
	} `json:"fields"`
	Limits []struct {
		Name string `json:"name"` // for example primary_ip_limit
	} `json:"limits"`
}

// detailsOf reads them from the answer: the client decodes only those of some codes.
func detailsOf(e hcloud.Error) (d details) {
	r := e.Response()
	if r == nil || r.Response == nil || r.Body == nil {
		return d
	}
	body, _ := io.ReadAll(r.Body) // the client's copy, which it keeps in memory
	r.Body = io.NopCloser(bytes.NewReader(body))
	var answer struct {
		Error struct {
			Details json.RawMessage `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &answer) == nil {
		_ = json.Unmarshal(answer.Error.Details, &d) // of another form, they are left out
	}
	return d
}

// explain adds what the message does not say.
func (d details) explain(message string) string {
	var more []string
	for _, f := range d.Fields {
		if text := strings.Join(f.Messages, ", "); text != "" && !strings.Contains(message, text) {
			more = append(more, f.Name+": "+text)
		}
	}
	for _, l := range d.Limits {
		more = append(more, l.Name)
	}
	if len(more) == 0 {
		return message
	}
	return message + " (" + strings.Join(more, "; ") + ")"
}

// isUnsold reports whether a machine type or location is not sold, or not any more.
func isUnsold(e hcloud.Error, d details) bool {
	text := strings.ToLower(e.Message)
	names := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	switch e.Code {
	case hcloud.ErrorCodeInvalidServerType:
		return true
	case hcloud.ErrorCodeNotFound:
		return names("server type", "server_type") || strings.HasPrefix(text, "location")
	case hcloud.ErrorCodeInvalidInput:
		for _, f := range d.Fields {
			if slices.Contains([]string{"server_type", "location", "datacenter"}, f.Name) {
				return true
			}
		}
		return names("server type", "'server_type'", "'location'", "'datacenter'")
	}
	return false
}

// isDedicated reports whether an account's limit is that of dedicated cores.
func isDedicated(message string, d details) bool {
	if strings.Contains(strings.ToLower(message), "dedicated core") {
		return true
	}
	for _, l := range d.Limits {
		if strings.Contains(l.Name, "dedicated") {
			return true
		}
	}
	return false
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
