package prego

import (
	"regexp"
	"strings"
)

// hostnamePattern accepts lower-case ASCII names of at least two labels;
// internationalised ones are written in their xn-- form. Wildcards are rejected: they
// would cover names that other orgs may request. The last label begins with a letter, so
// that no IPv4 address is a name.
var hostnamePattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// maxHostname is the maximum length of a DNS name, in characters.
const maxHostname = 253

// NormalizeHostname lower-cases a hostname and checks it.
func NormalizeHostname(name string) (string, error) {
	name = strings.ToLower(name)
	switch {
	case strings.Contains(name, "*"):
		return "", Invalid("hostname", "must not be a wildcard")
	case len(name) > maxHostname || !hostnamePattern.MatchString(name):
		return "", Invalid("hostname", "must be a DNS name of at least two labels in ASCII; write an internationalised one in its xn-- form")
	}
	return name, nil
}

// Within reports whether a name is a domain or below it. Both are lower-case and without a
// trailing dot.
func Within(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}
