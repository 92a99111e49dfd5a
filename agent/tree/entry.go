// Package tree archives a directory of a file system that is written to, so that the restored files are those of one
// moment, and restores it.
//
// An archive is a tar that may contain a name several times: the last one counts. It ends with a list of all files at
// that moment. Names that the list lacks were deleted meanwhile.
package tree

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Most is how many entries a tree may have: each takes some 250 bytes of memory.
const Most = 1_000_000

// Records of an archive's headers (PAX).
const (
	recordList   = "PREGO.list"   // of the entry that is the list
	recordSparse = "PREGO.sparse" // the size of a file with holes; its content begins with a map
	recordXattr  = "SCHILY.xattr."
)

const listName = ".prego-list"

// entry describes a name: enough to detect changes.
type entry struct {
	kind         byte // a type of tar's
	mode         uint32
	uid, gid     uint32
	pass         uint32 // that saw it last
	ino          uint64
	size         int64
	mtime, ctime int64 // in ns
	link         string
	sum          [32]byte // of a file's content
}

// same reports whether two looks at a name saw the same.
func (e *entry) same(o *entry) bool {
	return e.kind == o.kind && e.mode == o.mode && e.uid == o.uid && e.gid == o.gid && e.ino == o.ino && e.size == o.size && e.mtime == o.mtime && e.ctime == o.ctime
}

// look makes an entry of a stat; ok is false for kinds that are not archived (sockets and devices).
func look(st *unix.Stat_t) (e entry, ok bool) {
	e = entry{
		mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid, ino: st.Ino, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.kind, e.size = tar.TypeReg, st.Size
	case unix.S_IFDIR:
		e.kind = tar.TypeDir
	case unix.S_IFLNK:
		e.kind = tar.TypeSymlink
	case unix.S_IFIFO:
		e.kind = tar.TypeFifo
	default:
		return e, false
	}
	return e, true
}

// header is an entry's header.
func (e *entry) header(name string) *tar.Header {
	return &tar.Header{
		Typeflag: e.kind, Name: name, Linkname: e.link, Mode: int64(e.mode), Uid: int(e.uid), Gid: int(e.gid), Size: e.size, ModTime: time.Unix(0, e.mtime), Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
}

// line is an entry in the list.
func (e *entry) line(name string) string {
	return fmt.Sprintf("%c %o %d %d %d %d %s %s %s\n", e.kind, e.mode, e.uid, e.gid, e.size, e.mtime, hex.EncodeToString(e.sum[:]), strconv.QuoteToASCII(name), strconv.QuoteToASCII(e.link))
}

// parseLine is the inverse of line.
func parseLine(text string) (name string, e entry, err error) {
	var sum []byte
	_, err = fmt.Sscanf(text, "%c %o %d %d %d %d %x %q %q",
		&e.kind, &e.mode, &e.uid, &e.gid, &e.size, &e.mtime, &sum, &name, &e.link)
	copy(e.sum[:], sum)
	if err != nil || !clean(name) || e.line(name) != text+"\n" {
		return "", entry{}, fmt.Errorf("line %.80q of the list", text)
	}
	return name, e, nil
}

// clean reports whether a name is one below the tree, or the tree itself.
func clean(name string) bool {
	return name == "." || (name != "" && path.Clean(name) == name && name[0] != '/' && name != ".." && !strings.HasPrefix(name, "../"))
}

// block is the unit of content's digests: blocks of zeros are left out, so that holes make no difference.
const block = 4096

var zeros [block]byte

// content is the digest of a file that is read block by block.
type content struct{ hash.Hash }

// add takes data that begins at a multiple of block.
func (c content) add(offset int64, data []byte) {
	for len(data) > 0 {
		n := min(block, len(data))
		if b := data[:n]; !bytes.Equal(b, zeros[:n]) {
			var at [8]byte
			binary.BigEndian.PutUint64(at[:], uint64(offset)) //nolint:gosec // an offset in a file
			_, _ = c.Write(at[:])
			_, _ = c.Write(b)
			if n < block { // as if the file ended with zeros
				_, _ = c.Write(zeros[n:])
			}
		}
		offset, data = offset+int64(n), data[n:]
	}
}

func (c content) sum() (out [32]byte) {
	copy(out[:], c.Sum(nil))
	return out
}

// extent is a part of a file that is no hole.
type extent struct{ offset, bytes int64 }

// extents are the parts of a file that hold data, at multiples of block; all of it if it has no
// holes worth the trouble.
func extents(f *os.File, st *unix.Stat_t) []extent {
	whole := []extent{{0, st.Size}}
	if st.Size == 0 || st.Blocks*512 >= st.Size-16*block {
		return whole
	}
	var out []extent
	for at := int64(0); at < st.Size; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break
		}
		if err != nil {
			return whole
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil || to <= from {
			return whole
		}
		from, to = from/block*block, min(st.Size, (to+block-1)/block*block)
		if n := len(out); n > 0 && from <= out[n-1].offset+out[n-1].bytes {
			out[n-1].bytes = max(to, out[n-1].offset+out[n-1].bytes) - out[n-1].offset
		} else if to > from {
			out = append(out, extent{from, to - from})
		}
		at = to
	}
	return out
}

// extentMap is the beginning of the content of a file with holes.
func extentMap(all []extent) []byte {
	out := strconv.AppendInt(nil, int64(len(all)), 10)
	out = append(out, '\n')
	for _, x := range all {
		out = fmt.Appendf(out, "%d %d\n", x.offset, x.bytes)
	}
	return out
}

// chunk is how much of a file one read reads.
const chunk = 64 * block

// readAt fills a buffer from a file, with zeros after its end: how much was there is n.
func readAt(f *os.File, buf []byte, offset int64) (n int, err error) {
	n, err = f.ReadAt(buf, offset)
	if err == io.EOF {
		err = nil
	}
	clear(buf[n:])
	return n, err
}
