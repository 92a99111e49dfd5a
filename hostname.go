package prego

import (
	"regexp"
	"strings"

	"golang.org/x/net/idna"
)

// hostnamePattern accepts lower-case ASCII names of at least two labels;
// internationalised ones are written in their xn-- form. Wildcards are rejected: they
// would cover names that other orgs may request. The last label begins with a letter, so
// that no IPv4 address is a name.
var hostnamePattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// maxHostname is the maximum length of a DNS name, in characters.
const maxHostname = 253

// SpellHostname returns how a name is written wherever it is stored or compared: in lower case, without the dot of the
// root. Letters outside of ASCII stay, so that none becomes a letter that it only resembles.
func SpellHostname(name string) string {
	return strings.TrimSuffix(strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name), ".")
}

// NormalizeHostname spells a hostname as SpellHostname does, and checks it.
func NormalizeHostname(name string) (string, error) {
	name = SpellHostname(name)
	switch {
	case strings.Contains(name, "*"):
		return "", Invalid("hostname", "must not be a wildcard")
	case len(name) > maxHostname || !hostnamePattern.MatchString(name):
		return "", Invalid("hostname", "must be a DNS name of at least two labels in ASCII; write an internationalised one in its xn-- form")
	}
	return name, CheckIDNA("hostname", name)
}

// CheckIDNA refuses lower-case names with a label that IDNA gives no meaning: xn-- before text that is no Punycode, or
// decodes to a form that can't be registered, and other labels with hyphens in the third and fourth place, which are reserved
// (RFC 5891 §4.2.3.1). No browser asks for such a name, no authority certifies it, and an edge's server refuses some.
func CheckIDNA(field, name string) error {
	ascii, err := idna.Lookup.ToASCII(name)
	switch {
	case err != nil:
		return Invalid(field, "is no name that browsers or certificate authorities take: "+err.Error())
	case ascii != name:
		return Invalid(field, "is no name that browsers or certificate authorities take: it is another spelling of "+ascii)
	}
	return nil
}

// Within reports whether a name is a domain or below it. Both are lower-case and without a
// trailing dot.
func Within(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}

// ReservedLabel returns what the first label of a name below a shared domain means to programs that read it, or "" if
// it is an ordinary name. Its owner would get requests, mail or trust that are meant for the whole domain.
func ReservedLabel(label string) string {
	switch {
	case strings.HasPrefix(label, "xn--"):
		return "it may look like another name"
	case strings.Trim(label, "0123456789") == "":
		return "numbers are read as parts of addresses"
	case numberedServer.MatchString(label):
		return "it names a server of the domain"
	}
	return reservedLabels[label]
}

// numberedServer is ns1, mx-2 and the like.
var numberedServer = regexp.MustCompile(`^((ns|dns|mx|smtp|www|edge)-?[0-9]*|(mail|imap|pop)-?[0-9]+)$`)

var reservedLabels = func() map[string]string {
	out := map[string]string{}
	for meaning, labels := range map[string][]string{
		"mail programs look for their settings there": {
			"autoconfig", "autodiscover", "imap", "imaps", "mail", "mta-sts", "openpgpkey", "pop",
			"smtps", "webmail",
		},
		// RFC 2142, and the CA/Browser Forum's baseline requirements, 3.2.2.4.4.
		"mail to this name is for the domain's owner": {
			"abuse", "admin", "administrator", "hostmaster", "noc", "postmaster", "root", "security", "ssladmin",
			"ssladministrator", "sslwebmaster", "sysadmin", "webmaster",
		},
		"systems look for a proxy or a router there": {"isatap", "wpad"},
		"Windows and telephones look for their services there": {
			"enterpriseenrollment", "enterpriseregistration", "lyncdiscover", "lyncdiscoverinternal", "sip",
		},
		"it is each machine's name for itself": {"broadcasthost", "localdomain", "localhost", "loopback"},
		"visitors take it for the domain's own service": {
			"api", "console", "ftp", "login", "sftp", "ssh", "status", "vpn",
		},
		"the names of edges are below it": {"edges"},
	} {
		for _, l := range labels {
			out[l] = meaning
		}
	}
	return out
}()
