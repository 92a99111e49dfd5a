// Command stranger asks for bench without leave.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	conn, err := net.Dial("unix", os.Args[1])
	if err != nil {
		panic(err)
	}
	_, _ = conn.Write([]byte(`{"args":["list-sites"]}` + "\n"))
	if n, err := conn.Read(make([]byte, 1)); n == 0 && err != nil {
		fmt.Println("connected and turned away")
	}
}
