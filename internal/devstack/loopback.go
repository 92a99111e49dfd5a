package devstack

import (
	"fmt"
	"hash/fnv"
)

// LoopbackRange is a range on loopback for the private networks of a simulated cloud with
// process hosts: that of its name, such as the directory of its state. It lies outside the
// hosts' public addresses. Two names have the same one only by chance.
func LoopbackRange(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	n := h.Sum32() % (10 * 16)
	return fmt.Sprintf("127.%d.%d.0/20", 246+n/16, n%16*16) // 127.246.0.0 to 127.255.255.255
}
