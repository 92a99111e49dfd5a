package agent

import (
	"strings"
	"unicode"
)

// printable replaces characters that could move a terminal's cursor, or end a line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// clip bounds a text to n bytes.
func clip(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }
