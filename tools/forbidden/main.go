// Command forbidden finds what direct-provisioning §11 keeps out of this code base: Pulumi, Ansible, SSH, shells that
// run text, endpoints of the agent without a kind, and kinds of commands besides the eight (ADR 77).
//
//	go vet -vettool=forbidden ./...   Go code, by its types
//	forbidden FILE...                 other text
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	// go vet calls with -V=full, -flags, or one .cfg file.
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") || strings.HasSuffix(os.Args[1], ".cfg") {
		unitchecker.Main(Analyzer)
	}
	bad := false
	for _, name := range os.Args[1:] {
		text, err := os.ReadFile(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		for _, f := range inText(string(text)) {
			fmt.Fprintf(os.Stderr, "%s:%d: forbidden: %s\n", name, f.line, f.says)
			bad = true
		}
	}
	if bad {
		os.Exit(1)
	}
}
