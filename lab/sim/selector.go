package sim

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	setTerm   = regexp.MustCompile(`^\s*([\w./-]+)\s+(in|notin)\s+\(([^)]*)\)\s*$`)
	equalTerm = regexp.MustCompile(`^\s*([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)\s*$`)
	hasTerm   = regexp.MustCompile(`^\s*(!?)\s*([\w./-]+)\s*$`)
)

// parseSelector understands the provider's label selectors: k=v, k==v, k!=v, k,
// !k, k in (a,b), k notin (a,b), joined by commas.
func parseSelector(selector string) (func(map[string]string) bool, error) {
	var terms []func(map[string]string) bool
	for _, t := range splitTerms(selector) {
		if strings.TrimSpace(t) == "" {
			continue
		}
		switch {
		case setTerm.MatchString(t):
			m := setTerm.FindStringSubmatch(t)
			values := strings.Split(m[3], ",")
			for i := range values {
				values[i] = strings.TrimSpace(values[i])
			}
			terms = append(terms, func(l map[string]string) bool {
				v, ok := l[m[1]]
				if m[2] == "in" {
					return ok && slices.Contains(values, v)
				}
				return !slices.Contains(values, v) || !ok
			})
		case equalTerm.MatchString(t):
			m := equalTerm.FindStringSubmatch(t)
			terms = append(terms, func(l map[string]string) bool {
				v, ok := l[m[1]]
				if m[2] == "!=" {
					return !ok || v != m[3]
				}
				return ok && v == m[3]
			})
		case hasTerm.MatchString(t):
			m := hasTerm.FindStringSubmatch(t)
			terms = append(terms, func(l map[string]string) bool {
				_, ok := l[m[2]]
				return ok == (m[1] == "")
			})
		default:
			return nil, fmt.Errorf("invalid label selector %q", t)
		}
	}
	return func(l map[string]string) bool {
		for _, t := range terms {
			if !t(l) {
				return false
			}
		}
		return true
	}, nil
}

// splitTerms splits at commas outside of parentheses.
func splitTerms(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, r := range s {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, s[from:i])
				from = i + 1
			}
		}
	}
	return append(out, s[from:])
}
