package prego

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// Limits on identifiers. They follow from where an id ends up: a host name and
// a provider label hold at most 63 characters, and a server's name at the
// provider is "prego-<environment>-<server_id>".
const (
	MaxServerIDLen    = 48
	MaxEnvironmentLen = 8
	MaxTagLen         = 63 // placement-pools, "Tags"
	MaxTags           = 32
	MaxOrgIDLen       = 63
	MaxTenantID       = 32
	maxIdempotencyKey = 255
)

var (
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	tagPattern = regexp.MustCompile(`^[!-~]+$`)
)

// IsLabel reports whether s is a lower-case DNS label of 1 to most characters.
func IsLabel(s string, most int) bool { return len(s) <= most && dnsLabel.MatchString(s) }

// ValidateServerID accepts a lower-case DNS label of at most MaxServerIDLen
// characters. The id becomes a host name, a label value, a certificate's URI
// and part of a workflow id, so nothing else may be in it.
func ValidateServerID(id string) error {
	switch {
	case id == "":
		return Invalid("server_id", "is required")
	case len(id) > MaxServerIDLen:
		return Invalid("server_id", "must be at most "+strconv.Itoa(MaxServerIDLen)+" characters")
	case !dnsLabel.MatchString(id):
		return Invalid("server_id", "must consist of lower-case letters, digits and inner hyphens")
	}
	return nil
}

// ValidateEnvironment accepts a lower-case DNS label of at most
// MaxEnvironmentLen characters.
func ValidateEnvironment(env string) error {
	if !IsLabel(env, MaxEnvironmentLen) {
		return Invalid("environment", "must be a lower-case DNS label of at most "+strconv.Itoa(MaxEnvironmentLen)+" characters")
	}
	return nil
}

// NormalizeTags lower-cases, checks and de-duplicates tags, keeping their first
// order (placement-pools, "Tags": case does not matter, 1 to 63 printable ASCII
// characters without spaces).
func NormalizeTags(tags []string) ([]string, error) {
	if len(tags) > MaxTags {
		return nil, Invalid("spec.tags", "must be at most "+strconv.Itoa(MaxTags)+" tags")
	}
	out := make([]string, 0, len(tags))
	seen := make(map[string]bool, len(tags))
	for _, t := range tags {
		switch {
		case t == "":
			return nil, Invalid("spec.tags", "must not hold an empty tag")
		case len(t) > MaxTagLen:
			return nil, Invalid("spec.tags", "must be under 64 characters each")
		case !tagPattern.MatchString(t):
			return nil, Invalid("spec.tags", "must be printable ASCII without spaces")
		}
		t = strings.ToLower(t)
		if !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	return out, nil
}

// DistinctTags is NormalizeTags for tags that somebody wrote just now: two that are
// the same but for their case are a mistake, and refused.
func DistinctTags(field string, tags []string) ([]string, error) {
	out, err := NormalizeTags(tags)
	if err != nil {
		return nil, at(field, err)
	}
	if len(out) < len(tags) {
		return nil, Invalid(field, "must hold each tag once; case does not matter")
	}
	return out, nil
}

// at says which field a refusal is about.
func at(field string, err error) error {
	var invalid *Error
	if errors.As(err, &invalid) {
		invalid.Field = field
	}
	return err
}

// Workflow ids are deterministic, so that a repeated start meets the first one.
const (
	provisionPrefix    = "server-provision/"
	decommissionPrefix = "server-decommission/"
)

// ProvisionWorkflowID is the id of the run that provisions a server.
func ProvisionWorkflowID(serverID string) string { return provisionPrefix + serverID }

// ServerIDFromProvisionWorkflow is the inverse of ProvisionWorkflowID.
func ServerIDFromProvisionWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, provisionPrefix)
}

// DecommissionWorkflowID is the id of the run that takes a server down.
func DecommissionWorkflowID(serverID string) string { return decommissionPrefix + serverID }

// ServerIDFromDecommissionWorkflow is the inverse of DecommissionWorkflowID.
func ServerIDFromDecommissionWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, decommissionPrefix)
}

// ReconcileWorkflowID and SweepWorkflowID are the ids of the periodic runs of
// one environment.
func ReconcileWorkflowID(environment string) string { return "reconcile/" + environment }

// CatalogWorkflowID is the run that reads what the providers sell.
func CatalogWorkflowID(environment string) string { return "refresh-catalog/" + environment }

// SweepWorkflowID is the id of the run that marks silent agents.
func SweepWorkflowID(environment string) string { return "sweep-heartbeats/" + environment }

// ServerName is the name of a server at the provider. Names are unique per
// project there, which is what makes a repeated or late create harmless: at
// most one server of this name can exist, whatever the order of events.
func ServerName(environment, serverID string) string {
	return "prego-" + environment + "-" + serverID
}

// ServerIDFromName is the inverse of ServerName.
func ServerIDFromName(environment, name string) (string, bool) {
	return strings.CutPrefix(name, "prego-"+environment+"-")
}

var imageName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

var digits = regexp.MustCompile(`^[1-9][0-9]*$`)
