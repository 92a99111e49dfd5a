package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
)

// codeNoSite is placement's code of decisions that wait for a pool site.
const codeNoSite prego.Code = "site_pool_empty"

// statuses maps codes to HTTP statuses, only here.
var statuses = map[prego.Code]int{
	prego.CodeInvalidField: http.StatusUnprocessableEntity, prego.CodeInvalidJSON: http.StatusBadRequest,
	prego.CodeUnknownField: http.StatusBadRequest, prego.CodeDuplicateField: http.StatusBadRequest,
	prego.CodeBodyTooLarge: http.StatusRequestEntityTooLarge, prego.CodeUnsupportedMedia: http.StatusUnsupportedMediaType,
	prego.CodeUnauthenticated: http.StatusUnauthorized, prego.CodeTokenExpired: http.StatusUnauthorized, prego.CodeForbidden: http.StatusForbidden, prego.CodeCaveat: http.StatusForbidden,
	prego.CodeLoginNotFresh: http.StatusForbidden, prego.CodeInvitationNotFound: http.StatusNotFound,
	prego.CodeNotFound: http.StatusNotFound, prego.CodeServerNotFound: http.StatusNotFound, prego.CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	prego.CodeServerIDConflict: http.StatusConflict, prego.CodeServerTerminated: http.StatusConflict, prego.CodeInvalidTransition: http.StatusConflict,
	prego.CodeProviderServerUsed: http.StatusConflict, prego.CodeServerHasTenants: http.StatusConflict,
	prego.CodeSiteAnswers:          http.StatusConflict,
	prego.CodeHoldsData:            http.StatusConflict,
	prego.CodeFrozen:               http.StatusConflict,
	prego.CodeStackReleaseNotFound: http.StatusNotFound, prego.CodeStackReleaseExists: http.StatusConflict,
	prego.CodeTenantsCannotMove: http.StatusConflict, prego.CodeServerUpdating: http.StatusConflict, prego.CodeMaintenanceNotFound: http.StatusNotFound, prego.CodeRebalanceNotFound: http.StatusNotFound, prego.CodePatchWaveNotFound: http.StatusNotFound, prego.CodeAuditEntryNotFound: http.StatusNotFound,
	prego.CodeDecisionNotFound: http.StatusNotFound, prego.CodeInputNotKept: http.StatusConflict,
	prego.CodeProviderUnknown: http.StatusUnprocessableEntity, prego.CodeProviderDisabled: http.StatusUnprocessableEntity, prego.CodeRegionNotServed: http.StatusUnprocessableEntity,
	prego.CodeServerTypeUnknown: http.StatusUnprocessableEntity, prego.CodeServerTypeRetired: http.StatusUnprocessableEntity, prego.CodeServerTypeNotSold: http.StatusUnprocessableEntity,
	prego.CodeLocationUnknown: http.StatusUnprocessableEntity, prego.CodeLocationNotInRegion: http.StatusUnprocessableEntity, prego.CodeImageUnknown: http.StatusUnprocessableEntity,
	prego.CodeGoldenImageNotFound: http.StatusNotFound, prego.CodeGoldenImageBuilding: http.StatusConflict, prego.CodeGoldenImageInUse: http.StatusConflict, prego.CodeGoldenImageCurrent: http.StatusConflict,
	prego.CodeTenantNotFound: http.StatusNotFound, prego.CodeSlugTaken: http.StatusConflict, prego.CodeIdempotencyConflict: http.StatusConflict, prego.CodeRequestUnderWay: http.StatusConflict,
	prego.CodePreconditionFailed: http.StatusPreconditionFailed, prego.CodeEventsGone: http.StatusGone,
	prego.CodeImpactNotAccepted: http.StatusConflict,
	prego.CodeOrgUnknown:        http.StatusUnprocessableEntity, prego.CodeResidencyUnknown: http.StatusUnprocessableEntity, prego.CodeResidencyViolation: http.StatusUnprocessableEntity,
	prego.CodeServerUnknown: http.StatusUnprocessableEntity, prego.CodeNetworkUnknown: http.StatusUnprocessableEntity, prego.CodeShardUnknown: http.StatusUnprocessableEntity,
	prego.CodePoolUnknown:        http.StatusUnprocessableEntity,
	prego.CodeInvariantViolation: http.StatusConflict, prego.CodeTenantPlaced: http.StatusConflict, prego.CodeCellMismatch: http.StatusConflict,
	prego.CodeConstraintImmutable: http.StatusConflict, prego.CodeTagsImmutable: http.StatusConflict, prego.CodePlacementPoolNotFound: http.StatusNotFound,
	prego.CodePlacementPoolExists: http.StatusConflict, prego.CodePlacementPoolInUse: http.StatusConflict,
	prego.CodeInsufficientResources: http.StatusConflict, prego.CodeQuotaExceeded: http.StatusConflict, prego.CodeNoProvider: http.StatusConflict, codeNoSite: http.StatusConflict,
	prego.CodeGroupNotFound: http.StatusNotFound, prego.CodeInstanceNotFound: http.StatusNotFound, prego.CodeReleaseNotFound: http.StatusNotFound,
	prego.CodeGroupExists: http.StatusConflict, prego.CodeGroupInUse: http.StatusConflict,
	prego.CodeFleetNotFound: http.StatusNotFound, prego.CodeActionNotFound: http.StatusNotFound, prego.CodeOperationNotFound: http.StatusNotFound, prego.CodePolicyNotFound: http.StatusNotFound,
	prego.CodeFleetConflict: http.StatusConflict, prego.CodeFleetNotEmpty: http.StatusConflict, prego.CodeFleetBusy: http.StatusConflict,
	prego.CodePolicyConflict: http.StatusConflict, prego.CodePolicyInUse: http.StatusConflict,
	prego.CodePolicyTypeAttached: http.StatusConflict,
	prego.CodeKindUnknown:        http.StatusUnprocessableEntity, prego.CodeCommandNotAllowed: http.StatusUnprocessableEntity, prego.CodeBusy: http.StatusTooManyRequests,
	prego.CodeTooManyStreams: http.StatusTooManyRequests, prego.CodeTimedOut: http.StatusServiceUnavailable,
	prego.CodeServerNotReachable: http.StatusConflict, prego.CodeContainerNotFound: http.StatusNotFound, prego.CodeContainerFailed: http.StatusConflict,
	prego.CodeAppNotFound: http.StatusNotFound, prego.CodeAppExists: http.StatusConflict, prego.CodeAppInUse: http.StatusConflict,
	prego.CodeEnvNotFound: http.StatusNotFound, prego.CodeEnvExists: http.StatusConflict, prego.CodeEnvInUse: http.StatusConflict,
	prego.CodeGroupUnknown: http.StatusUnprocessableEntity, prego.CodeRouteNotFound: http.StatusNotFound,
	prego.CodeDomainNotFound: http.StatusNotFound, prego.CodeDomainInUse: http.StatusConflict, prego.CodeTooManyDomains: http.StatusConflict,
	prego.CodeHostnameTaken: http.StatusConflict, prego.CodePortTaken: http.StatusConflict, prego.CodeIPv4NotFound: http.StatusNotFound,
	prego.CodeIPv4Required: http.StatusConflict, prego.CodeIPv4InUse: http.StatusConflict, prego.CodeVolumeNotFound: http.StatusNotFound,
	prego.CodeVolumeNameTaken: http.StatusConflict, prego.CodeVolumeAttached: http.StatusConflict, prego.CodeVolumeInUse: http.StatusConflict,
	prego.CodeVolumeMismatch: http.StatusUnprocessableEntity, prego.CodeSingleWriter: http.StatusConflict, prego.CodeAttachmentNotFound: http.StatusNotFound,
	prego.CodeSnapshotNotFound: http.StatusNotFound, prego.CodeSnapshotUnknown: http.StatusUnprocessableEntity, prego.CodeSnapshotNotReady: http.StatusConflict, prego.CodeSiteCommandFailed: http.StatusConflict,
	prego.CodeBackupNotFound: http.StatusNotFound, prego.CodeBackupUnknown: http.StatusUnprocessableEntity, prego.CodeBackupUnderWay: http.StatusConflict, prego.CodeBackupLimit: http.StatusConflict, prego.CodeBackupNotReady: http.StatusConflict,
	prego.CodeRestoreNotFound: http.StatusNotFound, prego.CodeRestoreUnderWay: http.StatusConflict, prego.CodeMoveNotFound: http.StatusNotFound, prego.CodeMoveUnderWay: http.StatusConflict, prego.CodeNetworkWithoutEdges: http.StatusUnprocessableEntity, prego.CodeTenantUnknown: http.StatusUnprocessableEntity,
	prego.CodeRegistryNotFound: http.StatusNotFound, prego.CodeCertificateNotFound: http.StatusNotFound, prego.CodeImageNotFound: http.StatusNotFound, prego.CodeSealed: http.StatusConflict,
	prego.CodeLastOwner: http.StatusConflict, prego.CodeAccessRoleInUse: http.StatusConflict, prego.CodeLimitRequestOpen: http.StatusConflict,
	prego.CodeRateLimited: http.StatusTooManyRequests, prego.CodeNotReady: http.StatusServiceUnavailable, prego.CodeInternal: http.StatusInternalServerError,
}

// refuse writes an error as a problem document (RFC 9457).
func (a *API) refuse(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	missing, unaccepted := errors.AsType[*impact.NotAccepted](err)
	if unaccepted {
		missing = &impact.NotAccepted{Impact: seen(c, missing.Impact)} // its text also names what it affects
		err = missing
	}
	limit, limited := errors.AsType[*access.Refusal](err)
	if limited {
		limit = seen(c, limit)
		err = limit
	}
	coded, status, again := a.Refusal(err, c)
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, "application/problem+json")
	if again > 0 {
		h.Set(echo.HeaderRetryAfter, strconv.Itoa(again))
	}
	if status == http.StatusUnauthorized { // RFC 6750 §3
		challenge := `Bearer realm="prego"`
		if c.Request().Header.Get(echo.HeaderAuthorization) != "" {
			challenge += `, error="invalid_token"`
		}
		h.Set(echo.HeaderWWWAuthenticate, challenge)
	}
	p := a.problem(coded, c)
	if wrong := (*fieldErrors)(nil); errors.As(err, &wrong) {
		p.Errors = fieldProblems(wrong.all)
	}
	var over *org.QuotaExceeded
	if errors.As(err, &over) {
		// Both labels have few values: the contract's routes, and the dimensions.
		if !dryRun(c) {
			a.refused.WithLabelValues(method(c.Request().Method)+" "+c.Path(), over.Dimension).Inc()
		}
		p.Dimension, p.Limit, p.CurrentUsage, p.RequestedDelta = &over.Dimension, &over.Limit, &over.CurrentUsage, &over.RequestedDelta
	}
	if unaccepted {
		p.Impact = &missing.Impact
	}
	if limited {
		p.Caveat, p.Impact = &limit.Caveat, limit.Impact
	}
	if e := c.JSON(status, p); e != nil {
		a.d.Log.Debug("answer not delivered", zap.Error(e))
	}
}

func statusOf(coded *prego.Error) int {
	if status, ok := statuses[coded.Code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// How long the parts of an answer may be that repeat what a request holds, in runes.
const (
	mostInMessage = 2000
	mostInField   = 400
)

// errorPages is where the pages of codes are. A problem's type refers to them by a path (RFC 9457 §3.1.1): callers
// reach the API under several names, inside and outside, and the name that a caller used reaches the page.
const errorPages = "/docs/errors/"

// problem is an error as a problem document.
func (a *API) problem(coded *prego.Error, c echo.Context) Problem {
	status := statusOf(coded)
	out := Problem{
		Type: errorPages + string(coded.Code), Title: http.StatusText(status), Status: status, Code: string(coded.Code),
		Detail: optional(clipped(coded.Message, mostInMessage)), Field: optional(clipped(coded.Field, mostInField)), RequestId: optional(requestID(c)),
	}
	if coded.Field != "" {
		out.Errors = fieldProblems([]*prego.Error{coded})
	}
	return out
}

func fieldProblems(wrong []*prego.Error) *[]FieldProblem {
	out := make([]FieldProblem, len(wrong))
	for i, e := range wrong {
		out[i] = FieldProblem{Field: clipped(e.Field, mostInField), Code: string(e.Code), Message: clipped(e.Message, mostInMessage)}
	}
	return &out
}

// coded converts an error for the caller. Errors that callers can't act on are logged,
// and answered without details.
func (a *API) coded(err error, c echo.Context) *prego.Error {
	var coded *prego.Error
	var routed *echo.HTTPError
	var network net.Error
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &routed) && routed.Code == http.StatusNotFound:
		return prego.Errorf(prego.CodeNotFound, "there is nothing at %s; the contract is at /openapi.yaml", shown(c.Request().URL.Path))
	case errors.As(err, &routed) && routed.Code == http.StatusMethodNotAllowed:
		return prego.Errorf(prego.CodeMethodNotAllowed, "this path does not support %s; it supports %s", method(c.Request().Method), c.Response().Header().Get(echo.HeaderAllow))
	case errors.As(err, &routed) && routed.Code == http.StatusBadRequest:
		return &prego.Error{Code: prego.CodeInvalidField, Field: parameterOf(routed), Message: "is not a valid value for this parameter"}
	}
	log := a.d.Log.With(zap.String("request_id", requestID(c)), zap.String("error", prego.Redact(err.Error())))
	switch {
	case errors.Is(err, context.Canceled): // the caller has gone
		log.Debug("request abandoned")
		return prego.Errorf(prego.CodeNotReady, "the request was abandoned")
	case a.d.Unavailable != nil && a.d.Unavailable(err):
		log.Error("the database cannot be used right now")
		return prego.Errorf(prego.CodeNotReady, "the database cannot be used right now; try again. /readyz says why")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network):
		log.Error("request failed for now")
		return prego.Errorf(prego.CodeNotReady, "a dependency does not answer; try again. /readyz says which")
	}
	var panicked *panicError
	if errors.As(err, &panicked) {
		log = log.With(zap.ByteString("stack", panicked.stack))
	}
	log.Error("request failed")
	return prego.Errorf(prego.CodeInternal, "internal error; quote the request_id when you report it")
}

// retryAfter is in whole seconds, at least one.
func retryAfter(err error) int {
	var limited *limitedError
	if errors.As(err, &limited) {
		return max(1, int(math.Ceil(limited.after.Seconds())))
	}
	return 1
}

// parameterOf finds the name in the generated code's messages: "Invalid format for
// parameter limit: …", "Expected one value for Idempotency-Key, got 2".
func parameterOf(e *echo.HTTPError) string {
	for _, before := range []string{"parameter ", "one value for "} {
		if _, rest, ok := strings.Cut(fmt.Sprint(e.Message), before); ok {
			name, _, _ := strings.Cut(rest, ":")
			name, _, _ = strings.Cut(name, ",")
			name, _, _ = strings.Cut(name, " ")
			return name
		}
	}
	return ""
}

// optional is a field that is absent if it is zero.
func optional[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
