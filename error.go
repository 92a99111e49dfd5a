package prego

import (
	"errors"
	"fmt"
)

// Code is the stable name of an error. Programs switch on it; it never changes once
// released.
type Code string

// Codes of errors that callers of the API can get.
const (
	CodeInvalidField       Code = "invalid_field"
	CodeInvalidJSON        Code = "invalid_json"
	CodeUnknownField       Code = "unknown_field"
	CodeDuplicateField     Code = "duplicate_field"
	CodeBodyTooLarge       Code = "body_too_large"
	CodeUnsupportedMedia   Code = "unsupported_media_type"
	CodeUnauthenticated    Code = "unauthenticated"
	CodeTokenExpired       Code = "token_expired"
	CodeForbidden          Code = "forbidden"
	CodeCaveat             Code = "caveat" // a caveat of the token excludes it
	CodeLoginNotFresh      Code = "login_not_fresh"
	CodeInvitationNotFound Code = "invitation_not_found"
	CodeNotFound           Code = "not_found"
	CodeLastOwner          Code = "last_owner"
	CodeAccessRoleInUse    Code = "access_role_in_use"
	CodeLimitRequestOpen   Code = "limit_request_open"
	CodeServerNotFound     Code = "server_not_found"
	CodeNetworkUnknown     Code = "network_unknown"
	CodeMethodNotAllowed   Code = "method_not_allowed"
	CodeServerIDConflict   Code = "server_id_conflict"
	CodeServerTerminated   Code = "server_terminated"
	CodeProviderServerUsed Code = "provider_server_conflict"
	CodeInvalidTransition  Code = "invalid_transition"
	CodeProviderUnknown    Code = "infra_provider_unknown"
	CodeProviderDisabled   Code = "infra_provider_disabled"
	CodeRegionNotServed    Code = "region_not_served"
	CodeRateLimited        Code = "rate_limited"
	CodeNotReady           Code = "not_ready"
	CodeInternal           Code = "internal"
	CodeTokenUnknown       Code = "token_unknown"
	CodeTokenSuperseded    Code = "token_superseded"
	CodeTokenConsumed      Code = "token_consumed"
	CodeBootstrapExpired   Code = "bootstrap_token_expired"
	CodeSourceMismatch     Code = "source_mismatch"
	CodeCertificateInvalid Code = "certificate_invalid"
	CodeCertificateSubject Code = "certificate_subject_mismatch"
	CodeScopeMissing       Code = "scope_missing"
	CodeIdentityRevoked    Code = "identity_revoked"
	CodeClockSkew          Code = "clock_skew"
	CodeKindUnknown        Code = "kind_unknown"
	CodeNotImplemented     Code = "not_implemented"
	CodeCommandNotAllowed  Code = "command_not_allowed"
	CodeBusy               Code = "busy"
	CodeTooManyStreams     Code = "too_many_streams"
	CodeTimedOut           Code = "timed_out"
	CodeServerNotReachable Code = "server_not_reachable"
	CodeContainerNotFound  Code = "container_not_found"
	CodeContainerFailed    Code = "container_failed"

	CodeTenantNotFound     Code = "tenant_not_found"
	CodeSlugTaken          Code = "slug_taken"
	CodeOrgUnknown         Code = "org_unknown"
	CodeResidencyUnknown   Code = "data_residency_unknown"
	CodeResidencyViolation Code = "data_residency_violation"
	CodeRequestUnderWay    Code = "request_under_way"
	// CodePreconditionFailed rejects a write whose If-Match does not match.
	CodePreconditionFailed Code = "precondition_failed"
	// CodeImpactNotAccepted rejects a change that interrupts or destroys without its acceptance.
	CodeImpactNotAccepted   Code = "impact_not_accepted"
	CodeIdempotencyConflict Code = "idempotency_key_conflict"
	CodeServerUnknown       Code = "server_unknown"
	CodeShardUnknown        Code = "db_shard_unknown"
	CodePoolUnknown         Code = "redis_pool_unknown"
	CodeInvariantViolation  Code = "invariant_violation"
	CodeTenantPlaced        Code = "tenant_already_placed"
	CodeFleetNotFound       Code = "fleet_not_found"
	CodeFleetConflict       Code = "fleet_conflict"
	CodeFleetNotEmpty       Code = "fleet_not_empty"
	CodeFleetBusy           Code = "fleet_busy"
	CodeFleetFull           Code = "fleet_full"
	CodeActionNotFound      Code = "action_not_found"
	CodeOperationNotFound   Code = "operation_not_found"
	CodePolicyNotFound      Code = "policy_not_found"
	CodePolicyConflict      Code = "policy_conflict"
	CodePolicyInUse         Code = "policy_in_use"
	CodePolicyTypeAttached  Code = "policy_type_attached"
	CodeServerHasTenants    Code = "server_has_tenants"
	// CodeSiteAnswers rejects declaring a server lost while sites on it answer.
	CodeSiteAnswers Code = "site_answers"
	// CodeHoldsData rejects a deletion of something that holds something live, or the only copy of something.
	CodeHoldsData Code = "holds_data"
	// CodeFrozen rejects every deletion while they are frozen.
	CodeFrozen Code = "frozen"
	// CodeServerUpdating rejects what would take a server away from a release that is being tried on it.
	CodeServerUpdating Code = "server_being_updated"
	// CodeTenantsCannotMove rejects emptying a server with tenants.
	CodeTenantsCannotMove   Code = "tenants_cannot_move_yet"
	CodeMaintenanceNotFound Code = "maintenance_not_found"
	CodeRebalanceNotFound   Code = "rebalance_not_found"
	CodePatchWaveNotFound   Code = "patch_wave_not_found"
	CodeAuditEntryNotFound  Code = "audit_entry_not_found"
	CodeDecisionNotFound    Code = "decision_not_found"
	// CodeInputNotKept rejects replaying a decision whose input is not stored.
	CodeInputNotKept Code = "decision_input_not_kept"
	// CodeCellMismatch and CodeInsufficientResources are the two placement errors
	// (placement-pools, "Auctioneer").
	CodeCellMismatch          Code = "cell_mismatch"
	CodeInsufficientResources Code = "insufficient_resources"
	// CodeConstraintImmutable and CodeTagsImmutable: constraints and tags are fixed for
	// the lifetime of their tenant or server (placement-pools, "Are Placement Pools
	// dynamic?").
	CodeConstraintImmutable   Code = "constraint_immutable"
	CodeTagsImmutable         Code = "tags_immutable"
	CodePlacementPoolNotFound Code = "placement_pool_not_found"
	CodePlacementPoolExists   Code = "placement_pool_exists"
	CodePlacementPoolInUse    Code = "placement_pool_in_use"
	// CodeQuotaExceeded is the org's quota, never the cluster's capacity
	// (quotas-and-fairness, "Capacity constraints vs quota constraints"). It comes as a
	// QuotaExceeded.
	CodeQuotaExceeded Code = "quota_exceeded"
	// CodeEventsGone rejects a cursor behind which events were deleted by age.
	CodeEventsGone  Code = "events_gone"
	CodeAppNotFound Code = "app_not_found"
	CodeAppExists   Code = "app_exists"
	CodeAppInUse    Code = "app_in_use"
	CodeEnvNotFound Code = "env_not_found"
	CodeEnvExists   Code = "env_exists"
	CodeEnvInUse    Code = "env_in_use"
	// Of process groups and their instances.
	CodeGroupNotFound    Code = "group_not_found"
	CodeGroupExists      Code = "group_exists"
	CodeGroupInUse       Code = "group_in_use"
	CodeInstanceNotFound Code = "instance_not_found"
	CodeReleaseNotFound  Code = "release_not_found"
	// Of releases of the stack.
	CodeStackReleaseNotFound Code = "stack_release_not_found"
	CodeStackReleaseExists   Code = "stack_release_exists"
	// CodeNoProvider: no enabled provider serves the region.
	CodeNoProvider Code = "no_infra_provider"
	// About specs that pin what the provider does not sell (docs/operations.md, "The
	// provider's catalog").
	CodeServerTypeUnknown   Code = "server_type_unknown"
	CodeServerTypeRetired   Code = "server_type_retired"
	CodeServerTypeNotSold   Code = "server_type_not_sold"
	CodeLocationUnknown     Code = "location_unknown"
	CodeLocationNotInRegion Code = "location_not_in_region"
	CodeImageUnknown        Code = "image_unknown"
	// Of golden images.
	CodeGoldenImageNotFound Code = "golden_image_not_found"
	CodeGoldenImageBuilding Code = "golden_image_building"
	CodeGoldenImageInUse    Code = "golden_image_in_use"
	CodeGoldenImageCurrent  Code = "golden_image_current"
)

// Error is a coded error: a code for programs, a message for people and, if one input
// is at fault, its field as a dotted path.
type Error struct {
	Code    Code
	Message string
	Field   string
}

func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("%s: %s %s", e.Code, e.Field, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Is makes errors.Is match on the code alone.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes a CodeInvalidField error; the message continues the field's name ("must
// be …").
func Invalid(field, message string) *Error {
	return &Error{Code: CodeInvalidField, Field: field, Message: message}
}

// CodeOf is the code of the first Error in err's chain, or CodeInternal.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// Codes of errors about what orgs own besides tenants.
const (
	CodeGroupUnknown       Code = "group_unknown"
	CodeRouteNotFound      Code = "route_not_found"
	CodeHostnameTaken      Code = "hostname_taken"
	CodePortTaken          Code = "port_taken"
	CodeDomainNotFound     Code = "domain_not_found"
	CodeDomainInUse        Code = "domain_in_use"
	CodeTooManyDomains     Code = "too_many_domains"
	CodeIPv4NotFound       Code = "ipv4_not_found"
	CodeIPv4Required       Code = "ipv4_required"
	CodeIPv4InUse          Code = "ipv4_in_use"
	CodeVolumeNotFound     Code = "volume_not_found"
	CodeVolumeNameTaken    Code = "volume_name_taken"
	CodeVolumeAttached     Code = "volume_attached"
	CodeVolumeInUse        Code = "volume_in_use"
	CodeVolumeMismatch     Code = "volume_region_mismatch"
	CodeSingleWriter       Code = "single_writer"
	CodeAttachmentNotFound Code = "attachment_not_found"
	CodeSnapshotNotFound   Code = "snapshot_not_found"
	CodeSnapshotUnknown    Code = "snapshot_unknown"
	CodeSnapshotNotReady   Code = "snapshot_not_ready"
	CodeBackupNotFound     Code = "backup_not_found"
	CodeBackupUnknown      Code = "backup_unknown" // of a restore
	CodeBackupUnderWay     Code = "backup_under_way"
	CodeBackupNotReady     Code = "backup_not_ready"
	CodeBackupLimit        Code = "backup_limit_reached"
	CodeRestoreNotFound    Code = "restore_not_found"
	CodeRestoreUnderWay    Code = "restore_under_way"
	CodeMoveNotFound       Code = "move_not_found"
	CodeMoveUnderWay       Code = "move_under_way"
	// CodeNetworkWithoutEdges rejects a move that would make the tenant unreachable.
	CodeNetworkWithoutEdges Code = "network_without_edges"
	CodeTenantUnknown       Code = "tenant_unknown"
)

// Codes of errors about registries and images.
const (
	CodeRegistryNotFound Code = "registry_not_found"
	// CodeCertificateNotFound is of certificates for host names, not of those for mTLS.
	CodeCertificateNotFound Code = "certificate_not_found"
	CodeImageNotFound       Code = "image_not_found"
	// CodeSealed: a stored secret was encrypted with an unknown master key.
	CodeSealed Code = "sealed_under_another_key"
)

// CodeSiteCommandFailed reports that a site's host refused or failed a command for the
// site.
const CodeSiteCommandFailed Code = "site_command_failed"
