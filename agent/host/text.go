package host

import (
	"strings"
	"unicode"
)

// Printable replaces characters that could move a terminal's cursor, or end a line.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// Clip bounds a text to n bytes.
func Clip(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }
