// Command mute-agent says its version as an agent does, and otherwise does nothing for ever.
package main

import (
	"fmt"
	"os"
)

var version = "dev"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println(version)
		return
	}
	r, _, err := os.Pipe()
	if err == nil {
		_, _ = r.Read(make([]byte, 1))
	}
}
