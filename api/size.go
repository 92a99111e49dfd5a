package api

import (
	"fmt"
	"math"
	"strings"

	"github.com/docker/go-units"
)

// ParseMemory parses a size whose units are powers of 1024.
func ParseMemory(s string) (int64, error) { return parseSize(s, units.RAMInBytes) }

// ParseDisk parses a size whose units are powers of 1000, except KiB, MiB, GiB and TiB.
func ParseDisk(s string) (int64, error) {
	if strings.ContainsAny(s, "iI") {
		return ParseMemory(s)
	}
	return parseSize(s, units.FromHumanSize)
}

func parseSize(s string, read func(string) (int64, error)) (int64, error) {
	n, err := read(strings.TrimSpace(s))
	if err != nil || n < 0 || n == math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size; write it like 64G or 1.5 GiB", s)
	}
	return n, nil
}

// MemoryText formats a number of bytes as ParseMemory reads it.
func MemoryText(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}

// DiskText formats a number of bytes in the units of disk offers, as ParseDisk reads it.
func DiskText(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"})
}
