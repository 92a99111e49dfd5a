// Package netns calls functions in other network namespaces.
package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// In calls f in the network namespace of a file, such as /run/netns/NAME or
// /proc/PID/ns/net. What f opens stays in that namespace. It takes root.
func In(file string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
		done <- enter(file, f)
	}()
	return <-done
}

func enter(file string, f func() error) error {
	space, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)
	_ = space.Close()
	if err != nil {
		return fmt.Errorf("enter %s: %w", file, err)
	}
	return f()
}
