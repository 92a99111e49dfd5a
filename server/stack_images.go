package server

import (
	"strings"

	"github.com/prego/prego"
)

// Images are the container images of all roles, unordered and with duplicates;
// benchImage replaces ${bench_image}.
func (s Stack) Images(benchImage string) []string {
	var out []string
	for _, role := range prego.Roles() {
		for _, c := range s[role] {
			out = append(out, strings.ReplaceAll(c.Image, "${bench_image}", benchImage))
		}
	}
	return out
}
