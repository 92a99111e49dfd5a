package console

import (
	"iter"
	"maps"
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

// flagOf is the flag of the command line for a field or a filter of the API, unless a command
// has another one.
func flagOf(name string) string {
	name = strings.TrimSuffix(name, "_seconds")
	switch name {
	case "org_id", "tenant_id", "env_id", "app_id", "group_id", "server_id", "fleet_id", "backup_id", "request_id", "parent_org_id":
		name = strings.TrimSuffix(strings.TrimSuffix(name, "_id"), "_org")
	}
	return strings.ReplaceAll(name, "_", "-")
}

func keysOf[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }
