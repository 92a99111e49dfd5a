package server

import (
	"regexp"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Registry is a container registry that hosts pull images from with credentials. The
// password is stored encrypted, and never shown.
type Registry struct {
	Host      string // as in an image's name: "registry.example.com:5000"; "docker.io" for Docker Hub
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
	pulledImage = regexp.MustCompile(`^[a-z0-9]([a-z0-9._:/-]*[a-z0-9])?(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?$`)
	imageDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
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

// ValidateImage accepts the name of a container image, with a tag or a digest.
func ValidateImage(field, image string) error {
	if len(image) > maxImage || !pulledImage.MatchString(image) {
		return prego.Invalid(field, `must be an image, for example "registry.example.com/team/bench:v15"`)
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

// RegistryOf is the registry of an image: the first part of its name if that is a host,
// else Docker Hub.
func RegistryOf(image string) string {
	first, _, ok := strings.Cut(image, "/")
	if ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		if first == "index.docker.io" {
			return DockerHub
		}
		return first
	}
	return DockerHub
}
