package devstack

import (
	"os"
	"syscall"
)

const (
	memory = "/dev/shm"
	// scratchSpace is how much memory must be left for what tests write, in bytes.
	scratchSpace = 4 << 30
)

// Scratch creates a directory for a test run's temporary files, which any user can reach: in PREGO_TEST_SCRATCH, else
// in memory where there is enough, else on disk. Most of the cost of a database clone on a disk is its file system
// looking for inodes.
func Scratch(pattern string) (string, error) {
	parent := os.Getenv("PREGO_TEST_SCRATCH") //nolint:forbidigo // a setting of tests
	if parent == "" {
		parent = "/var/tmp"
		if roomy(memory, scratchSpace) {
			parent = memory
		}
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	return dir, nil
}

// roomy reports whether a directory has so many free bytes and can hold programs.
func roomy(dir string, bytes uint64) bool {
	const noexec = 8 // ST_NOEXEC
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && fs.Flags&noexec == 0 && fs.Bavail*uint64(fs.Bsize) >= bytes //nolint:gosec // a block has a size
}
