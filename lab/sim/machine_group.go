package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Control groups: each machine has a separate one in every hierarchy, so that nothing of it is outside, and all of it
// can be found and ended.

const groupRoot = "/sys/fs/cgroup"

// hierarchies are where groups are made: the controllers of version 1, systemd's own, and
// the unified one beside them.
func hierarchies() ([]string, error) {
	var out []string
	for _, name := range []string{
		"systemd", "unified", "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer",
		"blkio", "pids",
	} {
		if _, err := os.Stat(filepath.Join(groupRoot, name, "cgroup.procs")); err == nil {
			out = append(out, filepath.Join(groupRoot, name))
		}
	}
	if len(out) < 3 {
		return nil, errors.New("machines need control groups of version 1 (or both): contributing/simulator.md")
	}
	return out, nil
}

// makeGroups makes the groups of a machine, which may use no block devices but loop
// ones, and returns their directories.
func makeGroups(name string, memoryMB int) ([]string, error) {
	roots, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, root := range roots {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("control group: %w", err)
		}
		out = append(out, dir)
		var set [][2]string
		switch filepath.Base(root) {
		case "cpuset": // starts empty, and takes nothing in then
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				b, err := os.ReadFile(filepath.Join(root, f))
				if err != nil {
					return nil, fmt.Errorf("control group: %w", err)
				}
				set = append(set, [2]string{f, string(b)})
			}
		case "devices": // loop devices have number 7
			set = [][2]string{
				{"devices.deny", "a"},
				{"devices.allow", "c *:* rwm"},
				{"devices.allow", "b *:* m"},
				{"devices.allow", "b 7:* rwm"},
			}
		case "memory":
			if memoryMB > 0 {
				set = [][2]string{{"memory.limit_in_bytes", strconv.Itoa(memoryMB << 20)}}
			}
		}
		for _, s := range set {
			if err := os.WriteFile(filepath.Join(dir, s[0]), []byte(s[1]), 0o600); err != nil {
				return nil, fmt.Errorf("control group: %w", err)
			}
		}
	}
	return out, nil
}

// groupDirs are all groups of the machines whose names match a pattern, the innermost
// first.
func groupDirs(pattern string) []string {
	roots, _ := filepath.Glob(filepath.Join(groupRoot, "*", pattern))
	var out []string
	for _, root := range roots {
		_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				out = append(out, p)
			}
			return nil
		})
	}
	sort.Sort(sort.Reverse(sort.StringSlice(out)))
	return out
}

// processesIn are the processes of a group, without its subgroups.
func processesIn(dir string) []int {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	var out []int
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	return out
}

// killGroups ends all processes of the machines whose names match a pattern. An init
// that is killed takes its machine with it.
func killGroups(pattern string) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := 0
		for _, dir := range groupDirs(pattern) {
			for _, pid := range processesIn(dir) {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of %s don't end", left, pattern)
		}
	}
}

// removeGroups ends the processes in them and removes the groups of the machines whose names match a pattern.
func removeGroups(pattern string) error {
	var last error
	for range 50 {
		// Each time, since a command that was about to enter the machine may have come late.
		if last = killGroups(pattern); last != nil {
			return last
		}
		for _, dir := range groupDirs(pattern) {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
				last = fmt.Errorf("control group %s: %w", dir, err)
			}
		}
		if last == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return last
}

// initOf finds the first process of a machine: number 1 inside.
func initOf(name string) int {
	for _, dir := range groupDirs(name) {
		if !strings.HasPrefix(dir, groupRoot+"/systemd/") {
			continue
		}
		for _, pid := range processesIn(dir) {
			if insideNumber(pid) == 1 {
				return pid
			}
		}
	}
	return 0
}

// insideNumber is a process's number in the innermost namespace that it is in, 0 when it
// is only in this one.
func insideNumber(pid int) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "NSpid:"); ok {
			numbers := strings.Fields(rest)
			if len(numbers) < 2 {
				return 0
			}
			n, _ := strconv.Atoi(numbers[len(numbers)-1])
			return n
		}
	}
	return 0
}

// unmountBelow unmounts everything below a directory, the last mounted first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	var all error
	for _, line := range slices.Backward(lines) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(fields[4])
		if at == dir || strings.HasPrefix(at, dir+"/") {
			if err := syscall.Unmount(at, mntDetach); err != nil && !errors.Is(err, syscall.EINVAL) {
				all = errors.Join(all, fmt.Errorf("unmount %s: %w", at, err))
			}
		}
	}
	return all
}

const mntDetach = 2

// attachLoop makes a file a block device. A device that the file still has, since another process's copy of a mount is
// not gone yet, is reused: a second one would have a separate cache, and two file systems would overwrite each other.
func attachLoop(file string) (string, error) {
	devices, err := runOutput("losetup", "--noheadings", "--output", "NAME", "--associated", file)
	if err != nil {
		return "", err
	}
	if device, _, _ := strings.Cut(strings.TrimSpace(devices), "\n"); device != "" {
		return device, nil
	}
	return runOutput("losetup", "--find", "--show", file)
}

// detachLoopsBelow gives back the devices of a file, or of all files in a directory. A
// device that is still in use goes with its last user.
func detachLoopsBelow(path string) error { return loopsBelow(path, "--detach") }

// growLoops notifies the devices of a file that it has grown.
func growLoops(path string) error { return loopsBelow(path, "--set-capacity") }

func loopsBelow(path, do string) error {
	entries, err := os.ReadDir("/sys/block")
	if err != nil {
		return err
	}
	var all error
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join("/sys/block", e.Name(), "loop/backing_file"))
		if err != nil {
			continue
		}
		backing := strings.TrimSuffix(strings.TrimSpace(string(b)), " (deleted)")
		if backing == path || strings.HasPrefix(backing, path+"/") {
			all = errors.Join(all, run("losetup", do, "/dev/"+e.Name()))
		}
	}
	return all
}
