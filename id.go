package prego

import (
	"crypto/rand"
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// Limits on identifiers. They follow from where an id is used: host names and provider
// labels hold at most 63 characters, and a server's name at the provider is
// "prego-<environment>-<server_id>".
const (
	MaxServerIDLen    = 48
	MaxEnvironmentLen = 8
	MaxTagLen         = 63 // placement-pools, "Tags"
	MaxTags           = 32
	MaxOrgIDLen       = 63
	MaxTenantID       = 32
)

var (
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	tagPattern = regexp.MustCompile(`^[!-~]+$`)
)

// IsLabel reports whether s is a lower-case DNS label of 1 to most characters.
func IsLabel(s string, most int) bool { return len(s) <= most && dnsLabel.MatchString(s) }

// idLen is the number of base32 characters in a generated id: 60 bits, so that ids neither collide nor can be guessed.
const idLen = 12

// NewID makes an id: a prefix and idLen characters of lower-case base32.
func NewID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:idLen]) }

// ValidateServerID accepts a lower-case DNS label of at most MaxServerIDLen characters.
// The id becomes a host name, a label value, a certificate's URI and part of a workflow
// id, so nothing else is allowed.
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

// NormalizeTags lower-cases, checks and de-duplicates tags, keeping their first order
// (placement-pools, "Tags": case does not matter, 1 to 63 printable ASCII characters
// without spaces).
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

// DistinctTags is NormalizeTags for user input: tags that differ only in case are
// rejected.
func DistinctTags(field string, tags []string) ([]string, error) {
	out, err := NormalizeTags(tags)
	if err != nil {
		return nil, withField(field, err)
	}
	if len(out) < len(tags) {
		return nil, Invalid(field, "must hold each tag once; case does not matter")
	}
	return out, nil
}

// withField sets the field of an error.
func withField(field string, err error) error {
	var invalid *Error
	if errors.As(err, &invalid) {
		invalid.Field = field
	}
	return err
}

var orgResourceID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

const maxOrgResourceID = 32

// ValidateResourceID checks the id of an org's resource.
func ValidateResourceID(field, prefix, id string) error {
	if !strings.HasPrefix(id, prefix) || len(id) > maxOrgResourceID || !orgResourceID.MatchString(id) {
		return Invalid(field, "must be an id that begins with "+prefix)
	}
	return nil
}

// ValidateName accepts a lower-case DNS label of at most most characters.
func ValidateName(field, name string, most int) error {
	switch {
	case name == "":
		return Invalid(field, "is required")
	case !IsLabel(name, most):
		return Invalid(field, "must be at most "+strconv.Itoa(most)+" lower-case letters, digits and inner hyphens")
	}
	return nil
}

// ValidateOrgID accepts a lower-case DNS label.
func ValidateOrgID(field string, id OrgID) error {
	return ValidateName(field, string(id), MaxOrgIDLen)
}

// ValidateTenantID accepts ids in the form of generated tenant ids.
func ValidateTenantID(id TenantID) error {
	if !IsLabel(string(id), MaxTenantID) {
		return Invalid("tenant_id", "must be at most "+strconv.Itoa(MaxTenantID)+" lower-case letters, digits and inner hyphens")
	}
	return nil
}
