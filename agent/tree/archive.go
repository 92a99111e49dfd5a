package tree

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// Still is a file system without writers until it is released.
type Still interface {
	// Release returns for how long it was still; an error means that it was not still all the time.
	Release() (time.Duration, error)
}

// Source is a directory to archive.
type Source struct {
	Dir *os.File
	// Sync writes dirty pages, so that every later change of a page changes its file's times.
	Sync func() error
	// Freeze blocks all writers; nil where that is not possible: then the archive is not of one moment.
	Freeze func(context.Context) (Still, error)
	// During is called while the file system is still, by tests.
	During func()
}

// Report describes an archive.
type Report struct {
	Entries  int
	Bytes    int64   // of files, as they are in the list
	Passes   []int64 // how many bytes of files each pass archived; the last one while it was still
	Skipped  int     // sockets, devices, and mounts below
	Frozen   bool
	FrozenMS int64
	TakenAt  time.Time // of the moment
}

// Passes while it is written to continue until they archive little, or no less than the previous pass.
const (
	maxPasses  = 5
	littleLeft = 8 << 20
)

// slack is more than two clocks of one kernel differ: times of files are of the last tick.
const slack = time.Second

type archiver struct {
	source Source
	to     *tar.Writer
	known  map[string]*entry
	pass   uint32
	since  int64 // what changed from then on is archived again, in ns
	linked []linkedName
	bytes  int64
	out    Report
	buf    []byte
	still  bool
}

// linkedName is a name of a file that has several, as it was found by a pass.
type linkedName struct {
	name string
	ino  uint64
	same bool
}

// Archive writes a directory to an archive.
func Archive(ctx context.Context, source Source, to *tar.Writer) (Report, error) {
	a := &archiver{source: source, to: to, known: make(map[string]*entry), buf: make([]byte, chunk)}
	for n := range maxPasses {
		if err := a.run(ctx); err != nil {
			return a.out, err
		}
		if p := a.out.Passes; a.bytes <= littleLeft || (n > 0 && a.bytes > p[n-1]/2) {
			break
		}
	}
	if err := a.last(ctx); err != nil {
		return a.out, err
	}
	return a.out, a.list()
}

// last is the pass without writers.
func (a *archiver) last(ctx context.Context) error {
	if a.source.Freeze == nil {
		a.out.TakenAt = time.Now().UTC()
		return a.run(ctx)
	}
	if err := a.source.Sync(); err != nil { // so that there is little to write while it is still
		return err
	}
	still, err := a.source.Freeze(ctx)
	if err != nil {
		return err
	}
	a.out.TakenAt, a.still = time.Now().UTC(), true
	if a.source.During != nil {
		a.source.During()
	}
	err = a.run(ctx)
	held, lost := still.Release()
	a.out.Frozen, a.out.FrozenMS = true, held.Milliseconds()
	if lost != nil { // in spite of any other error: it was not still
		return lost
	}
	if ctx.Err() != nil { // from then on it was not, either
		return context.Cause(ctx)
	}
	return err
}

// run is one pass over the tree.
func (a *archiver) run(ctx context.Context) error {
	a.pass++
	a.bytes, a.linked, a.out.Skipped = 0, nil, 0
	began := time.Now().Add(-slack).UnixNano()
	// Before it: later writes are newer than began. Without writers nothing is dirty.
	if !a.still {
		if err := a.source.Sync(); err != nil {
			return err
		}
	}
	if err := a.directory(ctx, "."); err != nil {
		return err
	}
	if err := a.links(ctx); err != nil {
		return err
	}
	for name, e := range a.known {
		if e.pass != a.pass {
			delete(a.known, name)
		}
	}
	a.since = began
	a.out.Passes = append(a.out.Passes, a.bytes)
	return nil
}

// gone reports whether an error means that a name does not exist any more, or is something else now.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EXDEV)
}

// open opens files below the tree, and no target of a link.
func (a *archiver) open(name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(a.source.Dir.Fd()), name, &unix.OpenHow{
		Flags: flags | unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// vanished ignores missing files while the tree is written to.
func (a *archiver) vanished(err error) error {
	if gone(err) && !a.still {
		return nil
	}
	return err
}

func (a *archiver) directory(ctx context.Context, name string) error {
	dir, err := a.open(name, unix.O_DIRECTORY)
	if err != nil {
		return a.vanished(err)
	}
	below, err := a.inDirectory(ctx, dir, name)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, d := range below {
		if err := a.directory(ctx, path.Join(name, d)); err != nil {
			return err
		}
	}
	return nil
}

// inDirectory archives a directory and its content, without subdirectories.
func (a *archiver) inDirectory(ctx context.Context, dir *os.File, name string) (below []string, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return nil, err
	}
	e, _ := look(&st)
	if !a.isSame(name, &e) {
		h := e.header(name)
		if err := xattrs(dir, h); err != nil {
			return nil, a.vanished(err)
		}
		if err := a.put(name, &e, h, nil); err != nil {
			return nil, err
		}
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, a.vanished(err)
	}
	slices.Sort(names)
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), n, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			if a.vanished(err) != nil {
				return nil, err
			}
			continue
		}
		e, ok := look(&st)
		switch full := path.Join(name, n); {
		case !ok || e.kind == tar.TypeDir && a.isMount(dir, n):
			a.out.Skipped++
		case e.kind == tar.TypeDir:
			below = append(below, n)
		case e.kind == tar.TypeReg && st.Nlink > 1:
			a.linked = append(a.linked, linkedName{full, e.ino, a.isSame(full, &e)})
		case a.isSame(full, &e):
		case e.kind == tar.TypeReg:
			if err := a.file(ctx, full); err != nil {
				return nil, err
			}
		default:
			if e.kind == tar.TypeSymlink {
				if e.link, err = readlink(dir, n); err != nil {
					if a.vanished(err) != nil {
						return nil, err
					}
					continue
				}
			}
			if err := a.put(full, &e, e.header(full), nil); err != nil {
				return nil, err
			}
		}
	}
	return below, nil
}

func readlink(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	return string(buf[:max(0, n)]), err
}

// isMount reports whether something else is mounted at a directory.
func (a *archiver) isMount(dir *os.File, name string) bool {
	var here, there unix.Statx_t
	if unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO, &here) != nil || unix.Statx(int(dir.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &there) != nil {
		return false
	}
	return here.Dev_major != there.Dev_major || here.Dev_minor != there.Dev_minor
}

// isSame reports whether the archive has the present version of a name, and notes that the name exists. A file that
// changed since the last pass began may also have changed after it was read.
func (a *archiver) isSame(name string, e *entry) bool {
	old := a.known[name]
	if old == nil || !old.same(e) || e.ctime >= a.since {
		return false
	}
	old.pass = a.pass
	return true
}

// links archives files with several names: all names of a changed file.
func (a *archiver) links(ctx context.Context) error {
	changed := make(map[uint64]bool)
	for _, l := range a.linked {
		changed[l.ino] = changed[l.ino] || !l.same
	}
	first := make(map[uint64]string)
	for _, l := range a.linked {
		if !changed[l.ino] {
			continue
		}
		at, ok := first[l.ino]
		if !ok {
			if err := a.file(ctx, l.name); err != nil {
				return err
			}
			if e := a.known[l.name]; e != nil && e.pass == a.pass && e.ino == l.ino {
				first[l.ino] = l.name
			}
			continue
		}
		e := *a.known[at]
		h := e.header(l.name)
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, at, 0
		if err := a.put(l.name, &e, h, nil); err != nil {
			return err
		}
	}
	return nil
}

// put writes a header, and what follows it.
func (a *archiver) put(name string, e *entry, h *tar.Header, write func() error) error {
	if old := a.known[name]; old != nil && old.kind == tar.TypeDir && e.kind != tar.TypeDir {
		// Its content is also gone from the archive.
		maps.DeleteFunc(a.known, func(n string, _ *entry) bool { return strings.HasPrefix(n, name+"/") })
	}
	if len(a.known) >= Most {
		return seal.Failed(wire.FailedTooMany, "there are more than %d files", Most)
	}
	if err := a.to.WriteHeader(h); err != nil {
		return err
	}
	if write != nil {
		if err := write(); err != nil {
			return err
		}
	}
	e.pass = a.pass
	a.known[name] = e
	return nil
}

// file archives a regular file as it is read: a file that changes meanwhile is read again by the next pass.
func (a *archiver) file(ctx context.Context, name string) error {
	f, err := a.open(name, 0)
	if err != nil {
		return a.vanished(err)
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	e, _ := look(&st)
	if e.kind != tar.TypeReg {
		return nil // it has become something else
	}
	h := e.header(name)
	if err := xattrs(f, h); err != nil {
		return a.vanished(err)
	}
	parts := extents(f, &st)
	var before []byte
	if len(parts) != 1 || parts[0].bytes != st.Size {
		before = extentMap(parts)
		h.PAXRecords[recordSparse] = strconv.FormatInt(st.Size, 10)
		h.Size = int64(len(before))
		for _, p := range parts {
			h.Size += p.bytes
		}
	}
	return a.put(name, &e, h, func() error {
		if _, err := a.to.Write(before); err != nil {
			return err
		}
		sum := content{sha256.New()}
		for _, p := range parts {
			for done := int64(0); done < p.bytes; {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				buf := a.buf[:min(chunk, p.bytes-done)]
				n, err := readAt(f, buf, p.offset+done)
				if err != nil {
					return err
				}
				if n < len(buf) && a.still {
					return fmt.Errorf("%s has become shorter, although writes are blocked: %w",
						name, io.ErrUnexpectedEOF)
				}
				sum.add(p.offset+done, buf)
				if _, err := a.to.Write(buf); err != nil {
					return err
				}
				done += int64(len(buf))
			}
			a.bytes += p.bytes
		}
		e.sum = sum.sum()
		return nil
	})
}

// xattrs adds a file's extended attributes to its header, ACLs and capabilities among them.
func xattrs(f *os.File, h *tar.Header) error {
	names, err := xattrNames(f)
	if err != nil {
		return err
	}
	for _, name := range names {
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return err
		}
		h.PAXRecords[recordXattr+name] = string(value[:n])
	}
	return nil
}

// xattrNames lists them; none where a file system has none.
func xattrNames(f *os.File) ([]string, error) {
	buf := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(int(f.Fd()), buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	return strings.FieldsFunc(string(buf[:max(0, n)]), func(r rune) bool { return r == 0 }), err
}

// list writes the list of all files at that moment.
func (a *archiver) list() error {
	names := slices.Sorted(maps.Keys(a.known))
	size := int64(0)
	inodes := make(map[uint64]bool)
	for _, n := range names {
		e := a.known[n]
		size += int64(len(e.line(n)))
		if !inodes[e.ino] {
			inodes[e.ino] = true
			a.out.Bytes += e.size
		}
	}
	a.out.Entries = len(names)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: listName, Size: size, Mode: 0o600, Format: tar.FormatPAX, PAXRecords: map[string]string{recordList: "1"}}
	if err := a.to.WriteHeader(h); err != nil {
		return err
	}
	for _, n := range names {
		if _, err := io.WriteString(a.to, a.known[n].line(n)); err != nil {
			return err
		}
	}
	return nil
}
