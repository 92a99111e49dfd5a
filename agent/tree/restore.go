package tree

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// Restored is a tree that was read from an archive, and is not what it should be until Settle.
type Restored struct {
	root  *os.Root
	names []string
	list  map[string]*entry
	bytes int64
}

// Entries is how many files, directories and links there are.
func (r *Restored) Entries() int { return len(r.names) }

// Bytes is how many bytes of files Settle has read again; holes are none.
func (r *Restored) Bytes() int64 { return r.bytes }

func unreadable(format string, args ...any) error {
	return seal.Failed(wire.FailedUnreadable, format, args...)
}

// Extract reads an archive into an empty directory without other writers.
func Extract(ctx context.Context, root *os.Root, from *tar.Reader) (*Restored, error) {
	r := &Restored{root: root, list: make(map[string]*entry)}
	if err := seal.Entries(from, func(h *tar.Header) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if h.PAXRecords[recordList] != "" {
			return r.readList(from)
		}
		if len(r.names) > 0 {
			return unreadable("something comes after the list")
		}
		name := strings.TrimSuffix(h.Name, "/")
		if !clean(name) {
			return unreadable("%.80q is no name of a file here", h.Name)
		}
		if err := r.one(h, name, from); err != nil {
			return fmt.Errorf("%w (%s)", seal.OfDisk(err), strconv.QuoteToASCII(name))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if len(r.names) == 0 {
		return nil, unreadable("it has no list of its content")
	}
	return r, nil
}

func (r *Restored) readList(from io.Reader) error {
	in := bufio.NewReaderSize(from, 256<<10)
	for {
		text, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) && text == "" {
			return nil
		}
		if err != nil {
			return unreadable("its list: %w", err)
		}
		name, e, err := parseLine(strings.TrimSuffix(text, "\n"))
		if err != nil {
			return unreadable("%w", err)
		}
		if len(r.names) >= Most || r.list[name] != nil {
			return unreadable("its list is none")
		}
		r.names, r.list[name] = append(r.names, name), &e
	}
}

// one creates the file of one header, in place of the present one.
func (r *Restored) one(h *tar.Header, name string, from io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return r.directory(h, name)
	}
	if name == "." {
		return unreadable("the tree is no directory")
	}
	if err := r.root.RemoveAll(name); err != nil {
		return err
	}
	if err := r.parents(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return r.file(h, name, from)
	case tar.TypeLink:
		if !clean(h.Linkname) {
			return unreadable("a link to %.80q", h.Linkname)
		}
		return r.root.Link(h.Linkname, name)
	case tar.TypeSymlink:
		if err := r.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
	case tar.TypeFifo:
		if err := r.inParent(name, func(dir int, base string) error { return unix.Mknodat(dir, base, unix.S_IFIFO|0o600, 0) }); err != nil {
			return err
		}
		if err := r.inParent(name, func(dir int, base string) error {
			return unix.Fchmodat(dir, base, uint32(h.Mode)&0o7777, 0) //nolint:gosec // twelve bits
		}); err != nil {
			return err
		}
	default:
		return unreadable("it is of a type that is not archived")
	}
	return r.dress(name, h.Uid, h.Gid, h.ModTime)
}

// parents creates the directories above a name that the archive has not contained yet: they were created during
// archiving, and come later.
func (r *Restored) parents(name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	err := r.root.MkdirAll(dir, 0o700)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTDIR) {
		return unreadable("something in its path is no directory")
	}
	return err
}

// inParent calls f with the directory of a name.
func (r *Restored) inParent(name string, f func(dir int, base string) error) error {
	dir, err := r.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return f(int(dir.Fd()), path.Base(name))
}

// dress gives a name its owner and its time.
func (r *Restored) dress(name string, uid, gid int, at time.Time) error {
	return r.inParent(name, func(dir int, base string) error {
		if err := unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		return setTime(dir, base, at)
	})
}

func setTime(dir int, base string, at time.Time) error {
	t := unix.NsecToTimespec(at.UnixNano())
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}

func (r *Restored) directory(h *tar.Header, name string) error {
	if info, err := r.root.Lstat(name); err == nil && !info.IsDir() {
		if err := r.root.RemoveAll(name); err != nil {
			return err
		}
	}
	if name != "." {
		if err := r.parents(name); err != nil {
			return err
		}
		if err := r.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	dir, err := r.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	// Owner, mode and time come with the list: until then this process must get in.
	return setXattrs(dir, h)
}

// setXattrs sets a file's extended attributes from its header.
func setXattrs(f *os.File, h *tar.Header) error {
	names, err := xattrNames(f)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, stays := h.PAXRecords[recordXattr+name]; !stays {
			if err := unix.Fremovexattr(int(f.Fd()), name); err != nil && !errors.Is(err, unix.ENODATA) {
				return err
			}
		}
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, recordXattr); ok {
			if err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0); err != nil {
				return fmt.Errorf("attribute %s: %w", name, err)
			}
		}
	}
	return nil
}

func (r *Restored) file(h *tar.Header, name string, from io.Reader) error {
	f, err := r.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if size := h.PAXRecords[recordSparse]; size != "" {
		err = sparse(f, size, h.Size, from)
	} else {
		_, err = io.Copy(f, from)
	}
	if err != nil {
		if seal.OfDisk(err) != err { //nolint:errorlint // it was given a code
			return err
		}
		return unreadable("%w", err)
	}
	if err := f.Chown(h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(int(f.Fd()), uint32(h.Mode)&0o7777); err != nil { //nolint:gosec // twelve bits
		return err
	}
	if err := setXattrs(f, h); err != nil {
		return err
	}
	if err := r.inParent(name, func(dir int, base string) error { return setTime(dir, base, h.ModTime) }); err != nil {
		return err
	}
	return f.Close()
}

// sparse writes a file with holes.
func sparse(f *os.File, size string, most int64, from io.Reader) error {
	whole, err := strconv.ParseInt(size, 10, 64)
	if err != nil || whole < 0 {
		return errors.New("its size is none")
	}
	in := bufio.NewReader(from)
	line := func() ([]int64, error) {
		text, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		var out []int64
		for word := range strings.FieldsSeq(text) {
			n, err := strconv.ParseInt(word, 10, 64)
			if err != nil || n < 0 {
				return nil, errors.New("its map is none")
			}
			out = append(out, n)
		}
		return out, nil
	}
	count, err := line()
	if err != nil || len(count) != 1 || count[0] > most {
		return errors.Join(err, errors.New("its map is none"))
	}
	var parts []extent
	for range count[0] {
		p, err := line()
		if err != nil || len(p) != 2 || p[0] > whole || p[1] > whole-p[0] {
			return errors.Join(err, errors.New("its map is none"))
		}
		parts = append(parts, extent{p[0], p[1]})
	}
	for _, p := range parts {
		if _, err := io.CopyN(io.NewOffsetWriter(f, p.offset), in, p.bytes); err != nil {
			return err
		}
	}
	return f.Truncate(whole)
}

// Settle deletes what the list does not have, gives directories their owners, modes and times, and
// compares everything with the list: nothing is taken for restored that was not read again.
func (r *Restored) Settle(ctx context.Context) error {
	if err := r.prune("."); err != nil {
		return seal.OfDisk(err)
	}
	for i := len(r.names) - 1; i >= 0; i-- { // a directory's content comes after it
		name := r.names[i]
		e := r.list[name]
		if e.kind != tar.TypeDir {
			continue
		}
		if err := r.dressDirectory(name, e); err != nil {
			return seal.OfDisk(fmt.Errorf("%s: %w", strconv.QuoteToASCII(name), err))
		}
	}
	buf := make([]byte, chunk)
	for _, name := range r.names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.compare(name, r.list[name], buf); err != nil {
			return seal.Failed(wire.FailedIncomplete, "%s is not as in the backup: %w", strconv.QuoteToASCII(name), err)
		}
	}
	return nil
}

func (r *Restored) prune(dir string) error {
	d, err := r.root.Open(dir)
	if err != nil {
		return err
	}
	names, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, n := range names {
		full := path.Join(dir, n.Name())
		switch e := r.list[full]; {
		case e == nil:
			err = r.root.RemoveAll(full)
		case n.IsDir():
			err = r.prune(full)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Restored) dressDirectory(name string, e *entry) error {
	dir, err := r.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Chown(int(e.uid), int(e.gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(int(dir.Fd()), e.mode); err != nil {
		return err
	}
	return setTime(int(dir.Fd()), ".", time.Unix(0, e.mtime))
}

// compare reads a name again.
func (r *Restored) compare(name string, want *entry, buf []byte) error {
	var st unix.Stat_t
	err := r.inParent(name, func(dir int, base string) error { return unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return err
	}
	got, _ := look(&st)
	if want.kind == tar.TypeSymlink { // links have no mode
		got.mode = want.mode
	}
	if got.kind != want.kind || got.mode != want.mode || got.uid != want.uid || got.gid != want.gid || got.size != want.size || got.mtime != want.mtime {
		return fmt.Errorf("it is %c %o %d:%d with %d bytes of %s", got.kind, got.mode, got.uid, got.gid, got.size, time.Unix(0, got.mtime).UTC().Format(time.RFC3339Nano))
	}
	switch want.kind {
	case tar.TypeSymlink:
		to, err := r.root.Readlink(name)
		if err == nil && to != want.link {
			err = errors.New("it leads elsewhere")
		}
		return err
	case tar.TypeReg:
		f, err := r.root.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		sum := content{sha256.New()}
		for _, p := range extents(f, &st) {
			for done := int64(0); done < p.bytes; done += chunk {
				b := buf[:min(chunk, p.bytes-done)]
				if _, err := readAt(f, b, p.offset+done); err != nil {
					return err
				}
				sum.add(p.offset+done, b)
			}
			r.bytes += p.bytes
		}
		if sum.sum() != want.sum {
			return errors.New("its content is another")
		}
	}
	return nil
}
