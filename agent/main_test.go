package agent

import "testing"

func TestMain(m *testing.M) {
	runTests(m, map[string]func([]string) int{FreezeVerb: Freeze, sealerVerb: sealAndStop})
}
