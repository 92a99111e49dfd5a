package rooted

import (
	"bytes"
	"context"
	big "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	agentexec "github.com/prego/prego/agent/exec"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// sealed seals the volume to a new key.
func (l *loopHost) sealed(name string) (wire.SealedVolume, *age.X25519Identity, error) {
	l.t.Helper()
	key, err := age.GenerateX25519Identity()
	require.NoError(l.t, err)
	var out bytes.Buffer
	if err := l.device1(&out, nil, "seal-volume", loopVolume, name, key.Recipient().String()); err != nil {
		return wire.SealedVolume{}, key, err
	}
	var made wire.SealedVolume
	require.NoError(l.t, json.Unmarshal(out.Bytes(), &made))
	return made, key, nil
}

func (l *loopHost) device1(out io.Writer, secrets map[string]string, args ...string) error {
	return l.Device(context.Background(), wire.KindVolume, args, secrets, out)
}

// opened restores a sealed backup onto the volume.
func (l *loopHost) opened(name string, made wire.SealedVolume, key *age.X25519Identity) error {
	l.t.Helper()
	return l.device1(io.Discard, map[string]string{wire.SecretBackupIdentity: key.String()}, "open-volume", loopVolume, name, wire.Ungrouped(made.SHA256), wire.Ungrouped(made.PlainSHA256))
}

// dir is what containers have of the volume.
func (l *loopHost) dir() string { return l.Path(wire.VolumeDir(loopVolume)) }

// snapshot describes every file below a directory.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(name, &st))
		rel, err := filepath.Rel(dir, name)
		require.NoError(t, err)
		text := fmt.Sprintf("%o %d:%d %d", st.Mode, st.Uid, st.Gid, st.Mtim.Nano())
		switch {
		case d.Type().IsRegular():
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			text += fmt.Sprintf(" %d %d %x", st.Nlink, st.Size, policy.Digest(b))
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			require.NoError(t, err)
			text += " " + to
		}
		if list := make([]byte, 1024); d.Type()&fs.ModeSymlink == 0 {
			n, err := unix.Listxattr(name, list)
			require.NoError(t, err)
			for x := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
				value := make([]byte, 1024)
				if n, err := unix.Getxattr(name, x, value); err == nil && x != "" {
					text += fmt.Sprintf(" %s=%x", x, value[:n])
				}
			}
		}
		out[rel] = text
		return nil
	}))
	return out
}

func TestAVolumeComesBackAsItWas(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	dir := l.dir()
	require.NoError(t, os.MkdirAll(dir+"/a/deep/er", 0o2751))
	require.NoError(t, os.Chmod(dir+"/a", 0o751|fs.ModeSetgid))
	l.write("plain", "text")
	l.write("a/first", "one file, two names")
	require.NoError(t, os.Link(dir+"/a/first", dir+"/a/deep/second"))
	require.NoError(t, os.Symlink("../plain", dir+"/a/link"))
	require.NoError(t, os.Symlink("/etc/shadow", dir+"/out"))
	require.NoError(t, unix.Mkfifo(dir+"/pipe", 0o640))
	l.write("odd \n\xff name", "x")
	l.write("tool", "#!/bin/true")
	require.NoError(t, os.Chown(dir+"/tool", 70, 80))
	require.NoError(t, os.Chmod(dir+"/tool", 0o755|fs.ModeSetuid))
	require.NoError(t, unix.Setxattr(dir+"/plain", "user.note", []byte("kept\x00too"), 0))
	require.NoError(t, unix.Setxattr(dir+"/a", "user.dir", []byte("1"), 0))
	sparse, err := os.Create(dir + "/holes")
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("middle"), 20<<20)
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1<<40))
	require.NoError(t, sparse.Close())
	require.NoError(t, os.Truncate(dir+"/holes", 40<<20)) // so that this test can read it
	past := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	require.NoError(t, os.Chtimes(dir+"/plain", past, past))
	require.NoError(t, os.Chtimes(dir+"/a/deep", past, past))
	before := snapshot(t, dir)

	made, _, err := l.sealed("bak-1")
	require.NoError(t, err)
	require.True(t, made.Frozen)
	require.Equal(t, len(before), made.Entries)
	require.Less(t, made.Bytes, int64(1<<20), "holes are not in it")
	again, _, err := l.sealed("bak-2")
	require.NoError(t, err)
	require.NotEqual(t, made.Recipient, again.Recipient)
	_, err = os.Stat(filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-1")))
	require.ErrorIs(t, err, fs.ErrNotExist, "a host has one backup of a volume at a time")
	made, key, err := l.sealed("bak-3")
	require.NoError(t, err)

	// The restore removes later files, and brings deleted ones back.
	require.NoError(t, os.RemoveAll(dir+"/a"))
	l.write("a", "a file where a directory was")
	l.write("later", "x")
	require.NoError(t, l.opened("bak-3", made, key))
	require.Equal(t, before, snapshot(t, dir))
	require.NoError(t, l.opened("bak-3", made, key), "a repeated call")
	one, err := os.Stat(dir + "/a/first")
	require.NoError(t, err)
	two, err := os.Stat(dir + "/a/deep/second")
	require.NoError(t, err)
	require.True(t, os.SameFile(one, two))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir+"/holes", &st))
	require.Less(t, st.Blocks*512, int64(1<<20), "its holes are holes")
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	for _, e := range left {
		require.NotContains(t, []string{arriving, replaced}, e.Name())
	}
}

// pairs writes to two files at a time what belongs together: a log with a checksum, then the data
// that it announces, in place, as databases do. It also moves, links and deletes files.
type pairs struct {
	dir  string
	n    atomic.Int64
	stop chan struct{}
	done sync.WaitGroup
	t    *testing.T
}

const pairBytes = 64 << 10

func newPairs(t *testing.T, dir string) *pairs {
	t.Helper()
	p := &pairs{dir: dir, stop: make(chan struct{}), t: t}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, f := range []string{"log", "data"} {
		require.NoError(t, os.WriteFile(dir+"/"+f, make([]byte, pairBytes), 0o600))
	}
	require.NoError(t, os.WriteFile(dir+"/mapped", make([]byte, pairBytes), 0o600))
	return p
}

// write continues until it is stopped.
func (p *pairs) write() {
	defer p.done.Done()
	open := func(name string) *os.File {
		f, err := os.OpenFile(p.dir+"/"+name, os.O_RDWR, 0)
		if err != nil {
			p.t.Error(err)
		}
		return f
	}
	log, data, mapped := open("log"), open("data"), open("mapped")
	defer func() { _, _, _ = log.Close(), data.Close(), mapped.Close() }()
	memory, err := unix.Mmap(int(mapped.Fd()), 0, pairBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer func() { _ = unix.Munmap(memory) }()
	buf := make([]byte, pairBytes)
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		n := p.n.Add(1)
		for i := 0; i < len(buf); i += 8 {
			big.BigEndian.PutUint64(buf[i:], uint64(n))
		}
		_, err1 := log.WriteAt(buf, 0)
		_, err2 := data.WriteAt(buf, 0)
		big.BigEndian.PutUint64(memory, uint64(n))
		big.BigEndian.PutUint64(memory[pairBytes-8:], uint64(n))
		// A file that is replaced by renaming, and one whose number is in its name.
		err3 := os.WriteFile(p.dir+"/new", buf[:8], 0o600)
		err4 := os.Rename(p.dir+"/new", p.dir+"/current")
		err5 := os.WriteFile(fmt.Sprintf("%s/seg-%d", p.dir, n), buf[:8], 0o600)
		_ = os.Remove(fmt.Sprintf("%s/seg-%d", p.dir, n-3))
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			p.t.Error(err)
			return
		}
	}
}

// check reads a restored directory, and returns its moment.
func (p *pairs) check(t *testing.T, dir string) int64 {
	t.Helper()
	first := func(name string) int64 {
		b, err := os.ReadFile(dir + "/" + name)
		require.NoError(t, err)
		return int64(big.BigEndian.Uint64(b))
	}
	// All of log is at n or, with its beginning at n, still partly at n-1: then data is not at n.
	log, err := os.ReadFile(dir + "/log")
	require.NoError(t, err)
	data, err := os.ReadFile(dir + "/data")
	require.NoError(t, err)
	at := func(b []byte, i int) int64 { return int64(big.BigEndian.Uint64(b[i:])) }
	last := pairBytes - 8
	n := at(log, 0)
	require.LessOrEqual(t, n-at(log, last), int64(1), "the log is of two moments")
	require.LessOrEqual(t, at(data, 0), at(log, last), "data is newer than its log")
	require.GreaterOrEqual(t, at(data, 0), n-1, "data is older than its log")
	require.GreaterOrEqual(t, at(data, last), at(data, 0)-1)
	require.LessOrEqual(t, at(data, last), at(data, 0))
	m, err := os.ReadFile(dir + "/mapped")
	require.NoError(t, err)
	require.LessOrEqual(t, at(m, 0), at(data, last), "the memory map is no newer than the earlier writes")
	require.GreaterOrEqual(t, at(m, 0), n-1)
	require.LessOrEqual(t, at(m, 0)-at(m, last), int64(1))
	current := first("current")
	require.LessOrEqual(t, current, at(m, last))
	require.GreaterOrEqual(t, current, n-1)
	segments, err := filepath.Glob(dir + "/seg-*")
	require.NoError(t, err)
	require.LessOrEqual(t, len(segments), 4, "deleted files are back: %v", segments)
	require.GreaterOrEqual(t, len(segments), 1)
	return n
}

// TestAVolumeIsOfOneMoment: during writes, the restored files could have been on the disk after a power cut.
func TestAVolumeIsOfOneMoment(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, 2*smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	p := newPairs(t, l.dir()+"/db")
	for i := range 40 { // so that the first pass takes a while
		b := bytes.Repeat(fmt.Appendf(nil, "%016d", i), 16<<10)
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/bulk-%02d", l.dir(), i), b, 0o600))
	}
	p.done.Add(1)
	go p.write()
	require.Eventually(t, func() bool { return p.n.Load() > 10 }, 10*time.Second, time.Millisecond)
	type backup struct {
		made wire.SealedVolume
		key  *age.X25519Identity
		file []byte
		n    int64
	}
	var all []backup
	for i := range 4 {
		before := p.n.Load()
		made, key, err := l.sealed(fmt.Sprintf("bak-%d", i))
		require.NoError(t, err)
		require.True(t, made.Frozen)
		require.GreaterOrEqual(t, made.Passes, 2)
		t.Logf("pass %d of %d bytes, frozen for %d ms", made.Passes, made.Last, made.FrozenMS)
		require.Greater(t, p.n.Load(), before, "it was written to meanwhile")
		file, err := os.ReadFile(filepath.Join(l.sealedDir(), sealedName(loopVolume, made.Name)))
		require.NoError(t, err)
		all = append(all, backup{made, key, file, before})
	}
	close(p.stop)
	p.done.Wait()
	for _, b := range all {
		require.NoError(t, os.WriteFile(filepath.Join(l.sealedDir(), sealedName(loopVolume, b.made.Name)), b.file, 0o600))
		require.NoError(t, l.opened(b.made.Name, b.made, b.key))
		n := p.check(t, l.dir()+"/db")
		require.GreaterOrEqual(t, n, b.n, "it is not older than the backup")
	}
}

// TestHalfAVolumeIsNeverRestored: every kind of damage to a backup is found and named, and the volume stays as it is.
func TestHalfAVolumeIsNeverRestored(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	l.write("kept", strings.Repeat("before ", 10_000))
	made, key, err := l.sealed("bak-1")
	require.NoError(t, err)
	good, err := os.ReadFile(filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-1")))
	require.NoError(t, err)
	l.write("kept", "after")
	now := snapshot(t, l.dir())
	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	sums := func(b []byte) wire.SealedVolume { // of a backup whose object was changed before it was stored
		out := made
		out.SHA256 = policy.Digest(b)
		return out
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	for what, c := range map[string]struct {
		file []byte
		made wire.SealedVolume
		key  *age.X25519Identity
		code string
	}{
		"a flipped bit":                          {flipped, made, key, wire.FailedDigest},
		"a flipped bit, with its digest":         {flipped, sums(flipped), key, wire.FailedUnreadable},
		"a part is missing":                      {good[:len(good)/2], made, key, wire.FailedDigest},
		"a part is missing, with its digest":     {good[:len(good)/2], sums(good[:len(good)/2]), key, wire.FailedUnreadable},
		"another key":                            {good, made, other, wire.FailedUnreadable},
		"nothing came":                           {nil, made, key, wire.FailedNoBackup},
		"another archive, encrypted to this key": {good, func() wire.SealedVolume { m := made; m.PlainSHA256 = policy.Digest(nil); return m }(), key, wire.FailedDigest},
	} {
		require.NoError(t, l.dropSealed(loopVolume, "bak-1"))
		if c.file != nil {
			require.NoError(t, os.WriteFile(filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-1")), c.file, 0o600))
		}
		err := l.opened("bak-1", c.made, c.key)
		require.ErrorContains(t, err, "volume: "+c.code+": ", what)
		require.Equal(t, now, snapshot(t, l.dir()), what)
		require.NoDirExists(t, filepath.Dir(l.dir())+"/"+arriving, what)
	}
	require.NoError(t, os.WriteFile(filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-1")), good, 0o600))
	require.NoError(t, l.opened("bak-1", made, key))
	b, err := os.ReadFile(l.dir() + "/kept")
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("before ", 10_000), string(b))
}

// TestABackupLeavesTheHostItsRoom: a backup does not fill the host's own disk, and a volume without room for a
// restore beside its files stays as it is.
func TestABackupLeavesTheHostItsRoom(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	random, err := os.Open("/dev/urandom")
	require.NoError(t, err)
	defer func() { _ = random.Close() }()
	f, err := os.Create(l.dir() + "/large")
	require.NoError(t, err)
	_, err = io.CopyN(f, random, 30<<20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	l.keepFree = 1 << 60
	_, _, err = l.sealed("bak-1")
	require.ErrorContains(t, err, "volume: "+wire.FailedDiskFull+": the host's own disk")
	left, err := filepath.Glob(l.sealedDir() + "/*")
	require.NoError(t, err)
	require.Empty(t, left)
	require.ErrorContains(t, l.Piece([]string{"--volume", loopVolume, policy.VerbWriteSealed, "bak-1", "0", "5"}, strings.NewReader("hello"), io.Discard), wire.FailedDiskFull)
	l.keepFree = 0
	made, key, err := l.sealed("bak-1")
	require.NoError(t, err)
	now := snapshot(t, l.dir())
	require.ErrorContains(t, l.opened("bak-1", made, key), "volume: "+wire.FailedDiskFull+": ", "30 MB twice")
	require.Equal(t, now, snapshot(t, l.dir()))
	require.NoDirExists(t, filepath.Dir(l.dir())+"/"+arriving)
}

// sealerVerb makes this program an agent that seals a volume and stops while it is frozen.
const sealerVerb = "seal-and-stop"

func sealAndStop(args []string) int {
	h := Here(&host.Host{Root: args[0], Config: wire.HostConfig{ServerID: agenttest.Server, Role: "app"}})
	h.duringFreeze = func() {
		fmt.Println("frozen")
		select {}
	}
	key, _ := age.GenerateX25519Identity()
	err := h.Device(context.Background(), wire.KindVolume, []string{"seal-volume", loopVolume, "bak-1", key.Recipient().String()}, nil, io.Discard)
	fmt.Println(err)
	return 1
}

// TestADeadAgentLeavesNothingFrozen: if any process is killed while a volume is frozen, it can be written to again
// seconds later.
//
//nolint:paralleltest // its processes would have copies of other tests' mounts
func TestADeadAgentLeavesNothingFrozen(t *testing.T) {
	for _, c := range []struct {
		what   string
		freeze bool // the process that keeps it frozen is also killed
	}{{"the agent", false}, {"the agent and the thawing process", true}} {
		t.Run(c.what, func(t *testing.T) {
			l := newLoopHost(t, smallVolume)
			_, err := l.verb("mount")
			require.NoError(t, err)
			l.write("file", "x")
			me, err := os.Executable()
			require.NoError(t, err)
			agent := exec.Command(me, sealerVerb, l.Root)
			out, err := agent.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, agent.Start())
			word := make([]byte, 6)
			_, err = io.ReadFull(out, word)
			require.NoError(t, err)
			require.Equal(t, "frozen", string(word))
			wrote := make(chan error, 1)
			go func() { wrote <- os.WriteFile(l.dir()+"/after", []byte("y"), 0o600) }()
			select {
			case <-wrote:
				t.Fatal("it is not frozen")
			case <-time.After(200 * time.Millisecond):
			}
			began := time.Now()
			if c.freeze {
				children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", agent.Process.Pid, agent.Process.Pid))
				require.NoError(t, err)
				pids := strings.Fields(string(children))
				for _, task := range tasks(t, agent.Process.Pid) {
					b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", agent.Process.Pid, task))
					pids = append(pids, strings.Fields(string(b))...)
				}
				require.NotEmpty(t, pids)
				for _, p := range pids {
					var pid int
					_, err := fmt.Sscan(p, &pid)
					require.NoError(t, err)
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			require.NoError(t, agent.Process.Kill())
			_ = agent.Wait()
			if c.freeze { // as the service manager's next one does first
				require.NoError(t, l.thawAll())
			}
			select {
			case err := <-wrote:
				require.NoError(t, err)
			case <-time.After(longestFreeze / 2):
				_ = l.thawAll()
				t.Fatal("it is still frozen")
			}
			t.Logf("written to again after %s", time.Since(began))
		})
	}
}

func tasks(t *testing.T, pid int) (out []string) {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	require.NoError(t, err)
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}

// TestAFreezeHasAnEnd: a pass that takes too long is no backup, and does not block the volume.
func TestAFreezeHasAnEnd(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	dir, err := os.Open(l.dir())
	require.NoError(t, err)
	defer func() { _ = dir.Close() }()
	still, err := freeze(t.Context(), dir, 300*time.Millisecond)
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, os.WriteFile(l.dir()+"/waits", []byte("x"), 0o600))
	require.Less(t, time.Since(began), 5*time.Second)
	_, err = still.Release()
	require.ErrorContains(t, err, wire.FailedNotStill+": ")
	still, err = freeze(t.Context(), dir, time.Minute)
	require.NoError(t, err)
	require.NoError(t, still.cmd.Process.Kill())
	_, err = still.Release()
	require.ErrorContains(t, err, "is gone", "a backup that was not frozen all the time is none")
	require.NoError(t, os.WriteFile(l.dir()+"/thawed", []byte("x"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = freeze(ctx, dir, time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, os.WriteFile(l.dir()+"/thawed", []byte("y"), 0o600))
}

// TestDevicesSealForTheExecutor: over its socket, as on a host, piece by piece; a caller that goes
// ends its backup, and so does an unmount.
func TestDevicesSealForTheExecutor(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	l.write("file", strings.Repeat("content ", 100_000))
	before := snapshot(t, l.dir())
	d := NewDevices(l.Host, "", slog.New(slog.DiscardHandler))
	d.host = l.Machine
	ctx, stop := context.WithCancel(t.Context())
	listener, err := l.Listen(wire.DevicesSocket)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, listener) }()
	socket := l.Path(wire.DevicesSocket)
	ask := func(ctx context.Context, secrets map[string]string, args ...string) (string, error) {
		var out bytes.Buffer
		err := agentexec.AskRoot(ctx, socket, host.DeviceRequest{Kind: wire.KindVolume, Args: args, Secrets: secrets}, nil, &out)
		return out.String(), err
	}
	key, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	text, err := ask(ctx, nil, "seal-volume", loopVolume, "bak-1", key.Recipient().String())
	require.NoError(t, err)
	var made wire.SealedVolume
	require.NoError(t, json.Unmarshal([]byte(text), &made))
	piece := func(verb, name string, from io.Reader, to io.Writer, offset, length int64) error {
		return agentexec.AskRoot(ctx, socket, host.DeviceRequest{Kind: policy.KindSpool, Args: []string{"--volume", loopVolume, verb, name, fmt.Sprint(offset), fmt.Sprint(length)}}, from, to)
	}
	var first, second bytes.Buffer
	half := made.Bytes / 2
	require.NoError(t, piece(policy.VerbReadSealed, "bak-1", nil, &first, 0, half))
	require.NoError(t, piece(policy.VerbReadSealed, "bak-1", nil, &second, half, made.Bytes-half))
	require.Equal(t, wire.Ungrouped(made.SHA256), policy.Digest(append(bytes.Clone(first.Bytes()), second.Bytes()...)))
	require.ErrorContains(t, piece(policy.VerbReadSealed, "bak-1", nil, io.Discard, half, made.Bytes), wire.FailedNoBackup+": ")
	require.ErrorContains(t, piece(policy.VerbReadSealed, "bak-2", nil, io.Discard, 0, 1), wire.FailedNoBackup+": ")
	_, err = ask(ctx, nil, "drop-sealed", loopVolume, "bak-1")
	require.NoError(t, err)

	l.write("file", "another")
	require.ErrorContains(t, piece(policy.VerbWriteSealed, "rst-1", bytes.NewReader(second.Bytes()), io.Discard, half, int64(second.Len())), wire.FailedNoBackup+": ", "the first one is not there")
	require.NoError(t, piece(policy.VerbWriteSealed, "rst-1", bytes.NewReader(first.Bytes()), io.Discard, 0, half))
	require.NoError(t, piece(policy.VerbWriteSealed, "rst-1", bytes.NewReader(second.Bytes()), io.Discard, half, made.Bytes-half))
	_, err = ask(ctx, map[string]string{wire.SecretBackupIdentity: key.String()}, "open-volume", loopVolume, "rst-1", wire.Ungrouped(made.SHA256), wire.Ungrouped(made.PlainSHA256))
	require.NoError(t, err)
	require.Equal(t, before, snapshot(t, l.dir()))

	frozen, goOn := make(chan struct{}), make(chan struct{})
	l.duringFreeze = func() {
		close(frozen)
		<-goOn
	}
	asking, gone := context.WithCancel(ctx)
	sealing := make(chan error, 1)
	go func() {
		_, err := ask(asking, nil, "seal-volume", loopVolume, "bak-3", key.Recipient().String())
		sealing <- err
	}()
	<-frozen
	gone()
	require.Error(t, <-sealing)
	require.NoError(t, os.WriteFile(l.dir()+"/thawed", []byte("x"), 0o600), "an abandoned backup blocks no writer")
	close(goOn)
	_, err = ask(ctx, nil, "unmount", loopVolume)
	require.NoError(t, err)
	left, err := filepath.Glob(l.sealedDir() + "/*bak-3*")
	require.NoError(t, err)
	require.Empty(t, left)
	stop()
	require.NoError(t, <-ended)
}

// TestAVolumeThatIsWantedIsNotBackedUp: who unmounts it goes first.
func TestAVolumeThatIsWantedIsNotBackedUp(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	l.write("file", "x")
	sealing := make(chan error, 1)
	hold := make(chan struct{})
	go func() {
		sealing <- inUse.with(t.Context(), l.Path(wire.VolumeMount(loopVolume)), func(ctx context.Context) error {
			close(hold)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	<-hold
	require.NoError(t, inUse.end(t.Context(), l.Path(wire.VolumeMount(loopVolume))))
	require.ErrorContains(t, <-sealing, wire.FailedInterrupts)
	_, err = l.verb("unmount")
	require.NoError(t, err)
	_, _, err = l.sealed("bak-1")
	require.ErrorContains(t, err, "volume: "+wire.FailedNoVolume+": ")
}

// TestABackupIsTriedAsideAndThrownAway: on a host without the volume, beside a backup of the same volume that is
// being made there. Damage and lack of room have different codes.
func TestABackupIsTriedAsideAndThrownAway(t *testing.T) {
	t.Parallel()
	l := newLoopHost(t, smallVolume)
	_, err := l.verb("mount")
	require.NoError(t, err)
	l.write("plain", "text")
	require.NoError(t, os.MkdirAll(l.dir()+"/deep", 0o750))
	l.write("deep/tool", strings.Repeat("x", 5000))
	require.NoError(t, os.Chown(l.dir()+"/deep/tool", 70, 80))
	made, key, err := l.sealed("bak-1")
	require.NoError(t, err)
	sealed, err := os.ReadFile(filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-1")))
	require.NoError(t, err)

	const drill = wire.DrillPrefix + "1"
	at := Here(&host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server, Role: "app"}})
	at.keepFree = 1
	bring := func(h *Machine, content []byte) {
		t.Helper()
		require.NoError(t, h.Piece([]string{"--volume", loopVolume, policy.VerbWriteSealed, drill, "0", fmt.Sprint(len(content))}, bytes.NewReader(content), io.Discard))
	}
	try := func(h *Machine, key *age.X25519Identity, name, sum, plainSum string, size int64) (out wire.OpenedVolume, err error) {
		t.Helper()
		var text bytes.Buffer
		err = h.Device(context.Background(), wire.KindVolume, []string{"try-volume", loopVolume, name, wire.Ungrouped(sum), wire.Ungrouped(plainSum), fmt.Sprint(size), fmt.Sprint(made.Entries)},
			map[string]string{wire.SecretBackupIdentity: key.String()}, &text)
		if err == nil {
			require.NoError(t, json.Unmarshal(text.Bytes(), &out))
		}
		left, globErr := filepath.Glob(h.allTried() + "/*")
		require.NoError(t, globErr)
		require.Empty(t, left, "it is thrown away, however it ended")
		return out, err
	}
	bring(at, sealed)
	for range 2 { // a repeated call
		found, err := try(at, key, drill, made.SHA256, made.PlainSHA256, made.PlainBytes)
		require.NoError(t, err)
		require.Equal(t, wire.OpenedVolume{Name: drill, Entries: made.Entries, Bytes: 5004}, found)
	}

	// Damaged backups.
	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	_, err = try(at, other, drill, made.SHA256, made.PlainSHA256, made.PlainBytes)
	require.ErrorContains(t, err, "volume: "+wire.FailedUnreadable+": ")
	_, err = try(at, key, drill, made.SHA256, made.SHA256, made.PlainBytes)
	require.ErrorContains(t, err, "volume: "+wire.FailedDigest+": ")
	_, err = try(at, key, drill, made.PlainSHA256, made.PlainSHA256, made.PlainBytes)
	require.ErrorContains(t, err, "volume: "+wire.FailedDigest+": ")
	_, err = try(at, key, "bak-1", made.SHA256, made.PlainSHA256, made.PlainBytes)
	require.ErrorContains(t, err, "bak-1 is no drill")
	_, err = try(at, key, wire.DrillPrefix+"2", made.SHA256, made.PlainSHA256, made.PlainBytes)
	require.ErrorContains(t, err, "volume: "+wire.FailedNoBackup+": ")

	// Want of room is not the backup's fault: before it begins, and when others fill the disk meanwhile.
	_, err = try(at, key, drill, made.SHA256, made.PlainSHA256, 1<<58)
	require.ErrorContains(t, err, "volume: "+wire.FailedDiskFull+": the host's own disk has ")
	full := &watched{f: nil, host: &Machine{Host: at.Host, keepFree: 1 << 60}, dir: at.Root}
	_, err = full.Read(make([]byte, 10))
	require.ErrorContains(t, err, wire.FailedDiskFull)
	require.Equal(t, err, full.full)

	// Beside a backup of the same volume on the same host: neither takes the other's file.
	bring(l.Machine, sealed)
	require.FileExists(t, filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-1")))
	_, _, err = l.sealed("bak-2")
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-1")))
	require.FileExists(t, filepath.Join(l.sealedDir(), sealedName(loopVolume, drill)))

	// An agent that was killed leaves something: dropped with the drill, or at the next start.
	for _, clear := range []func() error{func() error { return l.dropSealed(loopVolume, drill) }, l.sweepTried} {
		require.NoError(t, os.MkdirAll(l.triedDir(loopVolume, drill)+"/deep", 0o700))
		require.NoError(t, clear())
		require.NoDirExists(t, l.triedDir(loopVolume, drill))
	}
	require.NoFileExists(t, filepath.Join(l.sealedDir(), sealedName(loopVolume, drill)))
	require.FileExists(t, filepath.Join(l.sealedDir(), sealedName(loopVolume, "bak-2")))
}
