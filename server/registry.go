package server

import (
	_ "crypto/sha256" // digests of images can be checked only with their hash linked
	_ "crypto/sha512"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/prego/prego"
)

// Registry is a container registry that hosts pull images from with credentials. The
// password is stored encrypted, and never shown.
type Registry struct {
	OrgID     prego.OrgID // whose credentials they are; "" for the installation
	Host      string      // as in an image's name: "registry.example.com:5000"; "docker.io" for Docker Hub
	Username  string
	KeyID     string // of the master key that encrypts the password
	CreatedBy string
	CreatedAt time.Time
	UpdatedBy string
	UpdatedAt time.Time
}

// SealedRegistry is a registry with its encrypted password.
type SealedRegistry struct {
	Registry
	Sealed []byte
}

// ImageDigest is the digest of an image's tag when it was first resolved.
type ImageDigest struct {
	Image      string
	Digest     string // "sha256:" and 64 hex digits
	ResolvedAt time.Time
}

// Limits of a registry's credentials, in bytes.
const (
	MaxRegistryUser     = 255
	MaxRegistryPassword = 4096
	maxImage            = 512
)

// DockerHub is the registry of images whose name has no host.
const DockerHub = "docker.io"

var (
	imageDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	imageTag    = regexp.MustCompile(`^` + reference.TagRegexp.String() + `$`)
	imageHost   = regexp.MustCompile(`^` + reference.DomainRegexp.String() + `$`)
)

// ValidateRegistryLogin accepts a user and a password without control characters.
func ValidateRegistryLogin(username, password string) error {
	printable := func(s string) bool {
		return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
	}
	switch {
	case username == "" || len(username) > MaxRegistryUser || !printable(username) || strings.Contains(username, ":"):
		return prego.Invalid("username", "must be 1 to 255 characters, and no colon")
	case password == "" || len(password) > MaxRegistryPassword || !printable(password):
		return prego.Invalid("password", "must be 1 to 4096 characters on one line")
	}
	return nil
}

// ParseImage reads an image's reference as Docker does. Its error completes a sentence that begins with the field.
func ParseImage(image string) (reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(image)
	switch {
	case err != nil || len(image) > maxImage || unlikelyRegistry(named):
	case imageID.MatchString(image), reference.FamiliarName(named) == "scratch", !dialable(named):
	default:
		return named, nil
	}
	return nil, fmt.Errorf(`must be an image like "registry.example.com/team/app:v1": %s`, imageFault(image))
}

// imageID is what an engine that has an image of this id runs instead of the image of this name: ids may be shortened.
var imageID = regexp.MustCompile(`^(sha256:)?[0-9a-f]{4,64}$`)

// dialable reports whether the port of a reference's registry is one.
func dialable(named reference.Named) bool {
	host := reference.Domain(named)
	i := strings.LastIndexByte(host, ':')
	if i <= strings.LastIndexByte(host, ']') {
		return true
	}
	port, err := strconv.ParseUint(host[i+1:], 10, 16)
	return err == nil && port > 0
}

// unlikelyRegistry reports whether a reference begins with a name in capitals that has neither a dot nor a port. Docker
// connects to a host of that name, where its user meant a repository of Docker Hub.
func unlikelyRegistry(named reference.Named) bool {
	host := reference.Domain(named)
	return strings.ToLower(host) != host && !strings.ContainsAny(host, ".:")
}

// imageFault describes what is wrong with a reference that was refused.
func imageFault(image string) string {
	switch {
	case image == "":
		return "it is empty"
	case len(image) > maxImage:
		return fmt.Sprintf("it must be at most %d characters", maxImage)
	case reference.IdentifierRegexp.FindString(image) == image:
		return "it is the id of an image, which no registry knows"
	case imageID.MatchString(image):
		return fmt.Sprintf("a host may take %s for the id of an image that it has: write the tag, as in %s:latest, "+
			"or the whole name, as in docker.io/library/%s", image, image, image)
	case strings.Contains(image, "://"):
		return "it must not have a scheme"
	}
	if named, err := reference.ParseNormalizedNamed(image); err == nil {
		switch {
		case !dialable(named):
			return fmt.Sprintf("the registry %q must have a port of 1 to 65535", reference.Domain(named))
		case reference.FamiliarName(named) == "scratch":
			return "Docker reserves the name scratch: there is no such image"
		}
	}
	rest, digest, digested := strings.Cut(image, "@")
	if digested && !imageDigest.MatchString(digest) {
		return fmt.Sprintf(`the digest %q must be "sha256:" and 64 hex digits in lower case`, digest)
	}
	name := rest
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		name = rest[:i]
		if tag := rest[i+1:]; !imageTag.MatchString(tag) {
			return fmt.Sprintf("the tag %q must be 1 to 128 characters of a-z, A-Z, 0-9, _, . and -, and not begin with . or -", tag)
		}
	}
	if host, path, ok := strings.Cut(name, "/"); ok && strings.ContainsAny(host, ".:") {
		if !imageHost.MatchString(host) {
			return fmt.Sprintf("the registry %q must be a host's name or address, with or without a port", host)
		}
		name = path
	}
	switch {
	case strings.Contains("/"+name+"/", "//"):
		return fmt.Sprintf("the name %q has an empty part", name)
	case strings.ToLower(name) != name:
		return fmt.Sprintf("the name %q must be in lower case", name)
	case len(name) > reference.RepositoryNameTotalLengthMax:
		return fmt.Sprintf("the name must be at most %d characters", reference.RepositoryNameTotalLengthMax)
	}
	return fmt.Sprintf("the name %q must be parts of a-z and 0-9, joined by single dots, one or two underscores, or dashes", name)
}

// ValidateImage accepts what ParseImage does, of a registry that hosts may connect to.
func ValidateImage(field, image string) error {
	named, err := ParseImage(image)
	if err != nil {
		return prego.Invalid(field, err.Error())
	}
	host := reference.Domain(named)
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	if err := prego.CheckHost(strings.Trim(host, "[]")); err != nil {
		return prego.Invalid(field, "must be of a registry that hosts may connect to: "+err.Error())
	}
	return nil
}

// ValidateDigest accepts "sha256:" and 64 hex digits.
func ValidateDigest(field, digest string) error {
	if !imageDigest.MatchString(digest) {
		return prego.Invalid(field, `must be "sha256:" and 64 hex digits`)
	}
	return nil
}

// RegistryOf is the registry of an image, in lower case as credentials have it; "" for a text that is none.
func RegistryOf(image string) string {
	named, err := ParseImage(image)
	if err != nil {
		return ""
	}
	return strings.ToLower(reference.Domain(named))
}
