package cli

import (
	"fmt"
	"strconv"

	"github.com/prego/prego/api"
)

// sizeHelp explains how memory sizes are written.
const sizeHelp = "like 512M, 64G or \"1.5 GiB\" (K, M, G and T are powers of 1024), or bytes"

// Sizes are read and written as in the console's forms.
var (
	memory, disk        = api.ParseMemory, api.ParseDisk
	bytesText, diskText = api.MemoryText, api.DiskText
)

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
