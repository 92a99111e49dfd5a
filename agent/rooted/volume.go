package rooted

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// fileSystem is what volumes have; the provider makes the same.
const fileSystem = "ext4"

// unmountPatience is how long an unmounted device may still be held, by copies of the mount that go by themselves.
const unmountPatience = 5 * time.Second

// volume runs a verb on an attached volume. remount is mount at a boot, which makes no file
// system. The report of unmount is nil.
func (h *Machine) volume(ctx context.Context, verb, id string) (*wire.VolumeReport, error) {
	v := attached{host: h, id: id, at: h.Path(wire.VolumeMount(id))}
	if verb == "unmount" {
		return nil, v.unmount(ctx)
	}
	if err := v.open(); err != nil {
		return nil, err
	}
	if v.directory {
		return v.link(verb)
	}
	switch verb {
	case "grow":
		return v.grow(ctx)
	case "remount":
		return v.mount(ctx, false)
	default:
		return v.mount(ctx, true)
	}
}

// attached is a volume that is attached to this host.
type attached struct {
	host   *Machine
	id     string
	at     string // the mount point
	device string // what the link by id leads to
	number uint64 // of the device
	// directory is set for a directory that stands for the device, on a host that is a directory.
	directory bool
}

// open finds the volume's device.
func (v *attached) open() error {
	link := v.host.Path(wire.VolumeDevice(v.id))
	device, err := filepath.EvalSymlinks(link)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %s is not attached to this server", v.id)
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return fmt.Errorf("%s: %w", device, err)
	}
	v.device, v.number = device, st.Rdev
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFBLK:
		return nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR && v.host.Root != "/":
		v.directory = true
		return nil
	}
	return fmt.Errorf("%s is no block device", device)
}

// mounted is an entry of /proc/self/mountinfo (proc(5)).
type mounted struct {
	number uint64 // of the device
	root   string // what of the file system is mounted
	at     string
	format string
}

// mounts reads a process's mounts.
func mounts(process string) ([]mounted, error) {
	f, err := os.Open("/proc/" + process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var out []mounted
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields, rest, ok := strings.Cut(lines.Text(), " - ")
		words, kind := strings.Fields(fields), strings.Fields(rest)
		if !ok || len(words) < 5 || len(kind) < 1 {
			continue
		}
		major, minor, _ := strings.Cut(words[2], ":")
		ma, err1 := strconv.ParseUint(major, 10, 32)
		mi, err2 := strconv.ParseUint(minor, 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		out = append(out, mounted{number: unix.Mkdev(uint32(ma), uint32(mi)), root: unescape.Replace(words[3]), at: unescape.Replace(words[4]), format: kind[0]})
	}
	return out, nil
}

// mountAt is the mount at the volume's mount point, nil for none.
func (v *attached) mountAt() (*mounted, error) {
	all, err := mounts("self")
	if err != nil {
		return nil, err
	}
	at, err := filepath.EvalSymlinks(v.at)
	if err != nil {
		at = v.at
	}
	var last *mounted
	for i := range all {
		if all[i].at == at {
			last = &all[i] // the uppermost
		}
	}
	return last, nil
}

// check makes sure that the volume, whole and nothing else, is mounted.
func (v *attached) check() error {
	m, err := v.mountAt()
	switch {
	case err != nil:
		return err
	case m == nil:
		return fmt.Errorf("volume %s is not mounted", v.id)
	case m.number != v.number:
		return fmt.Errorf("another device than volume %s is mounted at %s", v.id, wire.VolumeMount(v.id))
	case m.root != "/" || m.format != fileSystem:
		return fmt.Errorf("%s is not the whole of an %s file system", wire.VolumeMount(v.id), fileSystem)
	}
	return nil
}

// mount mounts the volume, unless it is mounted, and grows its file system to the size of the device.
func (v *attached) mount(ctx context.Context, mayMake bool) (*wire.VolumeReport, error) {
	there, err := v.mountAt()
	if err != nil {
		return nil, err
	}
	made := false
	if there == nil {
		if err := v.emptyMountPoint(); err != nil {
			return nil, err
		}
		if made, err = v.prepareDevice(ctx, mayMake); err != nil {
			return nil, err
		}
		if err := unix.Mount(v.device, v.at, fileSystem, unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, ""); err != nil {
			return nil, fmt.Errorf("mount %s: %w", v.device, err)
		}
	}
	if err := v.check(); err != nil {
		return nil, err
	}
	if err := v.host.remember(rememberedVolume + v.id); err != nil {
		return nil, err
	}
	// The directory of the volume that containers get.
	if err := os.Mkdir(filepath.Join(v.at, filepath.Base(wire.VolumeDir(""))), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	out, err := v.grow(ctx)
	if err != nil { // it keeps its size, which the report contains, and can be used
		out, err = v.report()
	}
	if out != nil {
		out.Made = made
	}
	return out, err
}

// emptyMountPoint creates the mount point. Files there on the host's own disk must not disappear below the volume.
func (v *attached) emptyMountPoint() error {
	if err := os.MkdirAll(filepath.Dir(v.at), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(v.at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(v.at)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no directory", wire.VolumeMount(v.id))
	}
	entries, err := os.ReadDir(v.at)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s on the host's own disk is not empty: move its content to the volume",
			wire.VolumeMount(v.id))
	}
	return nil
}

// prepareDevice checks the file system of a device, and makes one only if nothing at all is on it.
func (v *attached) prepareDevice(ctx context.Context, mayMake bool) (made bool, err error) {
	format, empty, err := signature(ctx, v.device)
	switch {
	case err != nil:
		return false, err
	case empty && mayMake:
		// Not -F: mkfs itself refuses a device that is in use.
		_, err := program(ctx, nil, "/usr/sbin/mkfs."+fileSystem, "-q", "-m", "0", v.device)
		return true, err
	case empty:
		return false, fmt.Errorf("volume %s has no file system", v.id)
	case format != fileSystem:
		return false, fmt.Errorf("volume %s holds something other than one %s file system, and is left alone: %s", v.id, fileSystem, format)
	}
	// 1 is "errors corrected": the journal of a file system that was not unmounted.
	_, err = program(ctx, []int{1}, "/usr/sbin/e2fsck", "-p", v.device)
	return false, err
}

// signature is the content of a device: the name of one file system, or "several" or the like, as wipefs and blkid
// find it; empty if neither finds anything.
func signature(ctx context.Context, device string) (format string, empty bool, err error) {
	list, err := program(ctx, nil, "/usr/sbin/wipefs", "--no-act", "--noheadings", "--output", "TYPE", device)
	if err != nil {
		return "", false, err
	}
	// 2 is "nothing found".
	probed, err := program(ctx, []int{2}, "/usr/sbin/blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "value", device)
	if err != nil {
		return "", false, err
	}
	found := strings.Fields(list + " " + probed)
	if len(found) == 0 {
		return "", true, nil
	}
	for _, f := range found {
		if f != found[0] {
			return strings.Join(found, ", "), false, nil
		}
	}
	return found[0], false, nil
}

// program runs one of the system's programs, never a shell, and returns its output. It may exit with 0 or one of ok.
func program(ctx context.Context, ok []int, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if slices.Contains(ok, exit.ExitCode()) {
			return string(out), nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(name), err, host.Printable(strings.TrimSpace(stderr.String()+" "+string(out))))
	}
	return string(out), nil
}

// grow grows the mounted file system to the size of its device.
func (v *attached) grow(ctx context.Context) (*wire.VolumeReport, error) {
	if err := v.check(); err != nil {
		return nil, err
	}
	if _, err := program(ctx, nil, "/usr/sbin/resize2fs", v.device); err != nil {
		return nil, err
	}
	return v.report()
}

func (v *attached) report() (*wire.VolumeReport, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(v.at, &st); err != nil {
		return nil, err
	}
	return &wire.VolumeReport{Path: wire.VolumeDir(v.id), SizeBytes: int64(st.Blocks) * st.Bsize}, nil //nolint:gosec // far below 2^63
}

// unmount unmounts the volume, if it is mounted. A volume that a container uses is
// refused: the engine's own mount would keep it in use.
func (v *attached) unmount(ctx context.Context) error {
	if err := v.host.forget(rememberedVolume + v.id); err != nil {
		return err
	}
	if info, err := os.Lstat(v.at); err == nil && info.Mode()&fs.ModeSymlink != 0 && v.host.Root != "/" {
		return os.Remove(v.at)
	}
	there, err := v.mountAt()
	if err != nil {
		return err
	}
	if there != nil {
		if held, err := heldElsewhere(there.number); err != nil || held != "" {
			return errors.Join(err, fmt.Errorf("volume %s is in use: process %s has a part of it mounted", v.id, held))
		}
		if err := unix.Unmount(v.at, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", wire.VolumeMount(v.id), err)
		}
	}
	if err := os.Remove(v.at); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	if attached := v.open() == nil; !attached {
		return nil
	}
	return v.released(ctx)
}

// heldElsewhere is a process with a mount of a part of a device's file system, as in a container; "" for none. Whole
// copies belong to services with separate mounts, and go with the host's.
func heldElsewhere(device uint64) (process string, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		space, err := os.Readlink("/proc/" + e.Name() + "/ns/mnt")
		if err != nil || seen[space] {
			continue
		}
		seen[space] = true
		list, err := mounts(e.Name())
		if err != nil {
			continue // it has ended
		}
		for _, m := range list {
			if m.number == device && m.root != "/" {
				return e.Name(), nil
			}
		}
	}
	return "", nil
}

// released waits until nothing holds the device, so that it can be detached.
func (v *attached) released(ctx context.Context) error {
	for until := time.Now().Add(unmountPatience); ; {
		// While a file system on it is mounted anywhere, a device can't be opened like this (open(2), O_EXCL).
		fd, err := unix.Open(v.device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			return unix.Close(fd)
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(until) {
			return fmt.Errorf("volume %s is still in use: %w", v.id, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// link stands for mounting where a directory stands for the device.
func (v *attached) link(verb string) (*wire.VolumeReport, error) {
	report := &wire.VolumeReport{Path: wire.VolumeDir(v.id)}
	to, err := os.Readlink(v.at)
	switch {
	case err == nil && to == v.device:
		return report, nil
	case err == nil:
		return nil, fmt.Errorf("another device than volume %s is mounted at %s", v.id, wire.VolumeMount(v.id))
	case verb == "grow":
		return nil, fmt.Errorf("volume %s is not mounted", v.id)
	}
	if err := v.emptyMountPoint(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(v.device, filepath.Base(wire.VolumeDir(""))), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(v.at); err != nil {
		return nil, err
	}
	return report, os.Symlink(v.device, v.at)
}
