package api

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// label is the pattern of most names and ids.
const label = `[a-z0-9]([a-z0-9-]*[a-z0-9])?`

// patterns are the contract's patterns in words, for those that have no x-message beside them.
var patterns = map[string]string{
	`^` + label + `$`:                      labelWords,
	`^(` + label + `)?$`:                   labelWords,
	`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`: labelWords + ", at most 32 characters",
	`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`: "must be lower-case letters, digits, dots and hyphens, " +
		"with a letter or digit at both ends, at most 63 characters",
	`^(org:)?` + label + `$`: "must be a plan, the id of a tenant or volume, or org: and " +
		"the id of an org",
	`^([a-z0-9][a-z0-9._-]*)?$`: "must be lower-case letters, digits, dots, underscores and hyphens",
	`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`: "must be letters, digits, dots, underscores and hyphens, " +
		"with a letter or digit at both ends",
	`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,62}$`:      "must be a version like v1.4.0, of at most 63 characters",
	`^[!-~]*$`:                                "must be printable ASCII without spaces",
	`^[!-~]+$`:                                "must be printable ASCII without spaces",
	`^/[!-~]*$`:                               "must be a path that begins with / and has no spaces",
	`^[a-z][a-z0-9_]*$`:                       "must be lower-case letters, digits and underscores",
	`^[a-z][a-z0-9_]{0,63}$`:                  "must be lower-case letters, digits and underscores",
	`^[a-z0-9_]+$`:                            "must be lower-case letters, digits and underscores",
	`^[a-z0-9_.]+$`:                           "must be lower-case letters, digits, underscores and dots",
	`^[^\x00]*$`:                              "must not contain NUL",
	`^[A-Z]{2}$`:                              "must be a country's code of two capital letters, such as KR",
	`^([A-Z]{2})?$`:                           "must be a country's code of two capital letters, such as KR",
	`^20[0-9]{2}-(0[1-9]|1[0-2])$`:            "must be a month, such as 2026-11",
	`^(free|paid|enterprise)?$`:               "must be free, paid or enterprise",
	`^[0-9]+\.[0-9]{2,6}$`:                    "must be an amount with two to six decimals, such as 16.49",
	`^([0-9]{1,2})?$`:                         "must be the number of a Debian release, such as 13",
	`^[1-9][0-9]{0,19}$`:                      "must be a number, such as 48213377",
	`^[0-9]{1,20}-[0-9]{1,19}$`:               "must be a cursor from an earlier answer",
	`^[0-9]+-[A-Za-z0-9_-]+$`:                 "must be the digest of an impact from an earlier answer",
	`^(\*|(W/)?"[^"]*"( *, *(W/)?"[^"]*")*)$`: "must be * or ETags in double quotes",
	`^[a-z-]+/[A-Za-z0-9._@/-]+$`:             "must be an operation's id, such as server-provision/app-7",
	`^(sg|eu|us)/(` + label + `)?$`:           "must be a region and a fleet, such as eu/web",
	`^ins-[0-9a-f]{12}-[1-9][0-9]{0,14}$`:     "must be an id like ins-0123456789ab-1",
	`^(server|tenant|org|env|fleet|pool|environment|none)(:[^,]{1,200})?$`: "must be a kind, such as " +
		"tenant, or a kind and an id, such as org:acme",
	`^(` + label + `\.)+` + label + `(:[1-9][0-9]{0,4})?$|^localhost(:[1-9][0-9]{0,4})?$|^` + label +
		`:[1-9][0-9]{0,4}$`: "must be the host name of a registry, with its port if it has one",
}

const labelWords = "must be lower-case letters, digits and hyphens, with a letter or digit at both ends"

// prefixed is the pattern of ids that begin with their kind.
var prefixed = regexp.MustCompile(`^\^([a-z]+-)\[[a-z0-9-]+\]`)

// inWords is what a pattern requires.
func inWords(pattern string) string {
	if words, ok := patterns[pattern]; ok {
		return words
	}
	if m := prefixed.FindStringSubmatch(pattern); m != nil {
		return "must be an id like " + m[1] + "0123456789ab"
	}
	return "must match " + pattern
}

// figures are the bounds of a value with the unit that its name has.
func figures(name string, s *openapi3.Schema) string {
	if !strings.HasSuffix(name, "_bytes") {
		return bounds(s.Min, s.Max, plainFigure)
	}
	return bounds(s.Min, s.Max, func(f float64) string { return sizeText(int64(f)) })
}

func plainFigure(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// sizeText is a number of bytes in the largest unit of which it is a whole number.
func sizeText(n int64) string {
	for _, u := range []struct {
		name string
		of   int64
	}{{"TB", 1e12}, {"TiB", 1 << 40}, {"GB", 1e9}, {"GiB", 1 << 30}, {"MB", 1e6}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n > 0 && n%u.of == 0 {
			return strconv.FormatInt(n/u.of, 10) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
