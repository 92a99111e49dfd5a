// Command stub is what the tests' containers run.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

func main() {
	if filepath.Base(os.Args[0]) == "probe" {
		code, _ := strconv.Atoi(os.Getenv("PROBE_EXIT"))
		if hang := os.Getenv("PROBE_HANG"); hang != "" {
			time.Sleep(time.Hour)
		}
		os.Exit(code)
	}
	terms := make(chan os.Signal, 1)
	mode := "serve"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch mode {
	case "serve":
		signal.Notify(terms, syscall.SIGTERM)
		fmt.Println("serving", os.Getenv("WORD"))
		fmt.Fprintln(os.Stderr, "and complaining")
		<-terms
		fmt.Println("ended by itself")
	case "tick":
		for i := 0; ; i++ {
			fmt.Println("tick", i)
			time.Sleep(50 * time.Millisecond)
		}
	case "crash":
		for i := range 2000 {
			fmt.Println("line", i, "of much noise")
		}
		fmt.Println("password=" + os.Getenv("WORD") + " and bare " + os.Getenv("WORD"))
		time.Sleep(100 * time.Millisecond) // the streams are gathered apart
		fmt.Fprintln(os.Stderr, "giving up")
		time.Sleep(50 * time.Millisecond)
		os.Exit(3)
	case "once":
		fmt.Println("once")
		os.Exit(4)
	case "end":
		code, _ := strconv.Atoi(os.Getenv("END"))
		fmt.Println("done")
		os.Exit(code)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("not listening")
		time.Sleep(time.Hour)
	}
}
