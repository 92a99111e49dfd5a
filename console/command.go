package console

import (
	"net/http"
	"regexp"
	"strings"
)

// origin is the URL that a browser reached us at.
func origin(r *http.Request) string {
	if encrypted(r) {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// word is an argument as a shell reads it.
func word(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return quoted(s)
}

// quoted is a text that a shell does not change.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
