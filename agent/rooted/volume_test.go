package rooted

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/need"
)

// loopHost is a host below a directory, with a volume on a loop device: everything but the
// way a device gets to a server is real.
type loopHost struct {
	*Machine
	t      *testing.T
	file   string
	device string
}

const loopVolume = "77"

func newLoopHost(t *testing.T, size int64) *loopHost {
	t.Helper()
	need.Root(t, "only root mounts")
	l := &loopHost{Machine: Here(&host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server, Role: "app"}}), t: t, file: filepath.Join(t.TempDir(), "volume.img")}
	require.NoError(t, os.WriteFile(l.file, nil, 0o600))
	require.NoError(t, os.Truncate(l.file, size))
	l.device = strings.TrimSpace(l.run("losetup", "--find", "--show", l.file))
	t.Cleanup(func() {
		_ = syscall.Unmount(l.Path(wire.VolumeMount(loopVolume)), syscall.MNT_DETACH) // a process that is just being started may have a file open
		l.run("losetup", "--detach", l.device)
	})
	link := l.Path(wire.VolumeDevice(loopVolume))
	require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o755))
	require.NoError(t, os.Symlink(l.device, link))
	return l
}

func (l *loopHost) run(name string, args ...string) string {
	l.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(l.t, err, "%s: %s", name, out)
	return string(out)
}

func (l *loopHost) verb(verb string) (*wire.VolumeReport, error) {
	return l.volume(context.Background(), verb, loopVolume)
}

// reboot ends the mount, and waits until no process holds the device: one that another test has just started may have a
// copy of this process's mounts for a moment.
func (l *loopHost) reboot() {
	l.t.Helper()
	require.NoError(l.t, syscall.Unmount(l.Path(wire.VolumeMount(loopVolume)), 0))
	agenttest.Eventually(l.t, "a device that is not in use", func() bool {
		f, err := os.OpenFile(l.device, os.O_RDWR|syscall.O_EXCL, 0)
		if err == nil {
			_ = f.Close()
		}
		return err == nil
	})
}

// write writes a file of the volume, as a container does.
func (l *loopHost) write(name, text string) {
	l.t.Helper()
	require.NoError(l.t, os.WriteFile(l.Path(wire.VolumeDir(loopVolume)+"/"+name), []byte(text), 0o600))
}

const smallVolume = 64 << 20

func TestAVolumeIsMountedAndUnmounted(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	got, err := l.verb("mount")
	require.NoError(t, err)
	require.True(t, got.Made, "it was empty")
	require.Equal(t, wire.VolumeDir(loopVolume), got.Path)
	require.InDelta(t, smallVolume, got.SizeBytes, 16<<20)
	l.write("kept", "data")
	for range 2 {
		got, err = l.verb("mount")
		require.NoError(t, err)
		require.False(t, got.Made)
	}
	require.Equal(t, []string{loopVolume}, l.remembered(rememberedVolume))
	for range 2 {
		_, err = l.verb("unmount")
		require.NoError(t, err)
	}
	require.NoDirExists(t, l.Path(wire.VolumeDir(loopVolume)), "nothing is bound to the host's own disk")
	require.Empty(t, l.remembered(rememberedVolume))
	_, err = l.verb("mount")
	require.NoError(t, err)
	require.FileExists(t, l.Path(wire.VolumeDir(loopVolume)+"/kept"))
}

// TestNothingIsOverwritten: no file system is made over any content of a device.
func TestNothingIsOverwritten(t *testing.T) {
	t.Parallel()
	for what, put := range map[string]func(l *loopHost){
		"another file system": func(l *loopHost) { l.run("mkfs.ext2", "-q", l.device) },
		"swap":                func(l *loopHost) { l.run("mkswap", l.device) },
		"a partition table": func(l *loopHost) {
			cmd := exec.Command("sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", l.device)
			cmd.Stdin = strings.NewReader("label: gpt\n")
			out, err := cmd.CombinedOutput()
			require.NoError(l.t, err, "%s", out)
		},
		"encrypted data": func(l *loopHost) {
			f, err := os.OpenFile(l.device, os.O_WRONLY, 0)
			require.NoError(l.t, err)
			_, err = f.Write(append([]byte("LUKS\xba\xbe\x00\x01"), make([]byte, 4096)...))
			require.NoError(l.t, err)
			require.NoError(l.t, f.Close())
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := newLoopHost(t, smallVolume)
			put(l)
			l.run("blockdev", "--flushbufs", l.device) // otherwise the file below changes when the kernel writes
			before, err := os.ReadFile(l.file)
			require.NoError(t, err)
			_, err = l.verb("mount")
			require.ErrorContains(t, err, "is left alone")
			l.run("blockdev", "--flushbufs", l.device)
			after, err := os.ReadFile(l.file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(before, after))
			require.NoDirExists(t, l.Path(wire.VolumeDir(loopVolume)))
		})
	}
}

func TestAMountThatIsNotTheVolumesIsRefused(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	at := l.Path(wire.VolumeMount(loopVolume))
	require.NoError(t, os.MkdirAll(at, 0o755))
	require.NoError(t, os.WriteFile(at+"/written", []byte("to the host's disk"), 0o600))
	_, err := l.verb("mount")
	require.ErrorContains(t, err, "is not empty")
	require.NoError(t, os.Remove(at+"/written"))
	require.NoError(t, syscall.Mount("none", at, "tmpfs", 0, ""))
	_, err = l.verb("mount")
	require.ErrorContains(t, err, "another device than volume 77 is mounted")
	_, err = l.verb("grow")
	require.ErrorContains(t, err, "another device than volume 77 is mounted")
	require.NoError(t, syscall.Unmount(at, 0))
	require.NoError(t, os.Remove(l.Path(wire.VolumeDevice(loopVolume))))
	_, err = l.verb("mount")
	require.ErrorContains(t, err, "is not attached to this server")
	_, err = l.verb("unmount")
	require.NoError(t, err, "it can be repeated after it was detached")
	require.NoError(t, os.WriteFile(l.Path(wire.VolumeDevice(loopVolume)), nil, 0o600))
	_, err = l.verb("mount")
	require.ErrorContains(t, err, "no block device")
}

func TestAVolumeGrowsWhileItIsInUse(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	first, err := l.verb("mount")
	require.NoError(t, err)
	f, err := os.Create(l.Path(wire.VolumeDir(loopVolume) + "/open"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, os.Truncate(l.file, 4*smallVolume))
	l.run("losetup", "--set-capacity", l.device)
	if may(t, unix.CAP_SYS_RESOURCE) {
		for range 2 {
			got, err := l.verb("grow")
			require.NoError(t, err)
			require.Greater(t, got.SizeBytes, 3*first.SizeBytes)
		}
	} else { // as in some containers: it can be used as it is
		_, err := l.verb("grow")
		require.ErrorContains(t, err, "Permission denied to resize")
		got, err := l.verb("mount")
		require.NoError(t, err)
		require.Equal(t, first.SizeBytes, got.SizeBytes)
	}
	_, err = f.WriteString("still writable")
	require.NoError(t, err)
}

// may reports whether this process has a capability.
func may(t *testing.T, capability uint) bool {
	t.Helper()
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]))
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

//nolint:paralleltest // its process would have copies of other tests' mounts, and keep their devices in use
func TestAVolumeInUseIsNotUnmounted(t *testing.T) {
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	l.write("file", "x")
	// What an engine does: a part of it, mounted where only its container sees it.
	target := t.TempDir()
	holder := exec.Command("unshare", "--mount", "--propagation", "private",
		"sh", "-c", `mount --bind "$1/prego" "$2" && umount "$1" && echo ready && read -r _`, "sh", l.Path(wire.VolumeMount(loopVolume)), target)
	in, err := holder.StdinPipe()
	require.NoError(t, err)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	holder.Stderr = os.Stderr
	require.NoError(t, holder.Start())
	ready := make([]byte, 5)
	_, err = out.Read(ready)
	require.NoError(t, err)
	require.Equal(t, "ready", string(ready))

	_, err = l.verb("unmount")
	require.ErrorContains(t, err, "is in use")
	require.DirExists(t, l.Path(wire.VolumeDir(loopVolume)), "it is still mounted")
	require.NoError(t, in.Close())
	_ = holder.Wait()

	f, err := os.Open(l.Path(wire.VolumeDir(loopVolume) + "/file"))
	require.NoError(t, err)
	_, err = l.verb("unmount")
	require.ErrorIs(t, err, syscall.EBUSY)
	require.NoError(t, f.Close())
	_, err = l.verb("unmount")
	require.NoError(t, err)
}

func TestVolumesAreThereAgainAfterAReboot(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	l.write("kept", "data")
	l.reboot()
	require.NoDirExists(t, l.Path(wire.VolumeDir(loopVolume)))
	d := NewDevices(l.Host, "", slog.New(slog.DiscardHandler))
	d.restore(t.Context())
	require.FileExists(t, l.Path(wire.VolumeDir(loopVolume)+"/kept"))

	_, err = l.verb("unmount")
	require.NoError(t, err)
	d.restore(t.Context())
	require.NoDirExists(t, l.Path(wire.VolumeDir(loopVolume)), "an unmounted volume stays unmounted")
	l.run("wipefs", "--all", l.device)
	require.NoError(t, l.remember(rememberedVolume+loopVolume))
	d.restore(t.Context())
	require.NoDirExists(t, l.Path(wire.VolumeDir(loopVolume)), "a boot makes no file system")
}

func TestVolumeVerbsAreClosed(t *testing.T) {
	t.Parallel()
	h := Here(&host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server, Role: "app"}})
	for _, args := range [][]string{{"mount", "../etc"}, {"mount", "0"}, {"mount"}, {"remount", "7"}, {"mount", "7", "8"}, {"format", "7"}} {
		require.ErrorContains(t, h.Device(t.Context(), wire.KindVolume, args, nil, nil), "may not be called like this", "%v", args)
	}
	require.ErrorContains(t, h.Device(t.Context(), wire.KindBench, []string{"list-sites"}, nil, nil),
		"only handles volumes and addresses")
	for _, a := range []string{"127.0.0.300", "0.0.0.0", "224.0.0.1"} {
		require.Error(t, h.Device(t.Context(), wire.KindAddress, []string{"add", a}, nil, nil), a)
	}
}
