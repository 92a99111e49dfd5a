// Command bench stands in for what the declared stack's images hold: bench itself,
// and, by other names, the programs of probes and health checks.
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "healthcheck.sh":
		dial("unix", "/run/mysqld/mysqld.sock")
	case "wait-for-it":
		dial("tcp", os.Args[len(os.Args)-1])
	case "ask":
		ask(os.Args[1])
	default:
		bench(os.Args[1:])
	}
}

// ask asks for bench without leave.
func ask(socket string) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		panic(err)
	}
	_, _ = conn.Write([]byte(`{"args":["list-sites"]}` + "\n"))
	if n, err := conn.Read(make([]byte, 1)); n == 0 && err != nil {
		fmt.Println("connected and turned away")
	}
}

func dial(network, addr string) {
	conn, err := net.DialTimeout(network, addr, time.Second)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_ = conn.Close()
}

func bench(args []string) {
	switch args[0] {
	case "serve":
		l, err := net.Listen("tcp", ":8000")
		if err != nil {
			panic(err)
		}
		for {
			if conn, err := l.Accept(); err == nil {
				_ = conn.Close()
			}
		}
	case "--site":
		site(args[1], args[2:])
	case "unruly":
		unruly(args[1])
	}
}

// site does what the site's name says, whatever the verb.
func site(name string, args []string) {
	switch what, _, _ := strings.Cut(name, "."); what {
	case "fails":
		fmt.Println("one")
		fmt.Fprintln(os.Stderr, "it failed")
		os.Exit(3)
	case "tells":
		dir, _ := os.Getwd()
		fmt.Println("uid", os.Getuid(), "in", dir)
		fmt.Printf("%q\n", args)
		for _, e := range os.Environ() {
			fmt.Println(e)
		}
	case "ticks":
		for i := range 5 {
			fmt.Println("tick", i)
			time.Sleep(200 * time.Millisecond)
		}
	case "unruly":
		for _, kind := range []string{"deaf", "session", "orphan", "storm"} {
			start(kind, false)
		}
		fmt.Println("up")
		unruly("deaf")
	default:
		fmt.Println("frappe\nerpnext")
		_ = os.MkdirAll("sites/"+name, 0o755)
	}
}

func start(kind string, session bool) {
	cmd := exec.Command("/proc/self/exe", "unruly", kind) //nolint:noctx // to be killed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	_ = cmd.Start()
}

func unruly(kind string) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	switch kind {
	case "session":
		start("deaf", true)
	case "orphan":
		start("leaver", true)
	case "leaver":
		start("deaf", true)
		os.Exit(0)
	case "storm":
		for range 10 {
			start("orphan", true)
		}
	}
	time.Sleep(time.Hour)
}
