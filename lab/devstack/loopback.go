package devstack

import (
	"fmt"
	"hash/fnv"
)

// loopbackRanges is how many ranges there are.
const loopbackRanges = 10 * 16

// LoopbackRange is a range on loopback for the private networks of a simulated cloud with
// process hosts: that of its name, such as the directory of its state. It lies outside the
// hosts' public addresses. Two names have the same one only by chance.
func LoopbackRange(name string) string { return NthLoopbackRange(name, 0) }

// NthLoopbackRange is the nth range of a series that starts at the name's. The first 160 differ, so that concurrent
// clouds in one process do not meet by chance.
func NthLoopbackRange(name string, n int64) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	i := (int64(h.Sum32()%loopbackRanges) + n) % loopbackRanges
	return fmt.Sprintf("127.%d.%d.0/20", 246+i/16, i%16*16) // 127.246.0.0 to 127.255.255.255
}
