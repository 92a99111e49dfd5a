package prego

import (
	"regexp"
)

// Redacted stands where a secret was.
const Redacted = "[redacted]"

// redactions are applied in order; each keeps its first group, which names what
// was masked.
var redactions = []*regexp.Regexp{
	// A private key, whole or cut off.
	regexp.MustCompile(`(?s)()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
	// user:password@ in URLs and DSNs.
	regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/@]*:)[^\s@]+(?:@)`),
	// Authorization headers.
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	// A JWT anywhere.
	regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`),
	// password=…, "api_token": "…", and --db-password … with or without "=".
	regexp.MustCompile(`(?i)([\w-]*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w-]*"?\s*[=:]\s*"?)[^\s"',;&]+`),
	regexp.MustCompile(`(?i)(--?[\w-]*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w-]*\s+)[^\s"',;&]+`),
	// mysql's -pPASSWORD.
	regexp.MustCompile(`((?:^|\s)-p)[^\s-][^\s]*`),
	// Long runs of hex: keys, and hashes of keys.
	regexp.MustCompile(`()\b[0-9a-fA-F]{48,}\b`),
}

// longBase64 may be a key; keyLike excludes paths and long names.
var longBase64 = regexp.MustCompile(`[A-Za-z0-9+/_-]{40,}={0,2}`)

func keyLike(s string) bool {
	var upper, lower, digit bool
	for _, r := range s {
		upper = upper || (r >= 'A' && r <= 'Z')
		lower = lower || (r >= 'a' && r <= 'z')
		digit = digit || (r >= '0' && r <= '9')
	}
	return upper && lower && digit
}

// Redact masks what looks like a secret: passwords in flags, DSNs and URLs,
// tokens, private keys, long hex and base64. It is the one redactor of logs,
// audit rows and error texts. It would rather mask too much than too little.
func Redact(s string) string {
	for _, re := range redactions {
		s = re.ReplaceAllString(s, "${1}"+Redacted)
	}
	return longBase64.ReplaceAllStringFunc(s, func(m string) string {
		if keyLike(m) {
			return Redacted
		}
		return m
	})
}
