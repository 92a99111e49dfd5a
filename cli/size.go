package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/docker/go-units"
)

// sizeHelp explains how memory sizes are written.
const sizeHelp = "like 512M, 64G or \"1.5 GiB\" (K, M, G and T are powers of 1024), or bytes"

// memory parses a size whose units are powers of 1024.
func memory(s string) (int64, error) { return size(s, units.RAMInBytes) }

// disk parses a size whose units are powers of 1000, except KiB, MiB, GiB and TiB.
func disk(s string) (int64, error) {
	if strings.ContainsAny(s, "iI") {
		return memory(s)
	}
	return size(s, units.FromHumanSize)
}

func size(s string, read func(string) (int64, error)) (int64, error) {
	n, err := read(strings.TrimSpace(s))
	if err != nil || n < 0 || n == math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size; write it like 64G or 1.5 GiB", s)
	}
	return n, nil
}

// bytesText formats a number of bytes as memory parses it.
func bytesText(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}

// diskText formats a number of bytes in the units of disk offers.
func diskText(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"})
}

// sizeFlag is a flag that holds a size.
type sizeFlag struct {
	n    *int64
	read func(string) (int64, error)
	text func(int64) string
}

func (f sizeFlag) String() string {
	if f.n == nil || *f.n == 0 {
		return ""
	}
	return f.text(*f.n)
}

func (f sizeFlag) Set(s string) (err error) {
	*f.n, err = f.read(s)
	n, noNumber := strconv.Atoi(s)
	isDisk := f.text(1e9) == diskText(1e9)
	if err == nil && noNumber == nil && isDisk && n > 0 && n < 1<<20 { // no disk is that small
		return fmt.Errorf("%s is %[1]s bytes: did you mean %[1]sGB?", s)
	}
	return err
}

func (f sizeFlag) Type() string { return "size" }
