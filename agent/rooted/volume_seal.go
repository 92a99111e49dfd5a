package rooted

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/tree"
	"github.com/prego/prego/agent/wire"
)

// Backups of volumes are sealed into files on the host's own disk, never on the volume, and are
// uploaded from there: nothing waits for the network while a file system is frozen.

// sealedFor is how long forgotten parts of a backup stay on a host.
const sealedFor = 48 * time.Hour

// leastRoom is what a host's own disk keeps free during any backup: at least so many bytes, and a twentieth of it.
const leastRoom = 1 << 30

// inUse is what this process does on volumes, by their mount points.
var inUse sealings

// sealings are the volumes that are being read or restored, and how to end that.
type sealings struct {
	mu  sync.Mutex
	now map[string]*sealing
}

type sealing struct {
	cancel context.CancelCauseFunc
	ended  chan struct{}
}

var errInterrupted = &seal.Failure{Code: wire.FailedInterrupts, Err: errors.New("the volume is wanted elsewhere")}

// with runs f exclusively on a volume, after any running one.
func (s *sealings) with(ctx context.Context, id string, f func(context.Context) error) error {
	for {
		s.mu.Lock()
		there := s.now[id]
		if there == nil {
			ctx, cancel := context.WithCancelCause(ctx)
			mine := &sealing{cancel: cancel, ended: make(chan struct{})}
			if s.now == nil {
				s.now = make(map[string]*sealing)
			}
			s.now[id] = mine
			s.mu.Unlock()
			defer func() {
				s.mu.Lock()
				delete(s.now, id)
				s.mu.Unlock()
				close(mine.ended)
				cancel(nil)
			}()
			return f(ctx)
		}
		s.mu.Unlock()
		select {
		case <-there.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end ends the work on a volume, and returns when there is none: unmounting has priority.
func (s *sealings) end(ctx context.Context, id string) error {
	s.mu.Lock()
	there := s.now[id]
	s.mu.Unlock()
	if there == nil {
		return nil
	}
	there.cancel(errInterrupted)
	select {
	case <-there.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Machine) sealedDir() string { return filepath.Join(h.Path(wire.DevicesDir), "sealed") }

func sealedName(id, name string) string { return id + "." + name + ".age" }

// sealed opens the directory of sealed backups.
func (h *Machine) sealed() (*os.Root, error) {
	if err := os.MkdirAll(h.sealedDir(), 0o700); err != nil {
		return nil, seal.OfDisk(err)
	}
	return os.OpenRoot(h.sealedDir())
}

// dropSealed deletes the files of a volume's backup.
func (h *Machine) dropSealed(id, name string) error {
	all, err := filepath.Glob(filepath.Join(h.sealedDir(), id+"."+name+".age*"))
	for _, f := range all {
		err = errors.Join(err, os.Remove(f))
	}
	return errors.Join(err, os.RemoveAll(h.triedDir(id, name)))
}

// dropBefore deletes the files of a volume's earlier backups before the next one: of drills if it is for one, and of
// all except drills if it is not.
func (h *Machine) dropBefore(id, name string) error {
	all, err := filepath.Glob(filepath.Join(h.sealedDir(), id+".*.age*"))
	for _, f := range all {
		if forDrill(strings.TrimPrefix(filepath.Base(f), id+".")) == forDrill(name) {
			err = errors.Join(err, os.Remove(f))
		}
	}
	return err
}

// forDrill reports by the name of a sealed backup whether it is only tried.
func forDrill(name string) bool { return strings.HasPrefix(name, wire.DrillPrefix) }

// sweepSealed deletes forgotten files.
func (h *Machine) sweepSealed(now time.Time) {
	all, _ := filepath.Glob(filepath.Join(h.sealedDir(), "*.age*"))
	for _, f := range all {
		if info, err := os.Stat(f); err == nil && now.Sub(info.ModTime()) > sealedFor {
			_ = os.Remove(f)
		}
	}
}

// thawAll thaws every volume of the host: a process that froze one may have been killed together with its thawing
// process.
func (h *Machine) thawAll() error {
	var all error
	for _, id := range h.remembered(rememberedVolume) {
		v := attached{host: h, id: id, at: h.Path(wire.VolumeMount(id))}
		if there, err := v.mountAt(); err != nil || there == nil {
			continue
		}
		fd, err := unix.Open(v.at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(thaw(fd), unix.Close(fd))
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("volume %s: %w", id, err))
		}
	}
	return all
}

// roomy writes to a file as long as its disk has more than some room.
type roomy struct {
	f    *os.File
	left int64 // until the disk is asked again
	keep int64
}

func (r *roomy) Write(p []byte) (int, error) {
	if r.left -= int64(len(p)); r.left < 0 {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(r.f.Fd()), &st); err != nil {
			return 0, err
		}
		free, keep := room(&st, r.keep)
		if free-int64(len(p)) < keep {
			return 0, seal.Failed(wire.FailedDiskFull,
				"the host's own disk has %d MB free, %d must stay free", free>>20, keep>>20)
		}
		r.left = min(16<<20, (free-keep)/2)
	}
	n, err := r.f.Write(p)
	return n, seal.OfDisk(err)
}

// room is how many bytes of a file system are free, and how many of them are kept so.
func room(st *unix.Statfs_t, least int64) (free, keep int64) {
	return int64(st.Bavail) * st.Bsize, max(least, int64(st.Blocks)*st.Bsize/20) //nolint:gosec // far below 2^63
}

// spare is how many bytes of the host's own disk stay free at least.
func (h *Machine) spare() int64 { return cmp.Or(h.keepFree, leastRoom) }

// hold opens the directory of a mounted volume that containers have; with it open the volume is not unmounted.
func (v *attached) hold() (*os.File, error) {
	if err := v.open(); err != nil {
		return nil, seal.Failed(wire.FailedNoVolume, "%w", err)
	}
	if !v.directory {
		if err := v.check(); err != nil {
			return nil, seal.Failed(wire.FailedNoVolume, "%w", err)
		}
	}
	dir, err := os.Open(v.host.Path(wire.VolumeDir(v.id)))
	if err != nil {
		return nil, seal.Failed(wire.FailedNoVolume, "%w", err)
	}
	return dir, nil
}

// seal writes a volume's files of one moment into a sealed file. An existing file is the answer to a repeated call.
func (v *attached) seal(ctx context.Context, name, recipient string, out io.Writer) error {
	to, err := seal.Recipient(recipient)
	if err != nil {
		return err
	}
	dir, err := v.hold()
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	file := filepath.Join(v.host.sealedDir(), sealedName(v.id, name))
	report := wire.SealedVolume{SealedBackup: wire.SealedBackup{Name: name, Recipient: recipient, Files: []wire.SealedFile{}}}
	var there wire.SealedVolume
	if text, err := os.ReadFile(file + ".json"); err == nil && json.Unmarshal(text, &there) == nil && there.Recipient == recipient {
		return json.NewEncoder(out).Encode(there)
	}
	if err := os.MkdirAll(v.host.sealedDir(), 0o700); err != nil {
		return err
	}
	if err := v.host.dropBefore(v.id, name); err != nil {
		return err
	}
	draft, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = seal.Write(&roomy{f: draft, keep: v.host.spare()}, to, &report.SealedBackup, func(archive *tar.Writer) error {
		made, err := tree.Archive(ctx, v.source(dir), archive)
		report.Entries, report.Content, report.Passes, report.Skipped = made.Entries, made.Bytes, len(made.Passes), made.Skipped
		report.Frozen, report.FrozenMS, report.TakenAt = made.Frozen, made.FrozenMS, made.TakenAt
		if n := len(made.Passes); n > 0 {
			report.Last = made.Passes[n-1]
		}
		return err
	})
	if err = errors.Join(err, draft.Sync(), draft.Close()); err != nil {
		return errors.Join(err, v.host.dropSealed(v.id, name))
	}
	text, err := json.Marshal(report)
	if err == nil {
		err = host.WriteFile(file+".json", text, 0o600)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(report)
}

// source is a volume as something to archive.
func (v *attached) source(dir *os.File) tree.Source {
	s := tree.Source{Dir: dir, Sync: func() error { return unix.Syncfs(int(dir.Fd())) }, During: v.host.duringFreeze}
	if !v.directory { // which is a part of a file system that others need
		s.Freeze = func(ctx context.Context) (tree.Still, error) {
			f, err := freeze(ctx, dir, longestFreeze)
			if err != nil { // not a nil pointer in an interface
				return nil, err
			}
			return f, nil
		}
	}
	return s
}

// What a restore has on the volume beside the files that containers have.
const (
	arriving = ".prego-arriving" // until all of it is verified
	replaced = ".prego-replaced" // the previous files, until they are deleted
)

// openSealed restores a sealed backup: beside the present files, and in their place once all of it was read again and
// verified. If anything is wrong, the present files stay.
func (v *attached) openSealed(ctx context.Context, name, sum, plainSum, identity string, out io.Writer) error {
	key, err := seal.Identity(identity)
	if err != nil {
		return err
	}
	dir, err := v.hold()
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if held, err := heldElsewhere(v.number); !v.directory && (err != nil || held != "") {
		return errors.Join(err, fmt.Errorf("volume %s is in use: process %s has a part of it mounted", v.id, held))
	}
	base := filepath.Dir(v.host.Path(wire.VolumeDir(v.id)))
	final, next, before := v.host.Path(wire.VolumeDir(v.id)), filepath.Join(base, arriving), filepath.Join(base, replaced)
	done := func(n int) error {
		return json.NewEncoder(out).Encode(wire.OpenedVolume{Name: name, Entries: n})
	}
	// The last word of a restore that was cut off is on the volume, beside what it restored.
	if text, err := os.ReadFile(filepath.Join(base, ".prego-restored")); err == nil {
		var n int
		if was, count, ok := strings.Cut(string(text), " "); ok && was == name {
			if _, err := fmt.Sscan(count, &n); err == nil {
				return errors.Join(os.RemoveAll(before), v.host.dropSealed(v.id, name), done(n))
			}
		}
	}
	f, err := v.checkedSeal(name, sum)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	restored, err := v.extract(ctx, f, key, plainSum, next)
	if err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	if err := os.RemoveAll(before); err != nil {
		return err
	}
	// Exchanged atomically: the directory is never missing.
	if err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, final, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	if err := os.Rename(next, before); err != nil {
		return err
	}
	if err := host.WriteFile(filepath.Join(base, ".prego-restored"), fmt.Appendf(nil, "%s %d", name, restored.Entries()), 0o600); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(before), v.host.dropSealed(v.id, name), done(restored.Entries()))
}

// checkedSeal opens a sealed backup whose digest is that one.
func (v *attached) checkedSeal(name, sum string) (*os.File, error) {
	root, err := v.host.sealed()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return seal.Open(root, sealedName(v.id, name), name, sum)
}

// extract decrypts an archive into a directory, and compares it with its list.
func (v *attached) extract(ctx context.Context, from io.Reader, key age.Identity, plainSum, into string) (*tree.Restored, error) {
	if err := os.Mkdir(into, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(into)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var restored *tree.Restored
	if err := seal.Read(from, key, plainSum, func(archive *tar.Reader) error {
		restored, err = tree.Extract(ctx, root, archive)
		return err
	}); err != nil {
		return nil, err
	}
	return restored, restored.Settle(ctx)
}

// writeSealed takes a piece of a sealed backup. The pieces before it must be there.
func (h *Machine) writeSealed(id, name string, offset, length int64, from io.Reader) error {
	root, err := h.sealed()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if offset == 0 {
		if err := h.dropBefore(id, name); err != nil {
			return err
		}
	}
	return seal.WritePiece(root, sealedName(id, name), name, offset, length, from, func(f *os.File) io.Writer {
		return &roomy{f: f, keep: h.spare()}
	})
}
